"""What the tests import of this module."""


def _get_block_size_n(device: object, head_dim: int, is_dropout: bool, causal: bool) -> int:
    """The tests read S_dmask by the kernel's tiles; there is no S_dmask here."""
    raise NotImplementedError("return_attn_probs has no S_dmask")
