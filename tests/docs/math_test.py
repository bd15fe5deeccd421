"""docs/math.md against the code: each cited equation stands beside its own words, each name exists.

A comment that cites `(F4)` must speak of a mask, one that cites `(B7)` of a cap, and so on. A
citation of a range such as `(F2) to (F4)` must speak of one of its equations. Every name in the
table "where each equation lives" must be defined in src/ or tests/.
"""

import os
import re
import unittest
from pathlib import Path

ROOT = Path(os.environ.get("TILEWISE_SOURCE_DIR", Path(__file__).resolve().parents[2]))
SUFFIXES = {".cpp", ".cuh", ".h", ".hpp", ".md", ".inc"}
# What a comment that cites the equation speaks of.
WORDS = {
    "F1": r"\bQ\b|q\.k|\bS\b|scores?\b|dot\(|scale",
    "F2": r"(?i)cap|tanh|softcap|logit",
    "F3": r"(?i)bias|alibi|slope|distance|logit",
    "F4": r"(?i)mask|hid|-inf|visible|sees\b|logit|score function|mod\b",
    "F5": r"\bL\b|LSE|lse|log\b|statistics|\bl\b|maxim|row_max",
    "F6": r"\bP\b|prob|exp|\bl\b",
    "F7": r"softmax|\bm\b|max|m_new|high|grown",
    "F8": r"softmax|\bP\b|exp|2\^|prob",
    "F9": r"softmax|\bl\b|sums?\b|\.l\[",
    "F10": r"\bO\b|P V|Z P|values",
    "F11": r"\bO\b|LSE|log l|1 / l",
    "F12": r"sink",
    "F13": r"keep|kept|Philox|drop",
    "F14": r"\bO\b|P V|\bV\b|output",
    "F15": r"merge",
    "B1": r"\bP\b|prob|exp|P\^T",
    "B2": r"delta",
    "B3": r"\bdV\b|dv\b|p_",
    "B4": r"\bdP\b|d_prob|dP\^T|drop",
    "B5": r"\bdS\b|\bdY\b|dy\b|score_gradient|gradient|dS\^T",
    "B6": r"\bmod|dbias|\bdX\b|dx\b|gradients of the logits",
    "B7": r"cap|\bdS\b|ds\b",
    "B8": r"\bdQ\b|dq\b|scale",
    "B9": r"\bdK\b|dk\b",
    "B10": r"sink",
    "B11": r"captur",
}
CITATION = re.compile(r"\(((?:[FB]\d+)(?:(?:,| to|-|\)? to \(?) ?(?:[FB]\d+))*)\)")


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in SUFFIXES)


def between(first: str, last: str) -> list[str]:
    """The equations of a range, F2 to F4."""
    letter = first[0]
    return [f"{letter}{number}" for number in range(int(first[1:]), int(last[1:]) + 1)]


def cited(text: str) -> tuple[list[str], list[list[str]]]:
    """Equations cited one by one, and ranges."""
    ranges = re.findall(r"([FB]\d+)\)?(?: to |-)\(?([FB]\d+)", text)
    singles = re.sub(r"[FB]\d+\)?(?: to |-)\(?[FB]\d+", "", text)
    return re.findall(r"[FB]\d+", singles), [between(*ends) for ends in ranges]


def without_citations(text: str) -> str:
    return CITATION.sub("", text)


class MathTest(unittest.TestCase):
    def test_every_equation_has_its_words(self) -> None:
        numbered = re.findall(r"^\| ([FB]\d+) \|", (ROOT / "docs/math.md").read_text(), re.M)
        self.assertEqual(set(numbered), set(WORDS))

    def test_citations_stand_beside_their_words(self) -> None:
        wrong = []
        seen = 0
        for path in sources():
            lines = path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines):
                for match in CITATION.finditer(line):
                    seen += 1
                    near = without_citations("\n".join(lines[max(number - 1, 0) : number + 3]))
                    singles, ranges = cited(match.group(1))
                    unfit = [name for name in singles if not re.search(WORDS.get(name, "$^"), near)]
                    unfit += [
                        f"{names[0]} to {names[-1]}"
                        for names in ranges
                        if not any(re.search(WORDS.get(name, "$^"), near) for name in names)
                    ]
                    place = f"{path.relative_to(ROOT)}:{number + 1}"
                    wrong += [f"{place}: {name}: {line.strip()}" for name in unfit]
        self.assertGreater(seen, 150)
        self.assertEqual(wrong, [], "\n".join(wrong))

    def test_a_wrong_number_is_found(self) -> None:
        self.assertIsNone(re.search(WORDS["F5"], "ALiBi in units of raw scores"))
        self.assertIsNone(re.search(WORDS["F2"], "The score of a pair with its bias"))
        self.assertEqual(cited("F1, B4"), (["F1", "B4"], []))
        self.assertEqual(cited("F2 to F4"), ([], [["F2", "F3", "F4"]]))

    def test_names_of_the_table_exist(self) -> None:
        code = "\n".join(path.read_text(encoding="utf-8") for path in sources())
        tests = "\n".join(
            path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.cpp")
        )
        table = (ROOT / "docs/math.md").read_text().split("## Where each equation lives")[1]
        rows = [line for line in table.splitlines() if re.match(r"\| [FB]\d+", line)]
        self.assertGreater(len(rows), 15)
        missing = []
        for row in rows:
            *places, checks = [cell.strip() for cell in row.strip("|").split("|")][1:]
            for name in re.findall(r"`([\w:]+)`", " ".join(places)):
                owner, _, member = name.rpartition("::")
                bodies = re.findall(
                    rf"(?:struct|class|namespace) {owner}\b[^;{{]*{{.*?\n}}", code, re.S
                )
                inside = any(re.search(rf"\b{member}\)?\(", body) for body in bodies)
                if not (re.search(rf"\b{name}\b", code) or (owner and inside)):
                    missing.append(f"{name}: is not defined in src")
            for name in re.findall(r"`([\w.*]+)`", checks):
                stem = name.rstrip(".*").split(".")[-1]
                if not re.search(rf"\b{stem}", tests):
                    missing.append(f"{name}: no such test")
        self.assertEqual(missing, [], "\n".join(missing))


if __name__ == "__main__":
    unittest.main()
