"""docs/performance.md: one table and one sentence for each question, from the committed results.

The full tables stand beside the results, in bench/results/<machine>/README.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from docs_gpu import NAMES, number

from bench.peers import summary

Row = dict[str, Any]
PASSES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "both"}


class Question(NamedTuple):
    """A section: a card's result files by what their lines say, and what tells lines apart."""

    title: str
    stems: dict[str, str]
    sentence: str
    lines: Callable[[summary.Cell], tuple[Any, ...]]
    head: str
    covers: Callable[[Row], bool] = lambda row: True


def mask_word(cell: summary.Cell) -> str:
    options = [word for word in cell.mask.split("+") if word != "none"]
    words = [summary.packed_words(o) if o.startswith("packed=") else o for o in options]
    return ", ".join((["causal"] if cell.causal else []) + words) or "full"


def by_dim(cell: summary.Cell) -> tuple[Any, ...]:
    return (PASSES[cell.which], "causal" if cell.causal else "full", cell.head_dim)


def by_option(cell: summary.Cell) -> tuple[Any, ...]:
    grouped = "grouped" if cell.heads != cell.kv_heads else "own"
    return (PASSES[cell.which], mask_word(cell), grouped)


def by_grouping(cell: summary.Cell) -> tuple[Any, ...]:
    kind = "window" if "window" in cell.mask else "causal" if cell.causal else "full"
    return (
        PASSES[cell.which],
        kind,
        "grouped" if cell.heads != cell.kv_heads else "own",
        cell.head_dim,
    )


def by_lengths(cell: summary.Cell) -> tuple[Any, ...]:
    packed = [o for o in cell.mask.split("+") if o.startswith("packed=")]
    return (PASSES[cell.which], *map(summary.packed_words, packed))


def by_pass_and_dim(cell: summary.Cell) -> tuple[Any, ...]:
    return (PASSES[cell.which], cell.head_dim)


def by_type(cell: summary.Cell) -> tuple[Any, ...]:
    return (PASSES[cell.which], cell.dtype, cell.head_dim)


def by_serving(cell: summary.Cell) -> tuple[Any, ...]:
    keys = "pages" if "paged=" in cell.mask else "contiguous"
    return ("1 to 8" if cell.seq_q <= 8 else "16 to 2,048", keys)


QUESTIONS = (
    Question(
        "The grid: 16,384 tokens, hidden size 2048, bf16",
        {"": "grid-sm90"},
        "The usual grid: every pass, mask and head dim, 512 to 16,384 tokens.",
        by_dim,
        "pass | mask | dim",
    ),
    Question(
        "The grid in float16 and under sustained load",
        {"float16": "fp16-sm90", "sustained": "sustained-sm90"},
        "The float16 run did not include FlashAttention-3. Sustained launches run back to back.",
        by_pass_and_dim,
        "run | pass | dim",
    ),
    Question(
        "Training shapes",
        {"": "training"},
        "Heads, dims and lengths of published models.",
        by_grouping,
        "pass | mask | key heads | dim",
    ),
    Question(
        "Packed sequences",
        {"": "packed"},
        "Short, long and mixed sequences in one tensor, full and causal, dims 64 and 128.",
        by_lengths,
        "pass | sequences",
    ),
    Question(
        "Vision, small problems, cross attention",
        {"vision": "vision", "small": "small", "cross": "cross"},
        "Vision has 197 to 1,024 rows. Small has 128 to 512 rows and batch 1 to 8. Cross has 77 to "
        "1,500 keys.",
        by_pass_and_dim,
        "shapes | pass | dim",
    ),
    Question(
        "Options",
        {"": "options-sm90"},
        "Grouped-query attention, a window, a single query; a softcap, which this FlashAttention-3 "
        "does not have. Dims 64 to 256.",
        by_option,
        "pass | mask | key heads",
    ),
    Question(
        "Serving: decoding, paged caches, chunked prefill",
        {"": "serving"},
        "1,500 to 524,288 keys, grouped-query attention, batch 1 to 128, pages of 1 to 256 rows.",
        by_serving,
        "queries | keys",
    ),
    Question(
        "float32 and small head dims: one head, batch 1, causal",
        {"": "assignment-sm80"},
        "On Hopper too, the sm_80 kernels run float32 and head dims below 64.",
        by_type,
        "pass | type | dim",
        lambda row: (
            row["pass"] != "fwd+bwd"
            and row["seq_q"] >= 512
            and (row["dtype"] == "float32" or row["head_dim"] < 64)
        ),
    ),
)


def ours_of(rows: list[Row]) -> list[Row]:
    """The plan's own choice in each cell, where the run marked it; else all rows of ours."""
    mine = [row for row in rows if row["implementation"] == "flash"]
    chosen = [row for row in mine if "own choice" in str(row.get("reason"))]
    marked = {summary.Cell.of(row) for row in chosen}
    return chosen + [row for row in mine if summary.Cell.of(row) not in marked]


Ratio = tuple[float, summary.Cell, str]


def ratios_of(question: Question, rows: list[Row]) -> dict[tuple[Any, ...], list[Ratio]]:
    """The best peer's time over ours, by the question's groups."""
    rows = [row for row in rows if question.covers(row)]
    peers = [row for row in rows if row["implementation"] not in summary.OURS]
    groups: dict[tuple[Any, ...], list[Ratio]] = {}
    for cell, present in summary.by_cell(ours_of(rows) + peers).items():
        mine = [row for row in present if row["implementation"] == "flash"]
        others = [row for row in present if row["implementation"] != "flash"]
        if mine and others:
            best = min(others, key=lambda row: row["ms_median"])
            ratio = best["ms_median"] / min(row["ms_median"] for row in mine)
            name = NAMES.get(best["implementation"], best["implementation"])
            groups.setdefault(question.lines(cell), []).append((ratio, cell, name))
    return groups


def ratio_lines(question: Question, results: dict[str, list[Row]]) -> list[str]:
    """The question's table, a line a group of each of its files."""
    groups: dict[tuple[Any, ...], list[Ratio]] = {}
    for run, stem in question.stems.items():
        for key, values in ratios_of(question, results.get(stem, [])).items():
            groups[(run, *key) if run else key] = values
    columns = question.head.count("|") + 1
    lines = [f"| {question.head} | cells | geometric mean | least | at length | best peer |"]
    lines.append("|" + "---|" * columns + "---:|---:|---:|---:|---|")
    everything: list[float] = []
    for key in sorted(groups, key=lambda key: tuple(str(x).rjust(12) for x in key)):
        values = groups[key]
        least = min(values)
        everything += [ratio for ratio, _, _ in values]
        peer = Counter(name for _, _, name in values).most_common(1)[0][0]
        told = " | ".join(map(str, key))
        mean = summary.geomean(ratio for ratio, _, _ in values)
        lines.append(
            f"| {told} | {len(values)} | {mean:.2f} | {least[0]:.2f} | {least[1].length} | {peer} |"
        )
    if len(groups) > 1:
        blank = " | " * (columns - 1)
        total = f"{summary.geomean(everything):.2f} | {min(everything):.2f}"
        lines.append(f"| **all**{blank} | {len(everything)} | {total} | | |")
    return lines if groups else []


def seeds_lines(results: dict[str, list[Row]], dim: int) -> list[str]:
    """The seeds' grid on a card: our three implementations, forward and backward."""
    cells: dict[tuple[str, str, int], Row] = {}
    for stem in ("seed-eager-sm80", "seed-fused-sm80", "seed-flash-sm80"):
        for row in results.get(stem, []):
            if row["head_dim"] == dim and row["pass"] in ("fwd", "bwd"):
                cells.setdefault((row["implementation"], row["pass"], row["seq_q"]), row)
    lengths = sorted({length for _, _, length in cells})
    names = ["eager", "torch-eager", "torch-compile", "fused", "flash"]
    names = [n for n in names if any(key[0] == n for key in cells)]
    lines = ["| pass | length | " + " | ".join(f"{NAMES.get(n, '**' + n + '**')}" for n in names)]
    lines[0] += " | peak of eager, MiB | peak of flash, MiB |"
    lines.append("|---|---:|" + "---:|" * (len(names) + 2))
    for which in ("fwd", "bwd"):
        for length in lengths:
            values = [number(cells.get((n, which, length)), "ms_median") for n in names]
            peaks = [number(cells.get((n, which, length)), "peak_mib") for n in ("eager", "flash")]
            lines.append(f"| {PASSES[which]} | {length} | " + " | ".join(values + peaks) + " |")
    return lines


def page(cards: dict[str, dict[str, list[Row]]], machines: dict[str, str], cpu: list[str]) -> str:
    """`cards`: rows of each result by folder and stem; the first card is the one that is shown."""
    folder, results = next(iter(cards.items()))
    lines = [
        "# Performance",
        "",
        "`./tw docs` generates this page from the committed results in `bench/results`.",
        "A ratio is the best peer's time divided by ours. Above 1, Tilewise is faster.",
        "If a run measured several of our kernels, the planner's choice counts.",
        "Both ran in one process in random order. Every output was first compared with float64.",
        "",
        "All cells, with machine, versions and protocol:",
        *(f"[{name}](../bench/results/{name}/README.md)," for name in machines),
        "and [the CPU beside its peers](cpu.md).",
        "",
        "![TFLOP/s of ours and the peers over the length](plots/h200-grid-sm90.svg)",
    ]
    for question in QUESTIONS:
        table = ratio_lines(question, results)
        if table:
            files = [stem for stem in question.stems.values() if stem in results]
            source = ", ".join(f"`{folder}/{stem}.json`" for stem in files)
            lines += ["", f"## {question.title}", "", f"{question.sentence} From {source}.", ""]
            lines += table
    lines += ["", "## The seeds' grid: batch 8, one head, dim 64, float32, full", ""]
    lines += ["Milliseconds with a memory budget of 24 GiB. flash stores no S x S matrix.", ""]
    lines += [*seeds_lines(results, 64), "", "![time and memory](plots/h200-seed-flash-sm80.svg)"]
    lines += ["", "## The CPU", "", *cpu]
    return "\n".join(lines) + "\n"


def folder_of(name: str) -> str:
    return str(Path(name).parent)
