"""Plots of GPU results for the docs (SVG by matplotlib)."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

matplotlib.rcParams["svg.hashsalt"] = "tilewise"
matplotlib.rcParams["svg.fonttype"] = "none"  # text as text

Row = dict[str, Any]
LABELS = {
    "flash": "Tilewise",
    "fa3": "FlashAttention-3",
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "flex": "FlexAttention",
    "memeff": "memory-efficient (torch)",
    "torch-eager": "eager PyTorch",
    "torch-compile": "torch.compile",
    "fused": "Tilewise fused",
    "eager": "Tilewise eager",
    "baseline": "Tilewise baseline",
}
COLORS = {
    "flash": "#0b6e4f",
    "fused": "#e09f3e",
    "eager": "#9e2a2b",
    "baseline": "#6c757d",
    "fa2": "#3a86ff",
    "fa3": "#8338ec",
    "cudnn": "#76b900",
    "memeff": "#ff006e",
    "flex": "#fb5607",
    "torch-eager": "#b08968",
    "torch-compile": "#5c677d",
}


def _lines(axis: Any, rows: list[Row], field: str) -> None:  # noqa: ANN401
    """One line over the length for each implementation; ours on top and thicker."""
    for z, name in enumerate(reversed(LABELS)):
        best: dict[int, float] = {}
        scaled = False
        for row in rows:
            if row["implementation"] == name and row["status"] == "ok":
                scaled = scaled or "scaled" in row["kernel"]
                pick = max if field == "tflops" else min
                best[row["seq_q"]] = pick(row[field], best.get(row["seq_q"], row[field]))
        if best:
            points = sorted(best.items())
            axis.plot(
                [x for x, _ in points],
                [y for _, y in points],
                marker="o",
                markersize=3,
                linewidth=2.2 if name == "flash" else 1.2,
                linestyle="--" if scaled else "-",
                color=COLORS[name],
                label=LABELS[name],
                zorder=3 + z,
            )
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes, color="#6c757d")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0f}" if x < 1024 else f"{x / 1024:.0f}k")
    axis.tick_params(labelsize=8)
    axis.grid(True, which="major", alpha=0.3)


def _legend(figure: Figure, axes: Any, columns: int) -> None:  # noqa: ANN401
    found: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found[label] = handle
    names = [label for label in LABELS.values() if label in found]
    handles = [found[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncol=columns, frameon=False)


def save_svg(figure: Figure, path: Path) -> None:
    """Writes a plot: no date, two decimals, one line for each element."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", drawn.getvalue())
    text = re.sub(r'="[^"]*"', lambda match: " ".join(match[0].split()), text)
    text = re.sub(r">\s*\n\s*<(?=/|path|use|g|text|defs|clipPath|rect)", "><", text)
    text = re.sub(r"(</g>)(<g id=\"axes)", r"\1\n\2", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r"(<g id=\"(?:x|y)tick)", r"\n\1", text))


def grid_plot(rows: list[Row], title: str, path: Path) -> None:
    """TFLOP/s over the length: passes and masks down, head dims across."""
    rows = [row for row in rows if row["protocol"] == "burst"]
    dims = sorted({row["head_dim"] for row in rows})
    kinds = [("fwd", False), ("fwd", True), ("bwd", False), ("bwd", True)]
    names = {"fwd": "forward", "bwd": "backward"}
    figure = Figure(figsize=(10.5, 10), layout="constrained")
    axes = figure.subplots(len(kinds), len(dims), sharex=True, squeeze=False)
    for down, (which, causal) in enumerate(kinds):
        for across, dim in enumerate(dims):
            axis = axes[down][across]
            cells = [
                r
                for r in rows
                if r["pass"] == which and r["causal"] == causal and r["head_dim"] == dim
            ]
            _lines(axis, cells, "tflops")
            axis.set_ylim(bottom=0)
            kind = f"{names[which]}, {'causal' if causal else 'full'}, dim {dim}"
            axis.set_title(kind, fontsize=9.5)
            if across == 0:
                axis.set_ylabel("TFLOP/s", fontsize=9)
            if down == len(kinds) - 1:
                axis.set_xlabel("sequence length", fontsize=9)
    _legend(figure, axes.flat, 5)
    figure.suptitle(title, fontsize=11)
    save_svg(figure, path)


def growth_plot(rows: list[Row], title: str, path: Path) -> None:
    """Time and peak memory over the length, log-log, of rows of one problem family."""
    panels = [
        ("fwd", "ms_median", "forward, ms"),
        ("bwd", "ms_median", "backward, ms"),
        ("bwd", "peak_mib", "peak memory, MiB"),
    ]
    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels))
    for axis, (which, field, name) in zip(axes, panels, strict=True):
        _lines(axis, [r for r in rows if r["pass"] == which], field)
        axis.set_yscale("log")
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("sequence length", fontsize=9)
    _legend(figure, axes, 4)
    figure.suptitle(title, fontsize=11)
    save_svg(figure, path)
