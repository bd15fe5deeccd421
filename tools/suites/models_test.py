"""Small models of transformers under the tests that it holds for every model."""

import unittest
from typing import Any

import tilewise.hf
import torch
import transformers

from tests.test_modeling_common import ModelTesterMixin, ids_tensor

tilewise.hf.register("sdpa")

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
# By the name of a configuration: its classes, and what it takes besides.
FAMILIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "Llama": (("LlamaModel", "LlamaForCausalLM"), GROUPED),
    "Mistral": (("MistralModel", "MistralForCausalLM"), GROUPED | {"sliding_window": 4}),
    "Qwen2": (("Qwen2Model", "Qwen2ForCausalLM"), {"num_key_value_heads": 2}),
    "Qwen3": (("Qwen3Model", "Qwen3ForCausalLM"), GROUPED),
    "Gemma2": (("Gemma2Model", "Gemma2ForCausalLM"), GROUPED | {"sliding_window": 4}),
    "Gemma3Text": (("Gemma3TextModel", "Gemma3ForCausalLM"), GROUPED | {"sliding_window": 4}),
    "Phi3": (("Phi3Model", "Phi3ForCausalLM"), {"num_key_value_heads": 2, "sliding_window": 4}),
    "Cohere2": (("Cohere2Model", "Cohere2ForCausalLM"), {"num_key_value_heads": 2}),
    "GPTNeoX": (("GPTNeoXModel", "GPTNeoXForCausalLM"), {}),
    "ModernBert": (("ModernBertModel", "ModernBertForMaskedLM"), {}),
    "Bert": (("BertModel", "BertForMaskedLM", "BertForSequenceClassification"), {}),
    "Roberta": (("RobertaModel", "RobertaForMaskedLM"), {}),
}


class Tester:
    """What the tests ask of a model's tester."""

    batch_size, seq_length, is_training = 13, 7, True
    hidden_size, num_hidden_layers = SMALL["hidden_size"], SMALL["num_hidden_layers"]
    num_attention_heads, vocab_size = SMALL["num_attention_heads"], SMALL["vocab_size"]
    num_labels = 3

    def __init__(self, family: str) -> None:
        self.family = family

    def get_config(self) -> Any:  # noqa: ANN401
        made = getattr(transformers, f"{self.family}Config")
        return made(**SMALL, **FAMILIES[self.family][1])

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        shape = [self.batch_size, self.seq_length]
        tokens = ids_tensor(shape, SMALL["vocab_size"] - 1) + 1  # none of them padding
        mask = torch.tril(torch.ones_like(tokens))
        return self.get_config(), {"input_ids": tokens, "attention_mask": mask}


def family_test(family: str) -> type[unittest.TestCase]:
    classes = tuple(getattr(transformers, name) for name in FAMILIES[family][0])

    def set_up(self: Any) -> None:  # noqa: ANN401
        self.model_tester = Tester(family)

    members = {"all_model_classes": classes, "setUp": set_up, "__module__": __name__}
    return type(f"{family}Test", (ModelTesterMixin, unittest.TestCase), members)


for name in FAMILIES:
    globals()[f"{name}Test"] = family_test(name)
