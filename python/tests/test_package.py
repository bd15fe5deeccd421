"""The package as it is installed: its files, its version, its types."""

import ast
import importlib.metadata
import importlib.resources
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import tilewise
from tilewise import _attention, _spec


def test_version_is_the_library_s() -> None:
    assert tilewise.__version__ == importlib.metadata.version("tilewise")


def test_typed() -> None:
    files = importlib.resources.files("tilewise")
    assert files.joinpath("py.typed").is_file()
    assert files.joinpath("_native.pyi").is_file()


def test_stub_is_the_module_s() -> None:
    """Names and members of the compiled module, as its stub declares them."""
    from tilewise import _native

    text = importlib.resources.files("tilewise").joinpath("_native.pyi").read_text()
    declared: dict[str, set[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            inner = node.body if isinstance(node, ast.ClassDef) else []
            declared[node.name] = {m.name for m in inner if isinstance(m, ast.FunctionDef)}
    functions = {n for n in dir(_native) if callable(getattr(_native, n)) and n[0] != "_"}
    assert set(declared) == functions
    for name in ("Plan", "KernelInfo"):
        assert declared[name] == {m for m in dir(getattr(_native, name)) if m[0] != "_"}


@pytest.mark.parametrize("name", ["flash_attn", "hf", "sdpa"])
def test_modules_come_with_the_package(name: str) -> None:
    """`import tilewise` is enough; what needs torch is imported when it is asked for."""
    pytest.importorskip("transformers" if name == "hf" else "torch")
    code = f"import tilewise; assert tilewise.{name}.__name__ == 'tilewise.{name}'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_library_is_inside() -> None:
    from tilewise import _native

    assert Path(_native.__file__).parent == Path(tilewise.__file__).parent


def test_licences_of_what_the_binary_contains() -> None:
    """BSD and MIT ask for their text beside a binary."""
    texts = importlib.metadata.distribution("tilewise").files or []
    names = {path.name: path.read_text() for path in texts if "licenses" in path.parts}
    assert set(names) == {"LICENSE", "nanobind.txt", "robin-map.txt"}
    assert "Wenzel Jakob" in names["nanobind.txt"] and "MIT License" in names["robin-map.txt"]


def test_kernel_table() -> None:
    kernels = tilewise.kernels()
    assert {k.device for k in kernels} == {"cpu", "cuda"}
    assert {k.implementation for k in kernels} >= {"flash", "reference"}
    assert {k.backward for k in kernels} == {False, True}


def test_spec_has_its_fields_in_order() -> None:
    marks = {name: object() for name in ("mask", "bias", "alibi_slopes", "sinks", "key_lengths")}
    spec = _spec.make_spec(**marks, seed="seed", layout="bhsd", kernel="kernel")
    assert len(spec) == len(_spec.FIELDS)
    fields = dict(zip(_spec.FIELDS, spec, strict=True))
    for name, mark in {**marks, "seed": "seed", "layout": "bhsd", "kernel": "kernel"}.items():
        assert fields[name] is mark


def test_every_option_of_attention_reaches_the_spec() -> None:
    options = set(inspect.signature(tilewise.attention).parameters)
    spec = set(inspect.signature(_spec.make_spec).parameters)
    functions = {"score_mod", "mask_mod"}
    made = {"dropout_seed", "seqused_q", "seqused_k"}  # the spec has what comes of them
    assert options - spec == {"q", "k", "v", "return_lse", "fallback", *made, *functions}
    assert spec - options == MADE


# Fields of a spec that attention makes of other options.
MADE = {"seed", "score_expression", "mask_expression", "captures"}


def test_options_reach_the_spec_under_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """attention gives them by position."""
    seen: dict[str, object] = {}

    def record(*given: object) -> None:
        seen.update(inspect.signature(make).bind(*given).arguments)
        raise StopIteration

    make = _spec.make_spec
    monkeypatch.setattr(_attention, "make_spec", record)
    # Dropout's rate decides whether a seed is drawn: a number.
    options = {name: name for name in inspect.signature(make).parameters if name not in MADE}
    with pytest.raises(StopIteration):
        tilewise.attention(None, None, None, **{**options, "dropout_p": 0.0})
    made = {"seed": None, "score_expression": "", "mask_expression": "", "captures": ()}
    assert seen == {**options, "dropout_p": 0.0, **made}


def _alone(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["tilewise", "tilewise.sdpa", "tilewise.hf", "torch"])
def test_operators_are_registered_in_either_order(first: str) -> None:
    for module in ("torch", *(["transformers"] if first == "tilewise.hf" else [])):
        pytest.importorskip(module)
    code = f"import {first}, tilewise, torch; print(torch.ops.tilewise.attention_forward)"
    assert _alone(code) == "tilewise.attention_forward"


def test_a_torch_that_is_none_is_no_torch() -> None:
    said = _alone("""
import sys
sys.modules["torch"] = None
import numpy, tilewise
x = numpy.ones((1, 2, 1, 4), "float32")
print(tilewise.attention(x, x, x).shape)
try:
    tilewise.hf
except ImportError as error:
    print("torch" in str(error))
""")
    assert said.split("\n") == ["(1, 2, 1, 4)", "True"]
