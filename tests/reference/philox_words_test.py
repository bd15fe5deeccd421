"""philox_words.txt is what its script makes, and the script agrees with the published vectors."""

import unittest

import philox_words

# Random123's known answers for philox4x32-10: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


class PhiloxWords(unittest.TestCase):
    """The independent implementation."""

    def test_known_answers(self) -> None:
        for counter, key, words in KNOWN:
            self.assertEqual(philox_words.philox4x32_10(counter, key), words)

    def test_the_file_is_current(self) -> None:
        self.assertEqual(
            philox_words.FILE.read_text(encoding="utf-8").splitlines(), philox_words.lines()
        )


if __name__ == "__main__":
    unittest.main()
