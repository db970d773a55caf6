"""features: what a kernel's time is learned from, as numbers of about the same size."""

from collections.abc import Callable, Mapping, Sequence
from math import log, prod

import numpy as np
import torch

from .counts import bytes_of, flops_of
from .kernel import Kernel
from .reuse import PARTS, WARMEST
from .roles import convolved, factors, groups_of, is_depthwise, largest_shape, numel, rows_and_columns, rows_and_length
from .roundness import EVEN, FILL, LANE, beyond_even, lanes_wasted, tiles_filled, up_to_even

NAMES = (
    "flops", "bytes", "intensity", "largest_in", "largest_out", "inputs", "strided", "itemsize", "in_place", "last",
    "first", "nearest", "further", "warm", "dim0", "dim1", "dim2", "dim3", "dim4", "dim5", "dim6", "dim7",
    "even0", "even1", "even2", "even3", "fill0", "fill1", "fill2", "bulk", "round0", "round1", "round2", "round3",
    "route", "lanes0", "lanes1", "lanes2", "lanes3",
)  # fmt: skip
LARGEST_BULK = 80  # a TB
ROUTED_BATCH = 16


def features(kernel: Kernel) -> list[float]:
    """In the order of NAMES. The class of a kernel says what its dims are, how even and how round they are, and how
    much of the tiles and lanes that they are computed in is filled; 0 where it says less."""
    flops, nbytes = flops_of(kernel), bytes_of(kernel)
    largest_in = max(kernel.inputs, key=lambda spec: spec.numel, default=None)
    largest_out = max(kernel.outputs or kernel.inputs, key=lambda spec: spec.numel, default=None)
    shape = largest_in.shape if largest_in is not None and largest_in.shape else (1,)
    common = [
        _log(flops), _log(nbytes), _log(flops) - _log(nbytes), _log(numel(largest_in)), _log(numel(largest_out)),
        _log(len(kernel.inputs)), float(any(spec.strides is not None for spec in kernel.inputs)),
        _log(kernel.dtype.itemsize), float(bool(kernel.written)), _log(shape[-1]), _log(shape[0]),
        kernel.near[0] / PARTS, kernel.near[1] / PARTS, kernel.warm / WARMEST,
    ]  # fmt: skip
    dims = _DIMS[kernel.kind](kernel) if kernel.kind in _DIMS else []
    most_dims = len(NAMES) - len(common) - 2 * EVEN - FILL - LANE - 2
    return [
        *common, *_long(dims, most_dims), *_long(up_to_even(kernel), EVEN), *_long(tiles_filled(kernel), FILL),
        kernel.bulk / LARGEST_BULK, *_long(beyond_even(kernel), EVEN), float(_is_routed_apart(kernel)),
        *_long(lanes_wasted(kernel), LANE),
    ]  # fmt: skip


def _long(values: list[float], length: int) -> list[float]:
    return [*values, *[0.0] * (length - len(values))]


def table(kernels: Sequence[Kernel], operators: Sequence[str], names: Sequence[str] = NAMES) -> np.ndarray:
    """[kernels, features]: `features` of these names, and a 1 for the operator among those known."""
    columns, rows = [NAMES.index(name) for name in names], []
    for kernel in kernels:
        own, found = operator_of(kernel), features(kernel)
        rows.append([*(found[column] for column in columns), *(float(own == name) for name in operators)])
    return np.array(rows, dtype=float).reshape(len(rows), len(names) + len(operators))


def class_of(kernel: Kernel) -> str:
    """What is learned together."""
    return classes_of(kernel)[0]


def classes_of(kernel: Kernel) -> tuple[str, ...]:
    """Its own, and those that stand in for it where that was not measured: a kind of kernels. Products of matrices
    differ by the factor that does not lie row after row (t: the first or the second), and so do the weights' gradient,
    forward and the input's gradient. The parts of convolutions are classes, and so are those of each channel by itself,
    for which libraries have other kernels."""
    if kernel.kind == "matmul":
        _made, *both = factors(kernel)
        return f"{kernel.kind}/{''.join('n' if each.strides is None else 't' for each in both)}", kernel.kind
    if kernel.kind != "convolution":
        return (kernel.kind,)
    part = f"{kernel.kind}/{kernel.part or 'forward'}"
    if is_depthwise(kernel):
        return f"{part}/depthwise", part, f"{kernel.kind}/depthwise", kernel.kind
    return part, kernel.kind


def operator_of(kernel: Kernel) -> str:
    """The kernel's operator; the parts of a convolution's backward are three."""
    return f"{kernel.operator}/{kernel.part}" if kernel.part else kernel.operator


def _matmul(kernel: Kernel) -> list[float]:
    """Rows, columns, what is summed over, how many products, and which of the factors does not lie row after row."""
    made, first, second = factors(kernel)
    rows, columns = rows_and_columns(made)
    strided = [float(factor.strides is not None) for factor in (first, second)]
    return [_log(rows), _log(columns), _log(first.shape[-1]), _log(prod(made.shape[:-2])), *strided]


def _convolution(kernel: Kernel) -> list[float]:
    x, weight, out = convolved(kernel)
    if x is None or weight is None:
        return [_log(out.shape[0]), 0.0, _log(out.shape[1]), _log(prod(out.shape[2:]))]
    stride = kernel.argument("stride")
    return [
        _log(x.shape[0]), _log(x.shape[1]), _log(out.shape[1]), _log(prod(out.shape[2:])), _log(prod(weight.shape[2:])),
        _log(groups_of(kernel)), float(is_depthwise(kernel)), _log(prod(stride) if isinstance(stride, tuple) else 1),
    ]  # fmt: skip


def _is_routed_apart(kernel: Kernel) -> bool:
    """On one thread of a CPU torch computes these by itself: a convolution in float32 that looks at single places, of
    a batch below 16. On all others it calls oneDNN, which at batch 8 was seen to take half as long."""
    if kernel.kind != "convolution" or kernel.dtype != torch.float32:
        return False
    x, weight, _out = convolved(kernel)
    if x is None or weight is None:
        return False
    steps = [kernel.argument(name) for name in ("stride", "dilation")]
    return (
        x.shape[0] < ROUTED_BATCH
        and prod(weight.shape[2:]) == 1
        and all(set(each) == {1} for each in steps if isinstance(each, tuple))
    )


def _attention(kernel: Kernel) -> list[float]:
    query, key = kernel.tensor("query"), kernel.tensor("key")
    if query is None or key is None:
        return []
    causal = dict(kernel.arguments).get("is_causal") or dict(kernel.arguments).get("causal")
    heads = _log(prod(query.shape[:-2]))
    return [heads, _log(query.shape[-2]), _log(key.shape[-2]), _log(query.shape[-1]), float(bool(causal))]


def _blocks(kernel: Kernel) -> list[float]:
    """Samples, channels and places; the numbers of a channel; rows, and how long they are."""
    shape = largest_shape(kernel)
    channels, places = (shape[1] if len(shape) > 1 else 1), prod(shape[2:])
    return [
        _log(shape[0]), _log(channels), _log(places), _log(shape[0] * places), _log(prod(shape[:-1])), _log(shape[-1]),
    ]  # fmt: skip


def _rows(kernel: Kernel) -> list[float]:
    """Rows that are made alike, each by itself; how long they are; the weights that they share; long or many?"""
    rows, length = rows_and_length(kernel)
    return [_log(rows), _log(length), _log(numel(kernel.tensor("weight"))), _log(length) - _log(rows)]


def _reduction(kernel: Kernel) -> list[float]:
    """Sums, the numbers of each, and whether the first and the last dimension are as long as before."""
    shape = largest_shape(kernel)
    made = (kernel.outputs or kernel.inputs)[0].shape or (1,)
    kept = [float(made[place] == shape[place]) for place in (0, -1)]
    return [_log(prod(made)), _log(prod(shape) / max(1, prod(made))), *kept]


_DIMS: Mapping[str, Callable[[Kernel], list[float]]] = {
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "batch_norm": _blocks,
    "pool": _blocks,
    "row_norm": _rows,
    "softmax": _blocks,
    "reduction": _reduction,
}


def _log(value: float) -> float:
    return log(value + 1.0)
