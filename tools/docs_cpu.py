"""The table of docs/cpu.md: our CPU kernels beside their peers, from a result of bench/cpu."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
PEERS = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime", "eager": "eager"}
PASS_NAMES = {"fwd": "forward", "bwd": "backward"}


def is_beside_peers(rows: list[Row]) -> bool:
    """Whether these are rows of bench/cpu."""
    return bool(rows) and "probe_fraction" in rows[0]


def groups(rows: list[Row]) -> list[list[Row]]:
    """Contestants of one case, ours first: a row of flash begins a case."""
    out: list[list[Row]] = []
    for row in rows:
        if row["implementation"] == "flash":
            out.append([])
        out[-1].append(row)
    return out


def ratio(contestants: list[Row], name: str) -> str:
    """Time of a peer's best round over ours."""
    for row in contestants:
        if row["implementation"] == name:
            return f"{row['ms_min'] / contestants[0]['ms_min']:.2f}"
    return "-"


def table(rows: list[Row]) -> list[str]:
    names = " | ".join(PEERS.values())
    lines = [
        "| kernel | type | heads | length | dim | causal | threads | ms | of the probe "
        f"| {names} |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|" + "---:|" * len(PEERS),
    ]
    for contestants in groups([row for row in rows if row["seq_q"] > 1]):
        ours = contestants[0]
        shape = f"{ours['kernel']} | {ours['dtype']} | {ours['heads']} | {ours['seq_q']}"
        causal = "yes" if ours["causal"] else "no"
        shape += f" | {ours['head_dim']} | {causal} | {ours['threads']}"
        measured = f"{ours['ms_min']:.1f} | {ours['probe_fraction']:.2f}"
        ratios = " | ".join(ratio(contestants, name) for name in PEERS)
        lines.append(f"| {shape} | {measured} | {ratios} |")
    return [*lines, "", *decode_table(rows)]


def decode_table(rows: list[Row]) -> list[str]:
    names = " | ".join(PEERS.values())
    lines = [
        f"| one query | keys | dim | threads | ms | GB/s | of reading | {names} |",
        "|---|---:|---:|---:|---:|---:|---:|" + "---:|" * len(PEERS),
    ]
    for contestants in groups([row for row in rows if row["seq_q"] == 1]):
        ours = contestants[0]
        gbps = ours["gbps"] * ours["ms_median"] / ours["ms_min"]
        shape = f"{ours['dtype']} | {ours['seq_k']} | {ours['head_dim']} | {ours['threads']}"
        measured = f"{ours['ms_min']:.2f} | {gbps:.1f} | {gbps / ours['read_gbps']:.2f}"
        ratios = " | ".join(ratio(contestants, name) for name in PEERS)
        lines.append(f"| {shape} | {measured} | {ratios} |")
    return lines


def block(machine: str, environment: dict[str, Any], rows: list[Row]) -> list[str]:
    """What stands between the markers of docs/cpu.md."""
    peers = ", ".join(f"{name} {version}" for name, version in environment["peers"].items())
    return [f"{machine}. Peers: {peers}.", "", *table(rows)]
