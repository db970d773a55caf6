"""replay: call a traced kernel again, with real tensors. A calibration times what this returns."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .kernel import Argument, Kernel, Ref, Scalar, Spec

# Arguments of integers that are places in another argument: they must stay below its size along a dimension.
_PLACES = {"indices": ("weight", 0), "target": ("self", -1), "index": ("self", 0)}
_PARTS = ("input", "weight", "bias")


def replay(kernel: Kernel, device: torch.device | str = "cpu", seed: int = 0) -> Callable[[], Any]:
    """A function that makes the call; its tensors are drawn here, once, so that only the kernel is timed."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [_draw(spec, _bound(kernel, index), generator).to(device) for index, spec in enumerate(kernel.inputs)]
    library, _, name = kernel.name.partition("::")
    operator, _, overload = name.partition(".")
    call = getattr(getattr(getattr(torch.ops, library), operator), overload)
    values = {name: _value(value, tensors) for name, value in kernel.arguments}
    if kernel.part:
        values |= _rest_of_convolution(kernel, device)
    if "device" in values:
        values["device"] = torch.device(device)
    positional = [values[a.name] for a in call._schema.arguments if not a.kwarg_only]
    named = {a.name: values[a.name] for a in call._schema.arguments if a.kwarg_only}
    return lambda: call(*positional, **named)


def _rest_of_convolution(kernel: Kernel, device: torch.device | str) -> dict[str, Any]:
    """What the call wants to see, for its shape, beside what this part of it reads."""
    made = {kernel.part: _empty(kernel.outputs[0], device)} if kernel.part != "bias" else {}
    gradient = kernel.tensor("grad_output")
    assert gradient is not None
    if kernel.part == "bias":  # any convolution with that gradient and one channel per group does
        raise NotImplementedError("the gradient of a convolution's bias is a sum: time aten::sum.dim_IntList instead")
    return {**made, "output_mask": [part == kernel.part for part in _PARTS]}


def _value(value: Argument, tensors: list[Tensor]) -> Any:
    if isinstance(value, Ref):
        return tensors[value.index]
    if isinstance(value, Scalar):
        return value.value
    return [_value(part, tensors) for part in value] if isinstance(value, tuple) else value


def _bound(kernel: Kernel, index: int) -> int:
    """One more than the largest value that an input of integers may have."""
    if kernel.operator == "embedding_dense_backward":
        rows = kernel.argument("num_weights")
        return rows if isinstance(rows, int) else 1
    for name, value in kernel.arguments:
        refs = value if isinstance(value, tuple) else (value,)
        if name in _PLACES and Ref(index) in refs:
            table, dimension = _PLACES[name]
            spec = kernel.tensor(table) or kernel.tensor("self")
            if spec is not None:
                return spec.shape[dimension]
    return 2


def _draw(spec: Spec, bound: int, generator: torch.Generator) -> Tensor:
    """Numbers of unit size: zeros and denormals would be another, slower or faster, arithmetic."""
    if spec.dtype.is_floating_point:
        values = torch.rand(spec.shape, generator=generator).add_(0.5).to(spec.dtype)
    else:
        values = torch.randint(bound, spec.shape, generator=generator).to(spec.dtype)
    if spec.strides is None:
        return values
    if 0 in spec.strides:
        kept = [slice(None) if stride else slice(1) for stride in spec.strides]
        return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype).copy_(values[tuple(kept)])
    return torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype).copy_(values)


def _empty(spec: Spec, device: torch.device | str) -> Tensor:
    strides = torch.empty(spec.shape, device="meta").stride() if spec.strides is None else spec.strides
    return torch.empty_strided(spec.shape, strides, dtype=spec.dtype, device=device)
