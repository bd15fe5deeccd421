"""The package flash_attn as its tests import it: Tilewise's drop-ins."""

from tilewise.flash_attn import *  # noqa: F403
