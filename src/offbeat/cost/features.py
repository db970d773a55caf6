"""features: what a kernel's time is learned from, as numbers of about the same size."""

from collections.abc import Callable, Mapping, Sequence
from math import log, prod

import numpy as np

from .counts import bytes_of, flops_of
from .kernel import Kernel, Spec
from .reuse import PARTS

NAMES = (
    "flops", "bytes", "intensity", "largest_in", "largest_out", "inputs", "strided", "itemsize", "in_place", "last",
    "first", "nearest", "further", "dim0", "dim1", "dim2", "dim3", "dim4", "dim5", "dim6", "dim7",
    "even_in", "even_out",
)  # fmt: skip


def features(kernel: Kernel) -> list[float]:
    """In the order of NAMES. dim0 to dim7 mean what the kernel's class makes of them; 0 where it has fewer."""
    flops, nbytes = flops_of(kernel), bytes_of(kernel)
    largest_in = max(kernel.inputs, key=lambda spec: spec.numel, default=None)
    largest_out = max(kernel.outputs or kernel.inputs, key=lambda spec: spec.numel, default=None)
    shape = largest_in.shape if largest_in is not None and largest_in.shape else (1,)
    common = [
        _log(flops), _log(nbytes), _log(flops) - _log(nbytes), _log(_numel(largest_in)), _log(_numel(largest_out)),
        _log(len(kernel.inputs)), float(any(spec.strides is not None for spec in kernel.inputs)),
        _log(kernel.dtype.itemsize), float(bool(kernel.written)), _log(shape[-1]), _log(shape[0]),
        kernel.near[0] / PARTS, kernel.near[1] / PARTS,
    ]  # fmt: skip
    dims = _DIMS.get(kernel.kind, _nothing)(kernel)
    even = _EVEN.get(kernel.kind, _even)(kernel)
    return [*common, *dims, *[0.0] * (len(NAMES) - len(common) - len(dims) - len(even)), *even]


def table(kernels: Sequence[Kernel], operators: Sequence[str]) -> np.ndarray:
    """[kernels, features]: `features`, and a 1 for the operator among those known."""
    rows = []
    for kernel in kernels:
        own = operator_of(kernel)
        rows.append([*features(kernel), *(float(own == name) for name in operators)])
    return np.array(rows, dtype=float).reshape(len(rows), len(NAMES) + len(operators))


def operator_of(kernel: Kernel) -> str:
    """The kernel's operator; the parts of a convolution's backward are three."""
    return f"{kernel.operator}/{kernel.part}" if kernel.part else kernel.operator


def _even(_kernel: Kernel) -> list[float]:
    return [0.0, 0.0]


def _even_matmul(kernel: Kernel) -> list[float]:
    made = (kernel.outputs or kernel.inputs[:1])[0]
    first = kernel.tensor("mat1") or kernel.tensor("batch1") or kernel.tensor("mat") or kernel.inputs[0]
    return [_twos(first.shape[-1]), _twos(made.shape[-1] if made.shape else 1)]


def _even_convolution(kernel: Kernel) -> list[float]:
    """Libraries work on blocks of 8 or 16 channels."""
    weight = kernel.outputs[0] if kernel.part == "weight" else kernel.tensor("weight")
    return [0.0, 0.0] if weight is None else [_twos(weight.shape[1]), _twos(weight.shape[0])]


def _twos(number: int) -> float:
    """How often 2 divides it, at most 4 times."""
    return float(next(power for power in range(4, -1, -1) if number % (1 << power) == 0))


def _nothing(_kernel: Kernel) -> list[float]:
    return []


def _matmul(kernel: Kernel) -> list[float]:
    """Rows, columns, what is summed over, and how many products."""
    made = (kernel.outputs or kernel.inputs[:1])[0]
    first = kernel.tensor("mat1") or kernel.tensor("batch1") or kernel.tensor("mat") or kernel.inputs[0]
    rows, columns = (made.shape[-2], made.shape[-1]) if len(made.shape) > 1 else (_numel(made), 1)
    return [_log(rows), _log(columns), _log(first.shape[-1]), _log(prod(made.shape[:-2]))]


def _convolution(kernel: Kernel) -> list[float]:
    x = kernel.outputs[0] if kernel.part == "input" else kernel.tensor("input")
    weight = kernel.outputs[0] if kernel.part == "weight" else kernel.tensor("weight")
    out = kernel.tensor("grad_output") or kernel.outputs[0]
    if x is None or weight is None:
        return [_log(out.shape[0]), 0.0, _log(out.shape[1]), _log(prod(out.shape[2:]))]
    groups, stride = kernel.argument("groups"), kernel.argument("stride")
    groups = groups if isinstance(groups, int) else 1
    return [
        _log(x.shape[0]), _log(x.shape[1]), _log(out.shape[1]), _log(prod(out.shape[2:])), _log(prod(weight.shape[2:])),
        _log(groups), float(groups == x.shape[1] > 1), _log(prod(stride) if isinstance(stride, tuple) else 1),
    ]  # fmt: skip


def _attention(kernel: Kernel) -> list[float]:
    query, key = kernel.tensor("query"), kernel.tensor("key")
    if query is None or key is None:
        return []
    causal = dict(kernel.arguments).get("is_causal") or dict(kernel.arguments).get("causal")
    heads = _log(prod(query.shape[:-2]))
    return [heads, _log(query.shape[-2]), _log(key.shape[-2]), _log(query.shape[-1]), float(bool(causal))]


def _blocks(kernel: Kernel) -> list[float]:
    """Samples, channels and places; the numbers of a channel; rows, and how long they are."""
    shape = _largest(kernel)
    channels, places = (shape[1] if len(shape) > 1 else 1), prod(shape[2:])
    return [
        _log(shape[0]), _log(channels), _log(places), _log(shape[0] * places), _log(prod(shape[:-1])), _log(shape[-1]),
    ]  # fmt: skip


def _reduction(kernel: Kernel) -> list[float]:
    """Sums, the numbers of each, and whether the first and the last dimension are as long as before."""
    shape = _largest(kernel)
    made = (kernel.outputs or kernel.inputs)[0].shape or (1,)
    kept = [float(made[place] == shape[place]) for place in (0, -1)]
    return [_log(prod(made)), _log(prod(shape) / max(1, prod(made))), *kept]


def _even_blocks(kernel: Kernel) -> list[float]:
    """Of channels and of places: what lies in fours is read at once."""
    shape = _largest(kernel)
    return [_twos(shape[1] if len(shape) > 1 else shape[0]), _twos(prod(shape[2:]))]


def _largest(kernel: Kernel) -> tuple[int, ...]:
    return max(kernel.inputs, key=lambda spec: spec.numel).shape or (1,)


_DIMS: Mapping[str, Callable[[Kernel], list[float]]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "batch_norm": _blocks,
    "pool": _blocks,
    "row_norm": _blocks,
    "softmax": _blocks,
    "reduction": _reduction,
}
_EVEN: Mapping[str, Callable[[Kernel], list[float]]] = {
    "matmul": _even_matmul,
    "convolution": _even_convolution,
    "batch_norm": _even_blocks,
    "row_norm": _even_blocks,
}


def _numel(spec: Spec | None) -> int:
    return 0 if spec is None else spec.numel


def _log(value: float) -> float:
    return log(value + 1.0)
