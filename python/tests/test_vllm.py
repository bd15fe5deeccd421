"""tilewise.vllm against a stub of vLLM's interface: steps of an engine over pages."""

import enum
import importlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

torch = pytest.importorskip("torch")

from oracle import paper  # noqa: E402
from torch import Tensor  # noqa: E402

T = TypeVar("T")
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 4


def interface() -> dict[str, Any]:
    """The names that the module takes from vllm.v1.attention.backend, as small as they can be."""

    class AttentionType(str, enum.Enum):
        DECODER = "decoder"
        ENCODER_ONLY = "encoder_only"

    class AttentionCGSupport(enum.Enum):
        ALWAYS = 3
        UNIFORM_BATCH = 2
        UNIFORM_SINGLE_TOKEN_DECODE = 1
        NEVER = 0

    class MultipleOf:
        def __init__(self, base: int) -> None:
            self.base = base

    class AttentionMetadata:
        pass

    class AttentionBackend:
        pass

    class AttentionImpl(Generic[T]):
        pass

    class AttentionMetadataBuilder(Generic[T]):
        def __init__(self, spec: Any, layers: list[str], config: Any, device: Any) -> None:
            self.kv_cache_spec, self.layer_names = spec, layers
            self.vllm_config, self.device = config, device

    @dataclass
    class CommonAttentionMetadata:
        query_start_loc: Tensor
        seq_lens: Tensor
        num_reqs: int
        num_actual_tokens: int
        max_query_len: int
        max_seq_len: int
        block_table_tensor: Tensor
        causal: Any = True

    return {name: thing for name, thing in locals().items() if isinstance(thing, type)}


class Registry(enum.Enum):
    """AttentionBackendEnum with the one name that plug-ins take."""

    CUSTOM = None

    def is_overridden(self) -> bool:
        return bool(registered)


registered: list[tuple[Registry, str]] = []


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """tilewise.vllm, with the stub in vLLM's place where that is not installed."""
    try:
        importlib.import_module("vllm.v1.attention.backend")
    except ImportError:
        names = ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends")
        for name in names:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        backend = ModuleType("vllm.v1.attention.backend")
        vars(backend).update(interface())
        registry = ModuleType("vllm.v1.attention.backends.registry")
        registered.clear()
        vars(registry).update(
            AttentionBackendEnum=Registry, register_backend=lambda *a: registered.append(a)
        )
        monkeypatch.setitem(sys.modules, backend.__name__, backend)
        monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.delitem(sys.modules, "tilewise.vllm", raising=False)
    yield importlib.import_module("tilewise.vllm")
    sys.modules.pop("tilewise.vllm", None)


class Engine:
    """Requests with pages in any order, and a layer of attention."""

    def __init__(self, vllm: Any, device: str, newer: bool = True, **options: Any) -> None:
        self.vllm, self.device = vllm, device
        backend = vllm.TilewiseBackend
        self.layer = backend.get_impl_cls()(HEADS, DIM, DIM**-0.5, KV_HEADS, **options)
        shape = (40, KV_HEADS, PAGE, 2 * DIM)
        if not newer:
            shape = backend.get_kv_cache_shape(40, PAGE, KV_HEADS, DIM)
        self.cache = torch.full(shape, torch.nan, device=device)
        spec = SimpleNamespace(block_size=PAGE)
        config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8))
        self.builder = backend.get_builder_cls()(spec, ["layer"], config, torch.device(device))
        self.table = torch.randperm(40)[:36].reshape(3, 12).int().to(device)
        self.keys: list[Tensor] = [torch.empty(0, KV_HEADS, DIM) for _ in range(3)]
        self.values = [k.clone() for k in self.keys]

    def step(self, rows: list[int], causal: bool = True, **meaning: Any) -> None:
        """`rows` new tokens of each request, each compared with the formula."""
        starts = torch.tensor([0, *rows]).cumsum(0)
        total = int(starts[-1])
        lengths = [len(k) + n for k, n in zip(self.keys, rows, strict=True)]
        common = sys.modules["vllm.v1.attention.backend"].CommonAttentionMetadata(
            query_start_loc=starts.int().to(self.device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=self.device),
            num_reqs=3,
            num_actual_tokens=total,
            max_query_len=max(rows),
            max_seq_len=max(lengths),
            block_table_tensor=self.table,
            causal=causal,
        )
        meta = self.builder.build(0, common)
        q = torch.randn(total + 2, HEADS, DIM)  # two of padding
        k, v = torch.randn(2, total + 2, KV_HEADS, DIM)
        output = torch.full((total + 2, HEADS * DIM), torch.nan, device=self.device)
        try:
            given = self.layer.forward(
                None, *(t.to(self.device) for t in (q, k, v)), self.cache, meta, output
            )
        except NotImplementedError as error:
            if self.device == "cpu":
                raise
            pytest.skip(f"on {self.device}: {error}")
        assert given is output and bool(output[total:].isnan().all())
        out = output[:total].cpu().unflatten(-1, (HEADS, DIM)).double()
        for b, (begin, end) in enumerate(itertools.pairwise(starts)):
            part = slice(int(begin), int(end))
            self.keys[b] = torch.cat([self.keys[b], k[part]])
            self.values[b] = torch.cat([self.values[b], v[part]])
            own = (q[None, part], self.keys[b][None], self.values[b][None])
            exact, _ = paper(*own, causal=causal, **meaning)
            torch.testing.assert_close(out[part], exact[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("newer", [True, False])
def test_prefill_chunks_and_decoding(vllm: Any, device: str, newer: bool) -> None:
    engine = Engine(vllm, device, newer)
    engine.step([9, 3, 14])  # prompts
    engine.step([1, 1, 1])  # decoding
    engine.step([7, 1, 2])  # a chunk beside decoding
    engine.step([3, 3, 3])  # drafts
    assert engine.builder._cudagraph_support.name == "UNIFORM_BATCH"


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        ({"sliding_window": 6}, {"window": (5, None)}),
        ({"logits_soft_cap": 3.0}, {"softcap": 3.0}),
        ({"alibi_slopes": [0.5, 0.25, 0.1, 0.05]}, {"alibi_slopes": [0.5, 0.25, 0.1, 0.05]}),
        ({"sinks": [0.5, -1.0, 2.0, 0.0]}, {"sinks": [0.5, -1.0, 2.0, 0.0]}),
    ],
)
def test_options_of_layers(
    vllm: Any, device: str, options: dict[str, Any], meaning: dict[str, Any]
) -> None:
    meaning = {n: torch.tensor(x) if isinstance(x, list) else x for n, x in meaning.items()}
    if "sinks" in options:
        options = {"sinks": torch.tensor(options["sinks"], device=device)}
    engine = Engine(vllm, device, **options)
    engine.step([9, 3, 14], **meaning)
    engine.step([1, 1, 1], **meaning)


def test_a_captured_step_finds_its_metadata(vllm: Any) -> None:
    """What build() computes lies at one place, and is the last step's."""
    engine = Engine(vllm, "cpu")
    engine.step([9, 3, 14])
    common = sys.modules["vllm.v1.attention.backend"].CommonAttentionMetadata
    found = []
    for rows, lengths in ((1, [10, 4, 15]), (2, [12, 6, 17])):
        starts = torch.arange(4, dtype=torch.int32) * rows
        lengths = torch.tensor(lengths, dtype=torch.int32)
        meta = engine.builder.build(0, common(starts, lengths, 3, 3 * rows, rows, 40, engine.table))
        found.append(meta.filled)
        assert torch.equal(meta.filled, lengths - rows)
    assert found[0].data_ptr() == found[1].data_ptr()


def test_without_a_mask(vllm: Any, device: str) -> None:
    Engine(vllm, device).step([5, 2, 8], causal=False)


def test_a_layer_that_shares_another_s_cache_writes_nothing(vllm: Any) -> None:
    engine = Engine(vllm, "cpu")
    engine.step([9, 3, 14])
    before = engine.cache.clone()
    engine.layer.kv_sharing_target_layer_name = "another"
    meta = SimpleNamespace(
        num_actual_tokens=3,
        uniform_rows=1,
        max_query_len=1,
        max_seq_len=40,
        query_start_loc=torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        seq_lens=torch.tensor([9, 3, 14], dtype=torch.int32),
        filled=torch.tensor([8, 2, 13], dtype=torch.int32),
        block_table=engine.table,
        causal=True,
    )
    q, k = torch.randn(3, HEADS, DIM), torch.randn(3, KV_HEADS, DIM)
    output = torch.empty(3, HEADS, DIM)
    engine.layer.forward(None, q, k, k, engine.cache, meta, output)
    assert torch.equal(engine.cache.nan_to_num(), before.nan_to_num())
    exact, _ = paper(q[None, :1], engine.keys[0][None], engine.values[0][None], causal=True)
    torch.testing.assert_close(output[:1].double(), exact[0], atol=1e-5, rtol=0)


def test_before_there_is_a_cache(vllm: Any) -> None:
    layer = vllm.TilewiseImpl(HEADS, DIM, 0.25, KV_HEADS)
    output = torch.full((2, HEADS, DIM), torch.nan)
    q = torch.zeros(2, HEADS, DIM)
    assert torch.equal(layer.forward(None, q, q, q, q, None, output), torch.zeros_like(output))


def test_what_it_says_of_itself(vllm: Any) -> None:
    backend = vllm.TilewiseBackend
    assert backend.supports_head_size(256) and not backend.supports_head_size(257)
    assert backend.supports_sink() and backend.supports_non_causal()
    assert backend.supports_sliding_window()
    assert [s.base for s in backend.get_supported_kernel_block_sizes()] == [1]
    assert [s.base for s in backend.get_supported_kernel_block_sizes(SimpleNamespace())] == [1]
    assert backend.supports_compute_capability(SimpleNamespace(major=9, minor=0))
    assert not backend.supports_compute_capability(SimpleNamespace(major=7, minor=5))
    for options in ({"attn_type": "encoder_only"}, {"kv_cache_dtype": "fp8"}):
        with pytest.raises(NotImplementedError, match=next(iter(options.values()))):
            vllm.TilewiseImpl(HEADS, DIM, 0.25, KV_HEADS, **options)


def test_registers_once(vllm: Any) -> None:
    vllm.register()
    vllm.register()
    assert [path for _, path in registered] == ["tilewise.vllm.TilewiseBackend"]
