"""Tilewise by its C API, on torch's tensors, memory and stream."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from bench.cpu import capi

from .contender import RefusedError
from .problem import Problem
from .reference import Inputs, offsets_on_device

UNSUPPORTED, OUT_OF_MEMORY = 2, 3
CODES = capi.DTYPES | {"int32": 6}  # of tw_dtype


def view(x: torch.Tensor) -> capi.Tensor:
    """The tensor as the C API takes it."""
    made = capi.Tensor(
        data=x.data_ptr(),
        dtype=CODES[str(x.dtype).removeprefix("torch.")],
        device_type=1,
        device_index=x.device.index,
        rank=x.dim(),
    )
    made.sizes[: x.dim()] = x.shape
    made.strides[: x.dim()] = x.stride()
    return made


class Library:
    """libtilewise."""

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(str(path.resolve()))
        self._lib.tw_last_error.restype = ctypes.c_char_p

    def call(self, verb: str, *structs: ctypes.Structure) -> None:
        status = getattr(self._lib, verb)(*(ctypes.byref(s) for s in structs))
        if status == 0:
            return
        message = self._lib.tw_last_error().decode()
        if status == UNSUPPORTED:
            raise RefusedError(message.splitlines()[0])
        if status == OUT_OF_MEMORY:
            raise torch.OutOfMemoryError(message)
        raise RuntimeError(message)


class Pass:
    """One verb with its structs; the workspace is the caller's."""

    def __init__(
        self,
        library: Library,
        verb: str,
        args: ctypes.Structure,
        spec: capi.Spec,
        launch: capi.Launch,
    ) -> None:
        self.plan = capi.Plan()
        self._library, self._verb = library, verb
        self._structs = (args, spec, launch, self.plan)
        self._launch = launch
        self.replan()

    def replan(self) -> None:
        self._library.call(f"tw_plan_{self._verb}", *self._structs)

    def use(self, workspace: torch.Tensor) -> None:
        self._launch.workspace = workspace.data_ptr()
        self._launch.workspace_bytes = workspace.numel()

    def run(self) -> None:
        self._launch.stream = torch.cuda.current_stream().cuda_stream
        self._library.call(f"tw_{self._verb}", *self._structs)


class Ours:
    """An implementation of ours; `rows` are forced, "" leaves the choice to the plan."""

    dtypes = tuple(capi.DTYPES)

    def __init__(self, library: Library, name: str, rows: tuple[str, str] = ("", "")) -> None:
        self.name = name
        self.library = library
        self._rows = dict(zip(("forward", "backward"), rows, strict=True))
        self._ran: dict[str, str] = {}
        self.is_free = name == "flash" and rows == ("", "")

    def launch(self, verb: str) -> capi.Launch:
        row = self._rows[verb]
        chosen = {"kernel": row.encode()} if row else {"implementation": self.name.encode()}
        return capi.Launch(**chosen)

    def note(self, verb: str, kernel: str) -> None:
        """Remembers what ran; a forced row must be it."""
        if self._rows[verb] not in ("", kernel):
            raise RuntimeError(f"{self._rows[verb]} was forced and {kernel} ran")
        self._ran[verb] = kernel

    def kernel(self, problem: Problem, which: str) -> str:
        del problem
        verbs = {"fwd": ["forward"], "bwd": ["backward"], "fwd+bwd": ["forward", "backward"]}[which]
        return "+".join(self._ran.get(verb, self._rows[verb]) for verb in verbs)

    def open(self, problem: Problem, inputs: Inputs) -> OursSession:
        self._ran = {}
        return OursSession(self, problem, inputs)

    def is_own_choice(self, verb: str, args: ctypes.Structure, spec: capi.Spec) -> bool:
        """Whether the plan, left to itself, takes the row that is forced for this verb, if any."""
        if self._rows[verb] == "":
            return True
        free = capi.Launch(implementation=self.name.encode())
        return Pass(self.library, verb, args, spec, free).plan.kernel.decode() == self._rows[verb]


class OursSession:
    """See contender.Session. Outputs begin as NaN, so that what a kernel leaves out shows."""

    def __init__(self, owner: Ours, problem: Problem, inputs: Inputs) -> None:
        self._inputs = inputs
        left, right = problem.window
        self._spec = capi.Spec(
            causal=1 if problem.causal else 0,
            has_window_left=int(left is not None),
            has_window_right=int(right is not None),
            window_left=left or 0,
            window_right=right or 0,
            softcap=problem.softcap,
        )
        self._offsets = offsets_on_device(problem)
        if self._offsets is not None:
            self._spec.cu_seqlens_q = self._spec.cu_seqlens_k = view(self._offsets)
            self._spec.max_seqlen_q = self._spec.max_seqlen_k = problem.seq
        if inputs.lengths is not None:
            self._spec.key_lengths = view(inputs.lengths)
        if inputs.table is not None:
            self._spec.block_table = view(inputs.table)
        self._o = torch.full_like(inputs.q, torch.nan, requires_grad=False)
        lse = torch.full(
            inputs.q.shape[int(bool(problem.packed)) : 3],
            torch.nan,
            device="cuda",
            dtype=torch.float32,
        )
        self._named = {name: getattr(inputs, name) for name in ("q", "k", "v")}
        self._named |= {"o": self._o, "lse": lse}
        self._owner = owner
        self._gradients: dict[str, torch.Tensor] = {}
        self.own_choice: dict[str, bool] = {}  # by verb: the forced row is the plan's choice too
        self._saved = torch.empty(0, dtype=torch.uint8, device="cuda")
        self._workspace = self._saved
        self._keeping = False
        self._forward = self._pass("forward", capi.Forward)
        self._backward: Pass | None = None
        self._reserve(self._forward)

    def _pass(self, verb: str, struct: type) -> Pass:
        args = struct(**{name: view(x) for name, x in self._named.items()})
        args.saved, args.saved_bytes = self._saved.data_ptr() or None, self._saved.numel()
        made = Pass(self._owner.library, verb, args, self._spec, self._owner.launch(verb))
        self._owner.note(verb, made.plan.kernel.decode())
        self.own_choice[verb] = self._owner.is_own_choice(verb, args, self._spec)
        return made

    def _reserve(self, *passes: Pass) -> None:
        most = max(one.plan.workspace_bytes for one in passes)
        if most > self._workspace.numel():
            self._workspace = torch.empty(most, dtype=torch.uint8, device="cuda")
        for one in passes:
            one.use(self._workspace)

    def forward(self) -> None:
        self._forward.run()

    def forward_for_backward(self) -> None:
        if not self._keeping:
            self._keep_state()
        self._forward.run()

    def _keep_state(self) -> None:
        """From here on the forward keeps what `eager` and `fused` read again: S and P."""
        self._keeping = True
        bytes_ = self._forward.plan.saved_bytes
        if bytes_ > 0:
            self._workspace = self._saved
            self._saved = torch.empty(bytes_, dtype=torch.uint8, device="cuda")
            self._forward = self._pass("forward", capi.Forward)
            self._reserve(self._forward)

    def backward(self) -> None:
        if self._backward is None:
            self._backward = self._open_backward()
        self._backward.run()

    def _open_backward(self) -> Pass:
        self._workspace = torch.empty(0, dtype=torch.uint8, device="cuda")
        for name in ("q", "k", "v"):
            x = getattr(self._inputs, name)
            self._gradients[f"d{name}"] = torch.full_like(x, torch.nan, requires_grad=False)
        self._named |= self._gradients | {"d_o": self._inputs.d_o}
        opened = self._pass("backward", capi.Backward)
        self._reserve(self._forward, opened)
        return opened

    def both(self) -> None:
        self.forward_for_backward()
        self.backward()

    def workspace_bytes(self) -> int:
        """Held for the next launch alone; what is kept for the backward is not in it."""
        return 0 if self._workspace is self._saved else self._workspace.numel()

    def outputs(self) -> dict[str, torch.Tensor]:
        named = {"dq": "dQ", "dk": "dK", "dv": "dV"}
        return {"O": self._o} | {named[k]: x for k, x in self._gradients.items()}
