#!/usr/bin/env python3
"""Writes philox_words.txt: dropout's words by another implementation than src/problem/philox.h.

Each line: seed offset bh i j word, the word in hexadecimal, as CONTRACT 13 pins them.
philox_words_test.py checks the file against this module, philox_test.cpp the library against it.
"""

from pathlib import Path

FILE = Path(__file__).with_name("philox_words.txt")
MASK = 2**32 - 1


def philox4x32_10(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Salmon et al. 2011, section 3.3, with numbers of any size."""
    left_0, right_0, left_1, right_1 = counter
    for step in range(10):
        key_0 = key[0] + step * 0x9E3779B9 & MASK
        key_1 = key[1] + step * 0xBB67AE85 & MASK
        high_0, low_0 = divmod(left_0 * 0xD2511F53, 2**32)
        high_1, low_1 = divmod(left_1 * 0xCD9E8D57, 2**32)
        left_0, right_0, left_1, right_1 = (
            high_1 ^ right_0 ^ key_0,
            low_1,
            high_0 ^ right_1 ^ key_1,
            low_0,
        )
    return left_0, right_0, left_1, right_1


def word(seed: int, offset: int, bh: int, i: int, j: int) -> int:
    """The word of one pair."""
    counter = (j // 4 & MASK, i & MASK, bh & MASK, offset & MASK)
    return philox4x32_10(counter, (seed & MASK, seed >> 32))[j % 4]


def lines() -> list[str]:
    """The file's lines."""
    rows = []
    for seed, offset in [(0, 0), (1, 0), (0xFEDCBA9876543210, 0x1000000FF), (2**64 - 1, 2**64 - 1)]:
        for bh, i, j in [
            (0, 0, 0),
            (0, 0, 1),
            (0, 1, 0),
            (1, 0, 0),
            (3, 17, 1022),
            (3, 17, 1023),
            (2**31, 2**20, 2**33 + 7),
        ]:
            rows.append(f"{seed} {offset} {bh} {i} {j} {word(seed, offset, bh, i, j):08x}")
    return rows


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
