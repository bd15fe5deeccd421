"""PyTorch's tests of scaled_dot_product_attention on tilewise.sdpa.

They are taken from a repository that holds a copy of PyTorch's test_transformers.py, which differs
in what an Intel GPU skips. PyTorch itself is hundreds of MB, and its tests want one version.
Where a test asks for torch's formula alone (the backend MATH), it gets torch's function: that is
what the test compares with.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .sources import Fetched, Source

FILE = "test/xpu/test_transformers_xpu.py"
SOURCE = Source("intel", "torch-xpu-ops", "966478e5a2a0c42266984014c3018d963e63c145", (FILE,))
ABOUT = re.compile("sdp|scaled_dot_product|attention|encoder|decoder|mha")
NAMES = {
    "nested": "nested tensors",
    "gradcheck": "float64",
    "float64": "float64",
    "sdp_choice": "asks torch for its own choice",
    "invalid": "an error of torch's own kernels",
    "fail": "an error of torch's own kernels",
    "fastpath_fp16": "torch's own C++ attention",
}
left_out: set[str] = set()  # of the test that runs


def adapt(fetched: Fetched, into: Path, device: str) -> Path:
    del device
    made = into / "test_transformers.py"
    made.write_text(
        "import suites.torch_sdpa\n\nsuites.torch_sdpa.replace()\n"
        + (fetched.folder / FILE).read_text()
    )
    return made


def replace() -> None:
    """tilewise.sdpa in the place of torch's function; notes what the contract leaves out."""
    import tilewise.sdpa
    import torch

    own = torch.nn.functional.scaled_dot_product_attention

    def attend(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        cuda = torch.backends.cuda
        if not (cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled()):
            return own(*arguments, **options)
        if options.get("dropout_p") or (len(arguments) > 4 and arguments[4]):
            left_out.add("dropout's bits are Tilewise's own")
        try:
            return tilewise.sdpa.scaled_dot_product_attention(*arguments, **options)
        except NotImplementedError as refusal:
            left_out.add(str(refusal).splitlines()[0][:80])
            return own(*arguments, **options)

    torch.nn.functional.scaled_dot_product_attention = attend


def small(parameters: dict[str, Any]) -> bool:
    del parameters
    return True


def outside(function: str, parameters: dict[str, Any]) -> str:
    del parameters
    if not ABOUT.search(function):
        return "not about attention"
    return next((why for part, why in NAMES.items() if part in function), "")
