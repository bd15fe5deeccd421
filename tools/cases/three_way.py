"""cases/three_way.txt: every three options of attention that go together stand in one line.

    python3 tools/cases/three_way.py            rewrites the file
    python3 tools/cases/three_way.py --check    fails when the file is another one

An option is a value of one of FACTORS. Faults of one option or of two are found by the other files;
this one finds those that three make together. Each triple stands in a line of 16 bits and in one of
float32. Lines are made one after another: each takes a triple that is missing and then, for every
factor that is free, the value that brings the most missing ones.
"""

import argparse
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent.parent / "cases" / "three_way.txt"
SEED = "three-way 1"

FACTORS = {
    "mask": (
        "none",
        "causal",
        "top-left",
        "window",
        "causal window",
        "top-left window",
        "bool",
        "causal bool",
        "blocks",
    ),
    "scores": (
        "plain",
        "softcap",
        "alibi",
        "bias",
        "sink",
        "dropout",
        "softcap alibi",
        "bias sink",
        "mod",
    ),
    "lengths": (
        "equal",
        "fewer queries",
        "fewer keys",
        "key lengths",
        "key lengths, few queries",
        "packed",
        "packed, own keys",
        "paged",
    ),
    "heads": ("mha", "groups of 4", "mqa"),
    "dims": ("32", "64", "128", "256", "odd", "own Dv"),
}
TYPES = ("16 bits", "float32")
HEADER = """\
# Three-way: every legal triple of values of any three of mask form, change of the scores, source of
# the lengths, packing of the heads and class of the dims stands in a line of 16 bits and in one of
# float32. Made by tools/cases/three_way.py, which says what the values are. Grammar: README.md.
"""

Row = dict[str, str]
Triple = tuple[tuple[str, str], ...]


class Chance:
    """Random choices that depend on a text alone, on every machine and version of Python."""

    def __init__(self, text: str) -> None:
        """Starts the choices of `text`."""
        self._text, self._count = text, 0

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        self._count += 1
        digest = hashlib.sha256(f"{self._text} {self._count}".encode()).digest()
        return low + int.from_bytes(digest[:8], "big") % (high - low + 1)

    def one_of(self, values: tuple) -> object:
        """One of the values."""
        return values[self.between(0, len(values) - 1)]

    def percent(self, share: int) -> bool:
        """True in `share` of 100 cases."""
        return self.between(1, 100) <= share


def legal(row: Row) -> bool:
    """Whether the contract defines the values together; factors may be missing."""
    return not (row.get("mask") == "blocks" and row.get("lengths", "").startswith("packed"))


def triples(row: Row) -> Iterator[Triple]:
    """All triples of a row."""
    return itertools.combinations(sorted(row.items()), 3)


def legal_triples() -> set[Triple]:
    """All triples that some line has to hold."""
    every = set()
    for names in itertools.combinations(sorted(FACTORS), 3):
        for values in itertools.product(*(FACTORS[name] for name in names)):
            row = dict(zip(names, values, strict=True))
            if legal(row):
                every.add(tuple(row.items()))
    return every


def complete(start: Triple, missing: set[Triple], chance: Chance) -> Row:
    """A row with the triple, whose other values bring the most missing triples."""
    row = dict(start)
    free = [name for name in FACTORS if name not in row]
    while free:
        name = free.pop(chance.between(0, len(free) - 1))
        values = [value for value in FACTORS[name] if legal(row | {name: value})]
        first = chance.between(0, len(values) - 1)
        values = values[first:] + values[:first]

        def gain(value: str, name: str = name) -> int:
            return sum(triple in missing for triple in triples(row | {name: value}))

        row[name] = max(values, key=gain)
    return row


def covering_rows(kind: str) -> Iterable[Row]:
    """Rows that hold every legal triple."""
    chance = Chance(f"{SEED} {kind}")
    # The three factors of most values make most of the rows.
    order = sorted(
        legal_triples(),
        key=lambda triple: (-sum(len(FACTORS[name]) for name, _ in triple), triple),
    )
    missing = set(order)
    for triple in order:
        if triple in missing:
            row = complete(triple, missing, chance)
            missing.difference_update(triples(row))
            yield row


def dims(row: Row, chance: Chance) -> tuple[int, int]:
    """D and Dv."""
    if row["dims"] == "odd":
        dim = chance.one_of((7, 20, 40, 72, 100))
        return dim, dim
    if row["dims"] == "own Dv":
        return chance.one_of(((64, 128), (128, 64), (192, 128), (40, 24)))
    return int(row["dims"]), int(row["dims"])


def sizes(row: Row, heads: int, dim: int, chance: Chance) -> tuple[str, int, int]:
    """Words of the lengths, and the most queries and keys of an entry."""
    # As many pairs as the reference takes milliseconds for, over all heads.
    pairs = (5_000_000 if chance.percent(15) else 1_200_000) // (max(dim, 32) * heads)
    lengths = row["lengths"]
    side = max(4, int(pairs**0.5))
    if lengths == "equal":
        n = chance.between(side // 2, side)
        return f"s{n}", n, n
    few = lengths in ("paged", "key lengths, few queries")
    ratio = chance.between(2, 6)
    if lengths in ("fewer queries", "key lengths") or few:
        q = chance.between(1, 8) if few else max(1, int((pairs / ratio) ** 0.5))
        k = min(chance.between(200, 700), pairs // q) if few else q * ratio - chance.between(0, 9)
    elif lengths == "fewer keys":
        k = max(1, int((pairs / ratio) ** 0.5))
        q = k * ratio - chance.between(0, 9)
    else:
        q = k = side
    k = max(k, 2)
    if lengths.startswith("packed"):
        own = lengths == "packed, own keys"
        queries = [chance.between(q // 3, q), chance.between(1, 5), chance.between(1, q)]
        keys = [chance.between(1, 2 * k), chance.between(k // 2, k), chance.between(1, k)]
        if chance.percent(30):
            queries[chance.between(0, 2)] = 0
        if own and chance.percent(30):
            keys[chance.between(0, 2)] = 0
        text = "packed=" + ",".join(map(str, queries))
        text += "/" + ",".join(map(str, keys)) if own else ""
        text += chance.one_of(("", "", ":tail=3,5", ":int64", ":max"))
        return text, max(queries), max(keys if own else queries)
    if lengths in ("fewer queries", "fewer keys"):
        return f"q{q} k{k}", q, k
    page = chance.one_of((1, 7, 16, 64)) if lengths == "paged" else 1
    k = max(1, k // page) * page
    text = f"b2 q{q} k{k} lengths={k if chance.percent(50) else chance.between(0, k)},"
    text += str(chance.between(1, k))
    return text + (f" paged={page} pass=fwd" if lengths == "paged" else ""), q, k


def mask_words(row: Row, q: int, k: int, chance: Chance) -> list[str]:
    """Words of the mask's form."""
    form, words = row["mask"], []
    if "causal" in form:
        words.append("causal")
    if "top-left" in form:
        words.append("causal_top_left")
    if "window" in form:
        left, right = chance.between(0, max(q, k)), chance.between(1, max(1, k // 2))
        sides = (f"{left},{right}", f"{left},{right}", f"{left},none", f"none,{right}")
        words.append("window=" + str(chance.one_of(sides)))
    packed = row["lengths"].startswith("packed")
    if "bool" in form:
        axes = chance.one_of(("b,h,q,k", "1,1,q,k", "b,1,1,k", "1,h,q,k"))
        hide = chance.one_of(("some0.3", "some0.8", f"rows0-{q // 2}", f"keys{k // 2}-{k}"))
        words.append(f"mask={axes[2:] if packed else axes}:{hide}")
    if form == "blocks":
        if chance.percent(50):
            words.append("causal")
        shape = chance.one_of(("16,16", "16,32", "64,64", "128,128"))
        axes = chance.one_of(("1,1", "1,h", "b,h"))
        words.append(f"blocks={shape}:{axes}:0.6" + (":full" if chance.percent(50) else ""))
    return words


def score_words(row: Row, chance: Chance) -> list[str]:
    """Words of the change of the scores."""
    scores, words = row["scores"], []
    packed = row["lengths"].startswith("packed")
    if "softcap" in scores:
        words.append(f"softcap={chance.one_of((2, 5, 15, 50))}")
    if "alibi" in scores:
        words.append(str(chance.one_of(("alibi", "alibi=bh"))))
    if "bias" in scores:
        axes = str(chance.one_of(("b,h,q,k", "1,h,q,k", "b,1,1,k", "1,h,q,1", "1,1,q,k")))
        part = chance.one_of(("", "", ":bf16", ":f16", ":-inf@some0.1"))
        words.append(f"bias={axes[2:] if packed else axes}{part}")
    if "sink" in scores:
        words.append("sink")
    if scores == "mod":
        words.append(str(chance.one_of(("mod=distance", "mod=wave"))))
    if scores == "dropout":
        words.append(f"dropout=0.3 seed={chance.between(1, 99)}")
    return words


def line(row: Row, kind: str) -> str:
    """The row as a case of some sizes."""
    chance = Chance(f"{SEED} {kind} {sorted(row.items())}")
    dim, dim_v = dims(row, chance)
    of_heads = {"mha": ("h2", "h3"), "groups of 4": ("h8/2",), "mqa": ("h3/1", "h5/1")}
    head = str(chance.one_of(of_heads[row["heads"]]))
    text, q, k = sizes(row, int(head[1:].split("/")[0]), max(dim, dim_v), chance)
    words = [text, head, f"d{dim}"]
    if dim_v != dim:
        words.append(f"dv{dim_v}")
    words.append(str(chance.one_of(("bf16", "bf16", "f16"))) if kind == "16 bits" else "f32")
    words += mask_words(row, q, k, chance) + score_words(row, chance)
    if chance.percent(40):
        words.append("layout=bshd")
    if row["lengths"] != "paged":
        words += ["deterministic"] * chance.percent(25) + ["dlse"] * chance.percent(25)
    return " ".join(words)


def make() -> str:
    """The file's text."""
    parts = [HEADER]
    for kind in TYPES:
        rows = sorted(
            covering_rows(kind),
            key=lambda row: [FACTORS[name].index(row[name]) for name in reversed(FACTORS)],
        )
        parts.append(f"\n# {kind}\n" + "".join(line(row, kind) + "\n" for row in rows))
    return "".join(parts)


def main() -> int:
    """Writes the file, or says whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        FILE.write_text(make(), encoding="utf-8")
        return 0
    return 0 if FILE.read_text(encoding="utf-8") == make() else 1


if __name__ == "__main__":
    sys.exit(main())
