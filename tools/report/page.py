"""The page: one HTML file with everything inside."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from .claims import FAILS, HOLDS, OPEN, PARTLY, Claim, Figures
from .data import Result, Row
from .plots import ON_CPU, QUESTIONS, REST, question_of, title_of

HERE = Path(__file__).parent
CLASSES = {HOLDS: "holds", PARTLY: "partly", FAILS: "fails", OPEN: "open"}
TABLE_FIELDS = {
    "implementation": "implementation",
    "kernel": "kernel",
    "dtype": "type",
    "causal": "causal",
    "batch": "batch",
    "heads": "heads",
    "seq_q": "length",
    "head_dim": "dim",
    "pass": "pass",
    "ms_median": "median, ms",
    "ms_std": "std, ms",
    "tflops": "TFLOP/s",
    "gbps": "GB/s",
    "live_mib": "live, MiB",
    "peak_mib": "peak, MiB",
    "status": "status",
}


def text(value: object) -> str:
    return html.escape(str(value))


def cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, float):
        shown = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return f'<td class="number">{shown}</td>'
    if isinstance(value, int):
        return f'<td class="number">{value}</td>'
    return f"<td>{text(value)}</td>"


def table(header: list[str], rows: list[list[object]]) -> str:
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


SEEDS = {
    "000": "attention under torch.compile",
    "001": "attention in eager PyTorch",
    "002": "a CUDA baseline and its bottleneck",
    "003": "an adaptive sparse attention layer",
    "004": "FlashAttention-2",
}


def environment(results: list[Result]) -> str:
    cards = []
    for result in results:
        facts = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in result.facts())
        cards.append(
            f'<article class="card"><h3>{text(result.name)}</h3><dl>{facts}</dl></article>'
        )
    return (
        f"<details><summary>{len(results)} files: machine, driver, commit, date</summary>"
        f'<div class="cards">{"".join(cards)}</div></details>'
    )


def figures(found: Figures) -> str:
    """A claim's measurements: the problem, a table, the files."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in found.header)
    lines = []
    for first, *rest in found.rows:
        numbers = "".join(f'<td class="number">{text(value)}</td>' for value in rest)
        lines.append(f'<tr><th scope="row">{text(first)}</th>{numbers}</tr>')
    return (
        f'<figure><figcaption>{text(found.caption)}</figcaption><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<p class="files">{text(", ".join(found.files))}</p></figure>'
    )


def claim_card(number: int, claim: Claim) -> str:
    parts = [
        ("Claim", claim.claim),
        ("Prediction", claim.prediction),
        ("Measurement", claim.measurement),
    ]
    facts = "".join(f"<dt>{name}</dt><dd>{text(words)}</dd>" for name, words in parts if words)
    return (
        f'<article class="card claim {CLASSES[claim.verdict]}" id="claim{number}"><header>'
        f"<h3>{text(claim.title)}</h3>"
        f'<span class="badge">{text(claim.verdict)}</span></header>'
        f'<p class="sentence">{text(claim.sentence)}</p><dl>{facts}</dl>'
        f"{''.join(map(figures, claim.figures))}</article>"
    )


def of_seeds(claims: list[Claim]) -> dict[str, list[tuple[int, Claim]]]:
    found: dict[str, list[tuple[int, Claim]]] = {}
    for number, claim in enumerate(claims):
        found.setdefault(claim.seed, []).append((number, claim))
    return found


def verdicts(claims: list[Claim]) -> str:
    """The first screen: every claim in a line, by seed."""
    blocks = []
    for seed, found in of_seeds(claims).items():
        lines = "".join(
            f'<li class="{CLASSES[claim.verdict]}"><a href="#claim{number}">{text(claim.title)}</a>'
            f'<span class="badge">{text(claim.verdict)}</span></li>'
            for number, claim in found
        )
        blocks.append(
            f'<section class="seed"><h3>{seed} <span>{text(SEEDS.get(seed, ""))}</span></h3>'
            f"<ul>{lines}</ul></section>"
        )
    return f'<div class="verdicts">{"".join(blocks)}</div>'


def told_counts(claims: list[Claim]) -> str:
    """ "2 hold, ..." of some claims."""
    found = [(verdict, sum(c.verdict == verdict for c in claims)) for verdict in CLASSES]
    return ", ".join(f"{count} {verdict}" for verdict, count in found if count)


def claim_cards(claims: list[Claim]) -> str:
    blocks = []
    for seed, found in of_seeds(claims).items():
        cards = "".join(claim_card(number, claim) for number, claim in found)
        blocks.append(
            f'<details class="fold" id="seed{seed}"><summary><strong>Seed {seed}</strong>: '
            f"{text(SEEDS.get(seed, ''))} <span>{told_counts([c for _, c in found])}</span>"
            f'</summary><div class="cards claims">{cards}</div></details>'
        )
    return "".join(blocks)


def claim_counts(claims: list[Claim]) -> str:
    """ "12 hold, ...": the page in a line."""
    counts = []
    for verdict, name in CLASSES.items():
        found = sum(claim.verdict == verdict for claim in claims)
        counts.append(
            f'<li class="{name}"><strong>{found}</strong> <span>{text(verdict)}</span></li>'
        )
    return f'<ul class="counts">{"".join(counts)}</ul>'


def measurement(index: int, result: Result, section: dict[str, Any]) -> str:
    """One file: a choice of shapes, its plots, its rows."""
    shapes = list(section["shapes"])
    options = "".join(f"<option>{text(label)}</option>" for label in shapes)
    most = max((len(panels) for panels in section["shapes"].values()), default=0)
    plots = "".join(f'<div class="plot" id="file{index}-{i}"></div>' for i in range(most))
    header = [TABLE_FIELDS[name] for name in TABLE_FIELDS]
    rows: list[list[object]] = [[row.get(name) for name in TABLE_FIELDS] for row in result.rows]
    chooser = (
        f'<label class="choose">Problem <select data-file="{index}">{options}</select></label>'
        if shapes
        else ""
    )
    return (
        f'<section class="file"><h3>{text(title_of(result))}</h3>'
        f'<p class="muted">{text(result.machine)}, <code>{text(result.name)}</code></p>'
        f'{chooser}<div class="plots">{plots}</div>'
        f"<details><summary>All {len(rows)} rows</summary>{table(header, rows)}</details></section>"
    )


def measurements(results: list[Result], sections: list[dict[str, Any]]) -> str:
    """Files by the question that they answer, a fold each."""
    titles = [*(title for title, _ in QUESTIONS), ON_CPU, REST]
    found: dict[str, list[str]] = {title: [] for title in titles}
    machines: dict[str, list[str]] = {title: [] for title in titles}
    for i, (result, section) in enumerate(zip(results, sections, strict=True)):
        question = question_of(result)
        found[question].append(measurement(i, result, section))
        machines[question].append(result.machine.split(",")[0])
    return "".join(
        f'<details class="fold"><summary><strong>{text(title)}</strong> <span>{len(files)} '
        f"file{'s' if len(files) != 1 else ''}, {text(', '.join(dict.fromkeys(machines[title])))}"
        f"</span></summary>{''.join(files)}</details>"
        for title, files in found.items()
        if files
    )


def render(
    results: list[Result],
    claims: list[Claim],
    sections: list[dict[str, Any]],
    rooflines: list[dict[str, Any]],
    accuracy: tuple[dict[str, Any], list[list[str]]] | None,
    older: list[list[str]],
) -> str:
    data: Row = {"files": sections, "rooflines": rooflines, "accuracy": None}
    errors = ""
    if accuracy:
        data["accuracy"] = accuracy[0]
        header = ["kernel", "rows", "median error", "90th percentile", "worst"]
        rows = table(header, [list(row) for row in accuracy[1]])
        errors = f"<details><summary>Errors by kernel</summary>{rows}</details>"
    if older:
        rows = table(["file", "rows", "largest factor"], older)
        errors += (
            f"<details><summary>Files of older kernels: peaks that today's plan does not have, by "
            f"more than 1 %</summary>{rows}</details>"
        )
    roofs = "".join(f'<div class="plot" id="roof{i}"></div>' for i in range(len(rooflines)))
    machines = "; ".join(dict.fromkeys(result.machine for result in results))
    # A script's text must not close its element.
    encoded = json.dumps(data).replace("</", "<\\/")
    parts = {
        "STYLE": (HERE / "page.css").read_text(),
        "MACHINES": text(machines),
        "COUNTS": claim_counts(claims),
        "CLAIMS": claim_cards(claims),
        "VERDICTS": verdicts(claims),
        "FILES": measurements(results, sections),
        "ROOFLINES": roofs,
        "ERRORS": errors,
        "ENVIRONMENT": environment(results),
        "DATA": encoded,
        "PLOTLY": get_plotlyjs(),
        "SCRIPT": (HERE / "page.js").read_text(),
    }
    page = (HERE / "page.html").read_text()
    for name, value in parts.items():
        page = page.replace(f"{{{{{name}}}}}", value, 1)
    return page
