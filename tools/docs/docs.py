"""Tables and plots of the docs, made from the committed results in bench/results.

`./tw docs` rewrites docs/performance.md, the full tables in bench/results/<machine>/README.md, the
plots in docs/plots and the marked blocks of README.md, docs/asam.md, docs/cpu.md and
docs/python.md.
Every number comes from a result file; this script only arranges. `--check` writes nothing and fails
when a document is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # bench.peers, whose summaries the tables hold

import docs_asam  # noqa: E402
import docs_cpu  # noqa: E402
import docs_gpu  # noqa: E402
import docs_python  # noqa: E402
import docs_summary  # noqa: E402
from docs_gpu import number  # noqa: E402

RESULTS = ROOT / "bench" / "results"
PLOTS = ROOT / "docs" / "plots"
# Those that a page shows.
SHOWN_PLOTS = ("h200-grid-sm90.svg", "h200-seed-flash-sm80.svg", "cpu-amd-epyc-seeds.svg")
README_RESULT = "cpu/amd-epyc/seeds.json"
README_DIM = 64
README_GRID = "grid-sm90.json"
README_SCALED = [
    "Scaled: measured beside cuDNN in another run on the same kind of card, and multiplied by the",
    "ratio of the two runs' cuDNN; dashed in the plot.",
]
PASS_NAMES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward + backward"}
ORDER = [
    "flash",
    "fa3",
    "cudnn",
    "fa2",
    "flex",
    "memeff",
    "fused",
    "torch-compile",
    "eager",
    "torch-eager",
    "baseline",
]

Row = dict[str, Any]


@dataclass
class Result:
    """One result file: its path below bench/results, its environment and its rows."""

    name: str
    environment: dict[str, Any]
    rows: list[Row]

    def gpu(self) -> str:
        """The GPU's name; empty for a CPU's result."""
        return next((g["name"] for g in self.environment.get("gpus", [])), "")

    def machine(self) -> str:
        """The environment in a line, as a reader wants it under a table."""
        env = self.environment
        gpus = ", ".join(g["name"] if isinstance(g, dict) else str(g) for g in env.get("gpus", []))
        parts = [
            gpus
            or f"{env.get('cpu', 'CPU')}, {env.get('cpu_usable', '?')} cores, {env.get('isa', '')}"
        ]
        if env.get("driver"):
            version = re.search(r"\d+\.[\d.]+", env["driver"])
            parts.append(f"driver {version[0] if version else env['driver']}")
        parts.append(f"tilewise {env.get('library_version', '?')} ({env.get('commit', '?')})")
        parts.append(str(env.get("date", ""))[:10])
        return "; ".join(parts)


def load(path: Path) -> Result:
    data = json.loads(path.read_text())
    rows = data["rows"]
    for row in rows:
        if row.get("precision") == "tf32":
            row["dtype"] = "tf32"  # another type to a reader
    return Result(str(path.relative_to(RESULTS)), data.get("environment", {}), rows)


def implementations(rows: list[Row]) -> list[str]:
    present = {row["implementation"] for row in rows}
    return [name for name in ORDER if name in present] + sorted(present - set(ORDER))


def shape_key(row: Row) -> tuple[Any, ...]:
    shape = (row["dtype"], row["causal"], row["head_dim"], row["batch"], row["heads"])
    return (*shape, row["seq_q"], row.get("seq_k", row["seq_q"]), row.get("threads") or 0)


def compare_table(rows: list[Row], field: str) -> list[str]:
    """One line per shape and pass, one column per implementation."""
    names = implementations(rows)
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    named = len({row["mask"] for row in rows}) > 2  # more than causal or not
    for row in rows:
        name = row["mask"] if named else ""
        cells.setdefault((name, *shape_key(row), row["pass"]), {})[row["implementation"]] = row
    several = len({row.get("threads") for row in rows}) > 1
    threads_head, threads_rule = (" threads |", "---:|") if several else ("", "")
    mask_head, mask_rule = (" function |", "---|") if named else ("", "")
    lines = [
        f"|{mask_head} dtype | causal | dim | batch | heads | length |{threads_head} pass | "
        + "".join(f"{name} | " for name in names).rstrip(),
        f"|{mask_rule}---|---|---:|---:|---:|---:|{threads_rule}---|" + "---:|" * len(names),
    ]
    for key in sorted(cells, key=str_sort):
        mask, dtype, causal, dim, batch, heads, seq, keys, threads, which = key
        values = " | ".join(number(cells[key].get(name), field) for name in names)
        yes = "yes" if causal else "no"
        length = seq if seq == keys else f"{seq} of {keys} keys"
        shape = f"{dtype} | {yes} | {dim} | {batch} | {heads} | {length}"
        if named:
            shape = f"{mask} | {shape}"
        if several:
            shape += f" | {threads}"
        lines.append(f"| {shape} | {PASS_NAMES[which]} | {values} |")
    return lines


def str_sort(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(str(part) if isinstance(part, str) else part for part in key)


def readme_table(result: Result) -> list[str]:
    """The seeds' question in one table: time and memory of eager beside flash, one head dim."""
    rows = [row for row in result.rows if row["head_dim"] == README_DIM]
    by = {(row["implementation"], row["seq_q"], row["pass"]): row for row in rows}
    lengths = sorted({row["seq_q"] for row in rows})
    lines = [
        "| length | eager forward, ms | flash forward, ms | eager backward, ms | flash backward, ms"
        " | eager peak, MiB | flash peak, MiB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for seq in lengths:
        values = [
            number(by.get((name, seq, which)), "ms_median")
            for which in ("fwd", "bwd")
            for name in ("eager", "flash")
        ]
        values += [number(by.get((name, seq, "bwd")), "peak_mib") for name in ("eager", "flash")]
        lines.append(f"| {seq} | " + " | ".join(values) + " |")
    first = rows[0]
    lines += [
        "",
        f"Batch {first['batch']}, one head, dim {README_DIM}, {first['dtype']}, not causal; "
        f"{result.machine()}. "
        f"From `bench/results/{result.name}`.",
    ]
    return lines


def grid_block(results: list[Result]) -> list[str]:
    """Plot and table of one card's grid."""
    grid = readme_grid(results)
    peers = peer_runs(results, grid.name)
    drawn = plot_path(grid).relative_to(ROOT)
    scaled = docs_gpu.scaled_peers(grid.rows, peers)
    return [
        f"![TFLOP/s of ours and the peers over the length]({drawn})",
        "",
        f"bf16, causal, dim 128, 16,384 tokens on one {grid.gpu()}; TFLOP/s, medians:",
        "",
        *docs_gpu.readme_table(grid.rows, peers),
        "",
        grid.machine() + ".",
        *(README_SCALED if scaled else []),
    ]


def plot(result: Result, path: Path) -> None:
    """Time and memory over the length, log-log, one line per implementation."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from docs_plots import COLORS, save_svg  # sets the salt of the plots' names, too

    dims = sorted({row["head_dim"] for row in result.rows})
    dim = README_DIM if README_DIM in dims else dims[0]
    rows = [r for r in result.rows if r["head_dim"] == dim and r["status"] == "ok"]
    causal = any(r["causal"] for r in rows)
    rows = [r for r in rows if r["causal"] == causal]
    panels = [
        ("fwd", "ms_median", "forward, ms"),
        ("bwd", "ms_median", "backward, ms"),
        ("bwd", "peak_mib", "peak memory, MiB"),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 3.4), constrained_layout=True)
    for axis, (which, field, title) in zip(axes, panels, strict=True):
        for name in implementations(rows):
            points = sorted(
                (r["seq_q"], r[field])
                for r in rows
                if r["implementation"] == name and r["pass"] == which
            )
            if points:
                axis.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    markersize=3.5,
                    label=name,
                    color=COLORS.get(name),
                )
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}" if x < 1024 else f"{x / 1024:.0f}k")
        axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("sequence length", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(True, which="major", alpha=0.3)
    axes[0].legend(fontsize=8, frameon=False)
    first = rows[0]
    figure.suptitle(
        f"batch {first['batch']}, {first['heads']} head, dim {dim}, {first['dtype']}, "
        f"{'causal' if causal else 'full'}, {result.environment['cpu']}",
        fontsize=10,
    )
    save_svg(figure, path)
    plt.close(figure)


def peer_runs(results: list[Result], name: str) -> list[list[Row]]:
    """Rows of each run of peers alone on the card of result `name`: those of its folder."""
    runs = str(Path(name).parent / "peers-")
    return [result.rows for result in results if result.name.startswith(runs)]


def readme_grid(results: list[Result]) -> Result:
    """The grid that the README shows: the card with the most cells that ran, or the later name."""
    grids = [result for result in results if Path(result.name).name == README_GRID]
    return max(grids, key=lambda r: (sum(row["status"] == "ok" for row in r.rows), r.name))


def gpu_plots(results: list[Result]) -> dict[str, Path]:
    """Draws what GPU results show best; the plot of each result that has one, by result name."""
    import docs_plots

    drawn: dict[str, Path] = {}
    seeds = ("seed-eager", "seed-fused", "seed-flash")  # one grid in three files
    for result in results:
        path = plot_path(result)
        stem = Path(result.name).stem
        if len({row["seq_q"] for row in result.rows}) < 2:
            continue
        if path.name not in SHOWN_PLOTS:
            continue
        if stem.startswith("grid"):
            title = "bf16, 16,384 tokens, hidden 2048, " + result.gpu()
            shown = result.rows + docs_gpu.scaled_peers(
                result.rows, peer_runs(results, result.name)
            )
            docs_plots.grid_plot(shown, title, path)
        elif stem.startswith("seed-flash"):
            title = f"batch 8, one head, dim {README_DIM}, float32, full, {result.gpu()}"
            one_card = [
                row
                for r in results
                if r.gpu() == result.gpu() and Path(r.name).stem.startswith(seeds)
                for row in r.rows
                if row["head_dim"] == README_DIM
            ]
            docs_plots.growth_plot(one_card, title, path)
        else:
            continue
        drawn[result.name] = path
    return drawn


def plot_path(result: Result) -> Path:
    return PLOTS / (result.name.removesuffix(".json").replace("/", "-") + ".svg")


def machine_page(folder: str, results: list[Result]) -> str:
    """Every table of one machine's results, beside the files."""
    lines = [
        f"# Results: {folder}",
        "",
        "`./tw docs` generates this page from the files in this folder.",
        "OOM: the problem exceeds the memory limit of the run.",
        "The preset of a run in `cases/presets` lists its problems.",
        "`bench/peers/card.sh` measures ours and the peers in one process on a GPU.",
        "It compares every output with float64 before timing.",
    ]
    lines += ceilings_pages(folder)
    told: set[str] = set()  # texts that stand once on the page
    for result in in_order(results):
        if result.gpu():
            lines += gpu_section(result, peer_runs(results, result.name), told)
        else:
            lines += cpu_section(result)
    return "\n".join(lines) + "\n"


def performance_page(results: list[Result], beside_peers: list[Result]) -> str:
    cards: dict[str, dict[str, list[Row]]] = {}
    for result in in_order(results):
        if result.gpu():
            folder = docs_summary.folder_of(result.name)
            cards.setdefault(folder, {})[Path(result.name).stem] = result.rows
    folders = {docs_summary.folder_of(result.name): "" for result in in_order(results)}
    everyday = [r for r in beside_peers if Path(r.name).stem == docs_cpu.EVERYDAY]
    own = {docs_cpu.EVERYDAY, docs_cpu.EVERYDAY_TWO, docs_cpu.PAGES}
    grids = [r for r in beside_peers if Path(r.name).stem not in own]
    told = [docs_cpu.everyday_sentence(result.rows) for result in everyday]
    cpu = [
        "The peer's time divided by ours, over the cases with one thread and eight heads.",
        " ".join(["[cpu.md](cpu.md) has every case.", *told]),
        "",
        *docs_cpu.summary_table([(r.environment.get("cpu", ""), r.rows) for r in grids]),
    ]
    return docs_summary.page(cards, folders, cpu)


def in_order(results: list[Result]) -> list[Result]:
    """GPUs first, of these the one that was measured last; by name otherwise."""
    last: dict[str, str] = {}
    for result in results:
        folder = result.name.partition("/")[0]
        last[folder] = max(last.get(folder, ""), str(result.environment.get("date", "")))
    newest = sorted(results, key=lambda r: last[r.name.partition("/")[0]], reverse=True)
    return sorted(newest, key=lambda r: not r.gpu())


def ceilings_pages(folder: str) -> list[str]:
    """What `tilewise info --measure` has seen of the machine of a folder."""
    lines: list[str] = []
    for path in sorted((RESULTS / folder).glob("*.json")):
        document = json.loads(path.read_text())
        if "ceilings" in document:
            name = str(path.relative_to(RESULTS))
            machine = Result(name, document["environment"], []).machine()
            lines += docs_gpu.ceilings_section(name, document, machine)
    return lines


def gpu_section(result: Result, peers: list[list[Row]], told: set[str]) -> list[str]:
    env = result.environment
    stem = Path(result.name).stem
    title = docs_gpu.TITLES.get(stem.rsplit("-", 1)[0], stem)
    lines = ["", f"## {title} ({result.name})", "", result.machine() + "."]
    for field in ("protocol", "note", "note_backward"):
        text = env.get(field, "")
        if text and text not in told:
            lines += ["", f"{field.partition('_')[0].capitalize()}: {text}."]
            told.add(text)
    tables = docs_gpu.section(result.name, result.rows, peers)
    return [*lines, "", *tables]


def cpu_section(result: Result) -> list[str]:
    lines = ["", f"## {result.name}", "", result.machine() + ".", ""]
    lines += ["Median milliseconds:", "", *compare_table(result.rows, "ms_median")]
    memory = [row for row in result.rows if row["pass"] != "fwd"]
    if any("peak_mib" in row for row in memory):
        lines += ["", "Peak MiB:", "", *compare_table(memory, "peak_mib")]
    return lines


def with_block(text: str, name: str, lines: list[str]) -> str:
    """Replaces what stands between the markers of block `name`."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if begin not in text or end not in text:
        sys.exit(f"docs: no block {begin} ... {end} to fill")
    head, rest = text.split(begin, 1)
    return head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, fail when a document is stale"
    )
    check = parser.parse_args().check
    # Other files are measurements of single variants, which the kernels' own .md files cite.
    paths = sorted(RESULTS.rglob("*.json"))
    results = [
        load(p) for p in paths if {"schema_version", "rows"} <= set(json.loads(p.read_text()))
    ]
    results = [result for result in results if result.rows and "status" in result.rows[0]]
    beside_peers = [result for result in results if docs_cpu.is_beside_peers(result.rows)]
    results = [result for result in results if result not in beside_peers]
    # Rows of ours beside each other are tests/plan's.
    beside_peers = [r for r in beside_peers if Path(r.name).stem != docs_cpu.EVERYDAY_ROWS]
    if not check:
        gpu_plots([result for result in results if result.gpu()])
        for result in results:
            if plot_path(result).name in SHOWN_PLOTS and not result.gpu():
                plot(result, plot_path(result))
    documents = {ROOT / "docs" / "performance.md": performance_page(results, beside_peers)}
    for folder in dict.fromkeys(docs_summary.folder_of(result.name) for result in results):
        of_folder = [r for r in results if docs_summary.folder_of(r.name) == folder]
        documents[RESULTS / folder / "README.md"] = machine_page(folder, of_folder)
    readme = ROOT / "README.md"
    documents[readme] = readme.read_text()
    cpu = ROOT / "docs" / "cpu.md"
    lines: list[str] = []
    everyday: list[str] = []
    pages: list[str] = []
    two: list[str] = []
    for result in beside_peers:
        if Path(result.name).stem == docs_cpu.PAGES:
            pages += docs_cpu.pages_block(result.machine(), result.rows)
            continue
        if Path(result.name).stem == docs_cpu.EVERYDAY_TWO:
            two += docs_cpu.everyday_two(result.machine(), result.rows)
            continue
        if Path(result.name).stem == docs_cpu.EVERYDAY:
            everyday += docs_cpu.everyday_block(result.machine(), result.environment, result.rows)
            continue
        lines += docs_cpu.block(result.machine(), result.environment, result.rows)
    documents[cpu] = with_block(cpu.read_text(), "bench-cpu", lines)
    documents[cpu] = with_block(documents[cpu], "cpu-everyday", [*everyday, *two])
    documents[cpu] = with_block(documents[cpu], "cpu-pages", pages)
    python = ROOT / "docs" / "python.md"
    documents[python] = python.read_text()
    for name, made in (
        ("training", docs_python.training(RESULTS)),
        ("host-time", docs_python.host_time(RESULTS)),
        ("suites", docs_python.suites(RESULTS, docs_python.DROP_INS)),
    ):
        documents[python] = with_block(documents[python], name, made)
    asam = ROOT / "docs" / "asam.md"
    documents[asam] = with_block(asam.read_text(), "asam", docs_asam.tables(RESULTS))
    expressions = ROOT / "docs" / "expressions.md"
    documents[expressions] = with_block(
        expressions.read_text(), "suites", docs_python.suites(RESULTS, ("attention-gym",))
    )
    for result in results:
        if result.name == README_RESULT:
            documents[readme] = with_block(documents[readme], "seeds", readme_table(result))
    documents[readme] = with_block(documents[readme], "grid", grid_block(results))
    stale = [
        path for path, text in documents.items() if not path.exists() or path.read_text() != text
    ]
    if check and stale:
        sys.exit(
            "docs: stale, run ./tw docs: "
            + ", ".join(str(path.relative_to(ROOT)) for path in stale)
        )
    for path in stale:
        documents[path].encode()
        path.write_text(documents[path])
        print(f"docs: wrote {path.relative_to(ROOT)}")
    if not stale:
        print("docs: up to date")


if __name__ == "__main__":
    main()
