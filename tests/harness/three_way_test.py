"""cases/three_way.txt holds every legal triple, and is what its generator makes.

What a line holds is read from its words here, not taken from the generator.
"""

import itertools
import os
import sys
import unittest
from pathlib import Path

SOURCE = Path(os.environ.get("TILEWISE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(SOURCE / "tools" / "cases"))

import three_way  # noqa: E402


def mask_form(words: set[str], named: dict[str, str]) -> str:
    """The mask's form; `blocks` may stand beside causal."""
    if "blocks" in named:
        return "blocks"
    causal = "causal" if "causal" in words else ""
    causal = "top-left" if "causal_top_left" in words else causal
    other = "window" if "window" in named else "bool" if "mask" in named else ""
    return " ".join(word for word in (causal, other) if word) or "none"


def scores(words: set[str], named: dict[str, str]) -> str:
    """What changes the scores."""
    found = [
        name
        for name in ("softcap", "alibi", "bias", "sink", "dropout", "mod")
        if name in words or name in named
    ]
    return " ".join(found) or "plain"


def source_of_lengths(words: set[str], named: dict[str, str]) -> str:
    """Where the lengths come from."""
    if "paged" in named:
        return "paged"
    if "packed" in named:
        return "packed, own keys" if "/" in named["packed"] else "packed"
    rows = {word[0]: int(word[1:]) for word in words if word[0] in "qks" and word[1:].isdigit()}
    if "s" in rows:
        return "equal"
    if "lengths" in named:
        return "key lengths, few queries" if rows["q"] <= 8 < rows["k"] else "key lengths"
    return "fewer queries" if rows["q"] < rows["k"] else "fewer keys"


def options(line: str) -> tuple[str, dict[str, str]]:
    """The type of a line, and its value of every factor."""
    words = set(line.split())
    named = dict(word.split("=", 1) for word in words if "=" in word)
    number = {word[0]: word[1:] for word in words if word[0] in "hd" and word[1:2].isdigit()}
    dim_v = next((word[2:] for word in words if word.startswith("dv")), number["d"])
    heads, _, keys = number["h"].partition("/")
    group = int(heads) // int(keys or heads)
    dims = number["d"] if number["d"] in three_way.FACTORS["dims"] else "odd"
    return "float32" if "f32" in words else "16 bits", {
        "mask": mask_form(words, named),
        "scores": scores(words, named),
        "lengths": source_of_lengths(words, named),
        "heads": "mha" if group == 1 else "mqa" if keys == "1" else f"groups of {group}",
        "dims": dims if dim_v == number["d"] else "own Dv",
    }


class ThreeWay(unittest.TestCase):
    """The file."""

    def setUp(self) -> None:
        text = three_way.FILE.read_text(encoding="utf-8")
        self.lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    def test_every_legal_triple_stands_in_a_line_of_each_type(self) -> None:
        for kind in ("16 bits", "float32"):
            held = set()
            for line in self.lines:
                of_type, row = options(line)
                for name, value in row.items():
                    self.assertIn(value, three_way.FACTORS[name], line)
                if of_type == kind:
                    held |= set(itertools.combinations(sorted(row.items()), 3))
            missing = []
            for names in itertools.combinations(sorted(three_way.FACTORS), 3):
                for values in itertools.product(*(three_way.FACTORS[name] for name in names)):
                    triple = tuple(zip(names, values, strict=True))
                    # A block list has no packed form: the one triple that CONTRACT leaves out.
                    packed = any(value.startswith("packed") for value in values)
                    if triple not in held and not ("blocks" in values and packed):
                        missing.append(triple)
            self.assertEqual(missing, [], kind)

    def test_the_file_is_current(self) -> None:
        self.assertEqual(three_way.FILE.read_text(encoding="utf-8"), three_way.make())


if __name__ == "__main__":
    unittest.main()
