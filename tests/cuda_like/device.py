"""Tensors with data on the CPU that report the device `cuda:0`, and a record of every wait and upload.

The process must have loaded the compiled `device.cpp` before torch.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

PACKAGE = Path(__file__).resolve().parents[2] / "multicse"
aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
WAITS = {
    aten._local_scalar_dense.default,
    aten._linalg_check_errors.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}
"""Operators for which the host waits: it needs the value or size of their result."""
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


RECORD = Counter[tuple[str, str]]()
"""Number of waits and uploads so far, by kind and line."""


def note(kind: str) -> None:
    """Record a wait or an upload."""
    RECORD[kind, _line()] += 1


def _line() -> str:
    """Return the innermost line of the product in the stack, otherwise of a library."""
    frame: types.FrameType | None = sys._getframe(2)
    library = ""
    while frame is not None:
        file = frame.f_code.co_filename
        path = Path(file)
        place = path.resolve()
        if place.is_relative_to(PACKAGE):
            return f"{place.relative_to(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_qualname}"
        if not library and "site-packages" in file and "torch/" not in file.split("site-packages/")[1][:6]:
            library = f"{file.split('site-packages/')[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return library or "torch"


class CudaTensor(Tensor):
    """Tensor that reports the device `cuda:0`; `data_on_cpu` contains its values."""

    data_on_cpu: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # below autograd

    @staticmethod
    def __new__(cls, data: Tensor) -> CudaTensor:
        made: CudaTensor = Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            layout=data.layout,
            device=DEVICE,
        )
        made.data_on_cpu = data
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"CudaTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = CudaTensor(copy.deepcopy(self.data_on_cpu.detach()))
        made = nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied
        return memo.setdefault(id(self), made)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return call(func, args, kwargs or {})


def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the values, record waits and uploads, and reject inputs that CUDA rejects."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    ours = [x for x in tensors if isinstance(x, CudaTensor)]
    host = [x for x in tensors if not isinstance(x, CudaTensor)]
    place = kwargs.get("device")
    to = None if place is None else torch.device(place).type
    if func is aten._fused_sdp_choice.default:
        return 0  # explicit formula
    if func in WAITS and ours:
        note(f"wait: {func.overloadpacket.__name__}")
    elif func is aten._to_copy.default or func is aten.copy_.default:
        target = to or ("cuda" if isinstance(args[0], CudaTensor) else "cpu")
        source = args[0] if func is aten._to_copy.default else args[1]
        if isinstance(source, CudaTensor) and target == "cpu":
            note("wait: copy to the host")
        elif not isinstance(source, CudaTensor) and target == "cuda":
            note("upload")
    elif func in INDEXED and ours:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            note("wait: index of booleans")
        if any(not isinstance(index, CudaTensor) for index in indices):
            note("upload")
    elif ours and any(x.ndim for x in host):
        raise RuntimeError(
            f"{func}: all tensors must be on one device, found {[(x.device.type, *x.shape) for x in tensors]}"
        )
    values = {name: "cpu" if name == "device" and to == "cuda" else value for name, value in kwargs.items()}
    values |= {name: None for name in ("generator", "pin_memory") if name in values}
    on_cpu = lambda x: x.data_on_cpu if isinstance(x, CudaTensor) else x  # noqa: E731
    result = func(*tree_map(on_cpu, args), **tree_map(on_cpu, values))
    if to == "cpu" or (func is aten.copy_.default and not isinstance(args[0], CudaTensor)):
        return result
    wrapped = tree_map(lambda x: CudaTensor(x) if isinstance(x, Tensor) and not isinstance(x, CudaTensor) else x, result)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if ours else wrapped


class Done:
    """Stream or event that completes everything immediately."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Cuda(TorchDispatchMode):
    """Mode that sends all operators on the device to `call`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = kwargs.get("device")
        if any(isinstance(x, CudaTensor) for x in tree_leaves((args, kwargs))) or (
            place is not None and torch.device(place).type == "cuda"
        ):
            return call(func, args, kwargs)
        return func(*args, **kwargs)


def to_device(module: nn.Module) -> nn.Module:
    """Move a module to the device; shared parameters remain shared."""
    moved: dict[int, Tensor] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter, CudaTensor):
                made = moved.setdefault(
                    id(parameter), nn.Parameter(CudaTensor(parameter.detach()), requires_grad=parameter.requires_grad)
                )
                part._parameters[name] = made  # type: ignore[assignment]
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, CudaTensor):
                part._buffers[name] = moved.setdefault(id(buffer), CudaTensor(buffer))
    return module


def kernels_of(params: Any, kernel: str) -> bool:
    """Return the attention kernel that torch would choose for these tensors on an H100."""
    dtype, size = params.query.dtype, params.query.shape[-1]
    half = dtype in (torch.float16, torch.bfloat16)
    return half and size <= 256 if kernel == "flash" else dtype != torch.float64 and size % (8 if half else 4) == 0


def install() -> None:
    """Let torch treat the device as a GPU, in this process and all its threads."""
    always: Callable[..., bool] = lambda *a, **k: True  # noqa: E731
    never: Callable[..., bool] = lambda *a, **k: False  # noqa: E731
    torch._C._set_only_lift_cpu_tensors(True)  # record the upload of torch.tensor(..., device="cuda")
    torch.autograd.set_multithreading_enabled(False)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.manual_seed_all = lambda seed: None
    torch.cuda.Stream = torch.cuda.Event = torch.cuda.current_stream = Done  # type: ignore[assignment,misc]
    torch.cuda.stream = torch.cuda.device = lambda *a: contextlib.nullcontext()  # type: ignore[assignment,misc]
    Tensor.pin_memory = lambda tensor, *a: tensor  # type: ignore[method-assign]
    torch.cuda.is_bf16_supported = always
    torch.cuda.amp.common.amp_definitely_not_available = never
    torch.cuda.get_rng_state = lambda *a: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *a: torch.set_rng_state(state)
    torch.backends.cuda.can_use_flash_attention = lambda params, debug=False: kernels_of(params, "flash")
    torch.backends.cuda.can_use_efficient_attention = lambda params, debug=False: kernels_of(params, "efficient")
    run = threading.Thread.run

    def run_with_device(self: threading.Thread) -> None:
        with Cuda():
            run(self)

    threading.Thread.run = run_with_device  # type: ignore[method-assign]
