"""ASAM's encoder as a Hugging Face model: saved and loaded, padded, refused."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tilewise.asam.hf import ASAMModel, ASAMModelConfig  # noqa: E402

SIZES: dict[str, Any] = {
    "dim": 32,
    "num_heads": 2,
    "dim_head": 16,
    "dropout": 0.0,
    "num_hidden_layers": 2,
    "vocab_size": 20,
}


@pytest.mark.parametrize(
    "options",
    [
        {"pattern_type": "auto", "block_size": 16, "causal": True},
        {"mode": "faithful", "pattern_type": "hierarchical"},
        {"mode": "faithful", "pattern_type": "clustered", "num_clusters": 5},
    ],
)
def test_a_saved_model_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = ASAMModel(ASAMModelConfig(**SIZES, **options)).eval()
    ids = torch.randint(20, (2, 40))
    with torch.no_grad():
        model(ids)  # published patterns make their parameters here
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
        y = model(ids).last_hidden_state
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = ASAMModel.from_pretrained(tmp_path).eval()
    assert again.config.layer() == model.config.layer()
    assert set(again.state_dict()) == set(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again(ids).last_hidden_state, y)


def test_padding_on_the_right_changes_no_token() -> None:
    torch.manual_seed(2)
    model = ASAMModel(ASAMModelConfig(**SIZES, pattern_type="local", block_size=16)).eval()
    ids = torch.randint(20, (1, 40))
    padded = torch.cat([ids, torch.zeros(1, 9, dtype=torch.long)], 1)
    mask = (torch.arange(49) < 40).long()[None]
    with torch.no_grad():
        alone = model(ids).last_hidden_state
        beside = model(padded, attention_mask=mask).last_hidden_state[:, :40]
    assert (alone - beside).abs().max() < 1e-5


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="block_size is 48"):
        ASAMModelConfig(**SIZES, block_size=48)
    model = ASAMModel(ASAMModelConfig(**{**SIZES, "vocab_size": 0}))
    with pytest.raises(ValueError, match="no embedding"):
        model(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="one of input_ids and inputs_embeds"):
        model()
