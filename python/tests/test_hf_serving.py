"""transformers' servers on tilewise: continuous batching, and the caches of generate."""

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilewise.hf  # noqa: E402
from oracle import paper  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import modeling_flash_attention_utils  # noqa: E402

NEW_TOKENS = 10
PROMPTS = (5, 17, 3, 30)


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    try:
        tilewise.hf.register(continuous_batching=True)
    except NotImplementedError as error:
        pytest.skip(str(error))


def test_an_older_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.17.0")
    with pytest.raises(NotImplementedError, match="transformers is 5.17.0, expected 5.21"):
        tilewise.hf.register(continuous_batching=True)
    tilewise.hf.register()


def decoder(kind: str, device: str) -> Any:
    torch.manual_seed(0)
    common = {
        "vocab_size": 211,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))
    else:
        config = transformers.MistralConfig(sliding_window=8, **common)
        model = transformers.MistralForCausalLM(config)
    return model.to(device).eval()


def greedy(model: Any, prompt: Tensor, **options: Any) -> list[int]:
    written = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, **options)
    tokens: list[int] = written[0, prompt.shape[1] :].tolist()
    return tokens


@pytest.mark.parametrize("kind", ["llama", "sliding window"])
def test_continuous_batching_writes_what_eager_writes(
    device: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder(kind, device)
    prompts = [torch.randint(1, 211, (length,)).tolist() for length in PROMPTS]
    model.set_attn_implementation("eager")
    wanted = [greedy(model, torch.tensor([prompt], device=device)) for prompt in prompts]
    calls: list[str] = []

    def watched(name: str) -> Any:
        function = getattr(tilewise.hf, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return function(*arguments, **options)

        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return call

    for name in ("_flash_varlen", "_flash_with_kvcache"):
        monkeypatch.setattr(tilewise.hf, name, watched(name))
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    model.set_attn_implementation("tilewise_flash_2")
    results = model.generate_batch(
        prompts,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=24
        ),
    )
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    order = sorted(results, key=lambda request: int(request.rsplit("_", 1)[-1]))
    assert [results[request].generated_tokens for request in order] == wanted
    assert "_flash_varlen" in calls  # 30 + 17 + ... prompt tokens come 24 at a time


def test_decoding_over_pages(device: str) -> None:
    """What transformers calls where it decodes on a GPU, with a window and sinks."""
    heads, kv_heads, dim, size = 4, 2, 16, 8
    filled = [11, 0, 5]
    table = torch.tensor([[3, 0], [1, 7], [5, 2]], dtype=torch.int32)
    pools = torch.randn(2, 9, size, kv_heads, dim)
    q, (k, v) = torch.randn(1, 3, heads, dim), torch.randn(2, 1, 3, kv_heads, dim)
    sinks = torch.randn(heads)
    parts = []
    for b, length in enumerate(filled):
        both = (pool[table[b].long()].flatten(0, 1)[:length] for pool in pools)
        parts.append([torch.cat([old, x[:, b]]) for old, x in zip(both, (k, v), strict=True)])
    ends = torch.tensor([n + 1 for n in filled]).cumsum(0).tolist()
    given = pools.to(device)
    try:
        out = modeling_flash_attention_utils._flash_attention_forward(
            *(t.to(device) for t in (q, k, v)),
            attention_mask=None,
            query_length=3,
            is_causal=True,
            sliding_window=2,
            s_aux=sinks.to(device),
            softcap=5.0,
            attn_implementation="tilewise_flash_2",
            cu_seq_lens_k=torch.tensor([0, *ends], dtype=torch.int32, device=device),
            max_length_q=1,
            max_length_k=1,
            block_table=table.to(device),
            k_cache=given[0],
            v_cache=given[1],
        )
    except NotImplementedError as error:
        if device == "cpu":
            raise
        pytest.skip(f"on {device}: {error}")
    for b, (keys, values) in enumerate(parts):
        exact, _ = paper(
            q[:, b : b + 1],
            keys[None],
            values[None],
            causal=True,
            window=(1, None),
            softcap=5.0,
            sinks=sinks,
        )
        torch.testing.assert_close(out[0, b].cpu().double(), exact[0, 0], atol=1e-5, rtol=0)
        page, row = table[b, filled[b] // size].item(), filled[b] % size
        assert torch.equal(given[0, page, row].cpu(), k[0, b])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["llama", "sliding window"])
def test_caches_of_generate(device: str, kind: str, cache: str, compiled: bool) -> None:
    """Static caches under a compiler; a sliding window has a cache of that many keys."""
    if compiled and cache == "dynamic":
        pytest.skip("transformers compiles static caches")
    model = decoder(kind, device)
    prompt = torch.randint(1, 211, (1, 19), device=device)
    written = {}
    for implementation in ("eager", "tilewise"):
        model.set_attn_implementation(implementation)
        forward = model.forward
        if compiled and implementation == "tilewise":
            model.forward = torch.compile(forward, backend="aot_eager", dynamic=False)
        try:
            written[implementation] = greedy(
                model, prompt, cache_implementation=cache, disable_compile=True
            )
        except NotImplementedError as error:
            if device == "cpu":
                raise
            pytest.skip(f"on {device}: {error}")
        model.forward = forward
    assert written["eager"] == written["tilewise"]


def test_other_names_are_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(tilewise.hf, "_transformers_imports", lambda *a, **b: asked.append((a, b)))
    modeling_flash_attention_utils._lazy_imports("flash_attention_2", None, allow_all_kernels=True)
    assert asked == [(("flash_attention_2", None), {"allow_all_kernels": True})]
