"""ASAM's encoder as a Hugging Face model: from_pretrained, save_pretrained.

from tilewise.asam.hf import ASAMModel, ASAMModelConfig
model = ASAMModel(ASAMModelConfig(vocab_size=1000, dim=256, num_heads=4, num_hidden_layers=2))
y = model(input_ids, attention_mask).last_hidden_state      # (B, n, 256)
"""

from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ._config import ASAMConfig
from ._layers import ASAMEncoder, ASAMLayer
from ._patterns import FixedPattern

LAYER_FIELDS = [field.name for field in fields(ASAMConfig)]


class ASAMModelConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The fields of ASAMConfig, and what stands around the layers.

    vocab_size: token numbers of the embedding; 0: the model takes inputs_embeds alone.
    num_hidden_layers: layers of the stack. pattern_lengths: lengths that the published patterns
    have parameters for; save_pretrained() notes them. Raises ValueError as ASAMConfig does.
    """

    model_type = "tilewise_asam"

    def __init__(
        self,
        vocab_size: int = 0,
        num_hidden_layers: int = 6,
        pattern_lengths: list[int] | None = None,
        **options: Any,
    ) -> None:
        layer = ASAMConfig(**{n: options.pop(n) for n in LAYER_FIELDS if n in options})
        for name, value in asdict(layer).items():
            setattr(self, name, value)
        self.vocab_size = vocab_size
        self.num_hidden_layers = num_hidden_layers
        self.pattern_lengths = pattern_lengths or []
        super().__init__(**options)

    @property
    def hidden_size(self) -> int:
        """transformers' name of dim."""
        dim: int = self.dim
        return dim

    def layer(self) -> ASAMConfig:
        """The configuration of each layer."""
        return ASAMConfig(**{name: getattr(self, name) for name in LAYER_FIELDS})


class ASAMModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Embedding (where there is a vocabulary) and ASAMEncoder.

    forward: input_ids (B, n), or inputs_embeds (B, n, dim); attention_mask (B, n), 1 = a token,
    with the padding on the right. last_hidden_state: (B, n, dim).
    """

    config_class = ASAMModelConfig
    base_model_prefix = "asam"

    def __init__(self, config: ASAMModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.dim) if config.vocab_size else None
        self.encoder = ASAMEncoder(config.layer(), config.num_hidden_layers)
        # from_pretrained() makes the model without memory, and masks are no weights.
        with torch.device("cpu"):
            for layer in self._layers():
                for n in config.pattern_lengths:
                    layer.pattern(n, torch.device("cpu"))
        self.post_init()  # type: ignore[no-untyped-call]

    def _layers(self) -> list[ASAMLayer]:
        return [layer for layer in self.encoder.layers if isinstance(layer, ASAMLayer)]

    def _init_weights(self, module: nn.Module) -> None:
        """Modules draw their own first weights; masks, which no file holds, are made again."""
        if isinstance(module, FixedPattern):
            module.renew()

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        """As transformers', with the lengths whose patterns have parameters by now."""
        names = {name for layer in self._layers() for name in layer._pattern_modules}
        self.config.pattern_lengths = sorted(int(name.rpartition("_")[2]) for name in names)
        super().save_pretrained(*arguments, **options)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> BaseModelOutput:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("one of input_ids and inputs_embeds must be given")
        x = inputs_embeds
        if input_ids is not None:
            if self.embedding is None:
                raise ValueError("input_ids is given: vocab_size is 0, the model has no embedding")
            x = self.embedding(input_ids)
        mask = lengths = None
        if attention_mask is not None and self.config.mode == "adaptive":
            lengths = attention_mask.sum(-1, dtype=torch.int32)
        elif attention_mask is not None:
            mask = attention_mask.bool()[:, None, None, :]
        y = self.encoder(x, mask, key_lengths=lengths)
        return BaseModelOutput(last_hidden_state=y)
