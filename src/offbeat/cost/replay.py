"""replay: call a traced kernel again, with real tensors. A calibration times what this returns."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .kernel import Argument, Kernel, Ref, Scalar, Spec

# Arguments of integers that are places in another argument: they must stay below its size along a dimension.
_PLACES = {"indices": ("weight", 0), "target": ("self", -1), "index": ("self", 0)}
# torch's fake norms give their statistics the type of the input; real ones that of the weights.
_STATISTICS = {"save_mean", "save_invstd", "mean", "rstd"}


def replay(kernel: Kernel, device: torch.device | str = "cpu", seed: int = 0) -> Callable[[], Any]:
    """A function that makes the call; its tensors are drawn here, once, so that only the kernel is timed."""
    device = torch.device(device)
    generator = torch.Generator().manual_seed(seed)
    tensors = [_draw(spec, _bound(kernel, index), generator).to(device) for index, spec in enumerate(kernel.inputs)]
    values = {name: _value(value, tensors) for name, value in kernel.arguments}
    if kernel.kind == "attention" and device.type != "cpu":
        return _attention(kernel, values)
    if kernel.part == "bias":  # as the libraries do it
        gradient: Tensor = values["grad_output"]
        return lambda: gradient.sum([i for i in range(gradient.dim()) if i != 1])
    if kernel.part:
        values[kernel.part] = _empty(kernel.outputs[0], device)  # for its shape
        values["output_mask"] = [part == kernel.part for part in ("input", "weight", "bias")]
    if kernel.kind in ("batch_norm", "row_norm") and kernel.tensor("weight"):
        for name in _STATISTICS & values.keys():
            values[name] = values[name].to(values["weight"].dtype)
    if "device" in values:
        values["device"] = device
    library, _, name = kernel.name.partition("::")
    operator, _, overload = name.partition(".")
    call = getattr(getattr(getattr(torch.ops, library), operator), overload)
    positional = [values[argument.name] for argument in call._schema.arguments if not argument.kwarg_only]
    named = {argument.name: values[argument.name] for argument in call._schema.arguments if argument.kwarg_only}
    return lambda: call(*positional, **named)


def _attention(kernel: Kernel, values: dict[str, Any]) -> Callable[[], Any]:
    """By the public function, so that another device than the traced one chooses its own kernel."""
    options: dict[str, Any] = {name: values.get(name) for name in ("attn_mask", "scale", "is_causal")}
    parts = tuple(values[name] for name in ("query", "key", "value"))
    if "backward" not in kernel.operator:
        return lambda: scaled_dot_product_attention(*parts, **options)
    parts = tuple(part.requires_grad_() for part in parts)
    out, gradient = scaled_dot_product_attention(*parts, **options), values["grad_out"]
    return lambda: torch.autograd.grad(out, parts, gradient, retain_graph=True)


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
    once = tuple(slice(None) if stride else slice(1) for stride in spec.strides)  # expanded from one
    values = values[once]
    return torch.empty_strided(values.shape, spec.strides, dtype=spec.dtype).copy_(values).expand(spec.shape)


def _empty(spec: Spec, device: torch.device) -> Tensor:
    strides = torch.empty(spec.shape, device="meta").stride() if spec.strides is None else spec.strides
    return torch.empty_strided(spec.shape, strides, dtype=spec.dtype, device=device)
