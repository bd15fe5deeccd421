"""The C++ layers (`tilewise layer run`) against the torch modules, on the same weights: outputs,
gradients of the input and of every parameter."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tilewise.asam import (  # noqa: E402
    ASAMConfig,
    ASAMEncoder,
    ASAMLayer,
    EfficientASAMLayer,
    FlashASAMLayer,
)
from torch import Tensor, nn  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CLI = Path(os.environ.get("TILEWISE_CLI", ROOT / "build" / "release" / "tilewise"))
pytestmark = pytest.mark.skipif(not CLI.exists(), reason="the command line is not built")

SIZES: dict[str, Any] = {"dim": 48, "num_heads": 3, "dim_head": 16, "dropout": 0.0}
CASES: dict[str, tuple[ASAMConfig | None, list[str]]] = {
    "flash": (None, ["--heads", "3"]),
    "local": (ASAMConfig(mode="faithful", pattern_type="local", **SIZES), []),
    "strided": (
        ASAMConfig(mode="faithful", pattern_type="strided", **SIZES),
        ["--pattern", "strided"],
    ),
    "clustered": (
        ASAMConfig(mode="faithful", pattern_type="clustered", num_clusters=10, **SIZES),
        [],
    ),
    "hierarchical": (ASAMConfig(mode="faithful", pattern_type="hierarchical", **SIZES), []),
    "ungated": (
        ASAMConfig(mode="faithful", pattern_type="local", use_adaptive_gate=False, **SIZES),
        ["--heads", "3"],
    ),
    "adaptive local": (
        ASAMConfig(pattern_type="local", window_size=40, block_size=16, causal=True, **SIZES),
        ["--window", "40", "--block", "16", "--causal"],
    ),
    "adaptive strided": (
        ASAMConfig(pattern_type="strided", stride=48, block_size=16, **SIZES),
        ["--pattern", "strided", "--stride", "48", "--block", "16"],
    ),
    "adaptive clustered": (
        ASAMConfig(pattern_type="clustered", num_clusters=5, block_size=16, **SIZES),
        ["--pattern", "clustered", "--block", "16"],
    ),
    "adaptive hierarchical": (
        ASAMConfig(pattern_type="hierarchical", block_size=16, causal=True, **SIZES),
        ["--pattern", "hierarchical", "--block", "16", "--causal"],
    ),
    "adaptive selected": (
        ASAMConfig(pattern_type="selected", density=0.3, block_size=16, **SIZES),
        ["--pattern", "selected", "--density", "0.3", "--block", "16"],
    ),
    "efficient": (None, ["--heads", "3", "--efficient", "--window", "32"]),
}
# Padded batches with a mask for each head. Published layers have a mask alone, which hides padding.
RAGGED = {
    name: CASES[name]
    for name in ("flash", "efficient", "local", "hierarchical", "ungated", "adaptive local")
} | {name: CASES[name] for name in ("adaptive clustered", "adaptive selected")}
LENGTHS = (70, 41)


def make(case: str) -> nn.Module:
    """The torch layer with weights away from their first values, nothing dropped."""
    torch.manual_seed(3)
    config = CASES[case][0]
    if config is not None:
        layer: nn.Module = ASAMLayer(config)
    elif case == "efficient":
        layer = EfficientASAMLayer(48, 3, window_size=32, dropout=0.0)
    else:
        layer = FlashASAMLayer(48, 3, dropout=0.0)
    layer(torch.randn(1, 70, 48))  # published patterns make their parameters here
    for part in layer.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    with torch.no_grad():
        for p in layer.parameters():
            p += 0.05 * torch.randn_like(p)
    return layer


def command(*arguments: object) -> None:
    done = subprocess.run(
        [str(CLI), "layer", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def close(ours: Tensor, theirs: Tensor, what: str) -> None:
    theirs = theirs.detach()
    size = max(1.0, float(theirs.abs().max()))
    assert float((ours - theirs).abs().max()) <= 1e-4 * size, what


@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_torch_layer(case: str, tmp_path: Path) -> None:
    compare(case, CASES[case][1], {}, tmp_path)


@pytest.mark.parametrize("case", RAGGED)
def test_padded_batches_equal_torch(case: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(6)
    mask = torch.rand(2, 3, 70, 70, generator=generator) > 0.1
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    files = {"--mask": tmp_path / "mask.npy", "--lengths": tmp_path / "lengths.npy"}
    numpy.save(files["--mask"], mask.numpy())
    numpy.save(files["--lengths"], lengths.numpy())
    if case.startswith("adaptive"):
        options = {"mask": mask, "key_lengths": lengths}
    else:
        options = {"mask": mask & (torch.arange(70) < lengths[:, None])[:, None, None]}
    flags = [*RAGGED[case][1], *(str(word) for pair in files.items() for word in pair)]
    compare(case, flags, options, tmp_path)


def compare(case: str, flags: list[str], options: dict[str, Tensor], tmp_path: Path) -> None:
    layer = make(case)
    model, x_file, dy_file = tmp_path / "model.safetensors", tmp_path / "x.npy", tmp_path / "dy.npy"
    safetensors.save_file(layer.state_dict(), model)
    x, dy = torch.randn(2, 70, 48, requires_grad=True), torch.randn(2, 70, 48)
    numpy.save(x_file, x.detach().numpy())
    numpy.save(dy_file, dy.numpy())
    y = layer.train()(x, **options)[0]
    (y * dy).sum().backward()
    ours = {name: tmp_path / name for name in ("y.npy", "dx.npy", "gradients.safetensors")}
    command(
        *(model, x_file, "-o", ours["y.npy"], "--dy", dy_file, "--dx", ours["dx.npy"]),
        *("--gradients", ours["gradients.safetensors"], *flags),
    )
    close(torch.from_numpy(numpy.load(ours["y.npy"])), y, "y")
    close(torch.from_numpy(numpy.load(ours["dx.npy"])), x.grad, "dx")
    gradients = safetensors.load_file(ours["gradients.safetensors"])
    for name, p in layer.named_parameters():
        close(gradients[name], torch.zeros_like(p) if p.grad is None else p.grad, name)
    assert set(gradients) == set(layer.state_dict())

    with torch.no_grad():
        y = layer.eval()(x, **options)[0]
    command(model, x_file, "-o", ours["y.npy"], *flags)
    close(torch.from_numpy(numpy.load(ours["y.npy"])), y, "y of inference")


def test_equal_to_the_torch_encoder(tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = ASAMConfig(pattern_type="auto", block_size=16, **SIZES)
    encoder = ASAMEncoder(config, num_layers=3).eval()
    model, x_file, y_file = tmp_path / "m.safetensors", tmp_path / "x.npy", tmp_path / "y.npy"
    safetensors.save_file(encoder.state_dict(), model)
    x = torch.randn(2, 90, 48)
    numpy.save(x_file, x.numpy())
    command(model, x_file, "-o", y_file, "--block", 16, "--pattern", "auto")
    with torch.no_grad():
        y = encoder(x)
    close(torch.from_numpy(numpy.load(y_file)), y, "y")
