"""features: what a kernel's time is learned from, as numbers of about the same size."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, log, prod

import numpy as np
import torch

from .counts import bytes_of, flops_of
from .kernel import Kernel, Spec
from .reuse import PARTS, WARMEST

NAMES = (
    "flops", "bytes", "intensity", "largest_in", "largest_out", "inputs", "strided", "itemsize", "in_place", "last",
    "first", "nearest", "further", "warm", "dim0", "dim1", "dim2", "dim3", "dim4", "dim5", "dim6", "dim7",
    "even0", "even1", "even2", "even3", "fill0", "fill1", "fill2", "bulk", "round0", "round1", "round2", "round3",
    "route",
)  # fmt: skip
EVEN, FILL = 4, 3
EVENEST, ROUNDEST = 4, 10  # how often 2 divides 16, and 1,024
LARGEST_BULK = 80  # a TB
ROUTED_BATCH = 16
TILE, SLICE, THREADS = 128, 32, 512  # what a GPU computes at a time: of rows and columns, of a sum, of places


def features(kernel: Kernel) -> list[float]:
    """In the order of NAMES. The class of a kernel says what its dims are, how even and how round they are, and how
    much of the tiles that they are computed in is filled; 0 where it says less."""
    flops, nbytes = flops_of(kernel), bytes_of(kernel)
    largest_in = max(kernel.inputs, key=lambda spec: spec.numel, default=None)
    largest_out = max(kernel.outputs or kernel.inputs, key=lambda spec: spec.numel, default=None)
    shape = largest_in.shape if largest_in is not None and largest_in.shape else (1,)
    common = [
        _log(flops), _log(nbytes), _log(flops) - _log(nbytes), _log(_numel(largest_in)), _log(_numel(largest_out)),
        _log(len(kernel.inputs)), float(any(spec.strides is not None for spec in kernel.inputs)),
        _log(kernel.dtype.itemsize), float(bool(kernel.written)), _log(shape[-1]), _log(shape[0]),
        kernel.near[0] / PARTS, kernel.near[1] / PARTS, kernel.warm / WARMEST,
    ]  # fmt: skip
    dims, fill = (known.get(kernel.kind, _nothing)(kernel) for known in (_DIMS, _FILL))
    twos = [_twos(number) for number in _EVEN.get(kernel.kind, _nothing_round)(kernel)]
    even, beyond = ([float(part(each)) for each in twos] for part in (_up_to_even, _beyond_even))
    return [
        *common, *_long(dims, len(NAMES) - len(common) - 2 * EVEN - FILL - 2), *_long(even, EVEN), *_long(fill, FILL),
        kernel.bulk / LARGEST_BULK, *_long(beyond, EVEN), float(_is_routed_apart(kernel)),
    ]  # fmt: skip


def _long(values: list[float], length: int) -> list[float]:
    return [*values, *[0.0] * (length - len(values))]


def table(kernels: Sequence[Kernel], operators: Sequence[str]) -> np.ndarray:
    """[kernels, features]: `features`, and a 1 for the operator among those known."""
    rows = []
    for kernel in kernels:
        own = operator_of(kernel)
        rows.append([*features(kernel), *(float(own == name) for name in operators)])
    return np.array(rows, dtype=float).reshape(len(rows), len(NAMES) + len(operators))


def class_of(kernel: Kernel) -> str:
    """What is learned together: a kind of kernels. Convolutions of each channel by itself have kernels of their own."""
    return f"{kernel.kind}/depthwise" if kernel.kind == "convolution" and _is_depthwise(kernel) else kernel.kind


def operator_of(kernel: Kernel) -> str:
    """The kernel's operator; the parts of a convolution's backward are three."""
    return f"{kernel.operator}/{kernel.part}" if kernel.part else kernel.operator


def _even_matmul(kernel: Kernel) -> list[int]:
    made, first, _second = _factors(kernel)
    rows, columns = _rows_and_columns(made)
    return [first.shape[-1], columns, rows]


def _even_convolution(kernel: Kernel) -> list[int]:
    """Libraries work on blocks of 8 or 16 channels, and read the places of a channel in fours and eights."""
    x, weight, out = _convolved(kernel)
    if x is None or weight is None:
        return []
    return [x.shape[1] // _groups(kernel), out.shape[1], prod(x.shape[2:]), prod(out.shape[2:])]


def _twos(number: int) -> int:
    """How often 2 divides it."""
    return next(power for power in range(ROUNDEST, -1, -1) if number % (1 << power) == 0)


def _up_to_even(twos: int) -> int:
    """What is even fills vectors and blocks: the more, the better."""
    return min(twos, EVENEST)


def _beyond_even(twos: int) -> int:
    """What is rounder than that lies badly in a cache: rows of 512 numbers or a multiple are all kept in the same few
    places. On a CPU a product that makes 512 x 3072 numbers took twice as long for each as one of 640 x 640."""
    return max(0, twos - EVENEST)


def _nothing(_kernel: Kernel) -> list[float]:
    return []


def _nothing_round(_kernel: Kernel) -> list[int]:
    return []


def _matmul(kernel: Kernel) -> list[float]:
    """Rows, columns, what is summed over, how many products, and which of the factors does not lie row after row."""
    made, first, second = _factors(kernel)
    rows, columns = _rows_and_columns(made)
    strided = [float(factor.strides is not None) for factor in (first, second)]
    return [_log(rows), _log(columns), _log(first.shape[-1]), _log(prod(made.shape[:-2])), *strided]


def _rows_and_columns(made: Spec) -> tuple[int, int]:
    return (made.shape[-2], made.shape[-1]) if len(made.shape) > 1 else (_numel(made), 1)


def _factors(kernel: Kernel) -> tuple[Spec, Spec, Spec]:
    """The product, and what it is of."""
    made = (kernel.outputs or kernel.inputs[:1])[0]
    first = kernel.tensor("mat1") or kernel.tensor("batch1") or kernel.tensor("mat") or kernel.inputs[0]
    second = kernel.tensor("mat2") or kernel.tensor("batch2") or kernel.tensor("vec") or kernel.inputs[-1]
    return made, first, second


def _convolution(kernel: Kernel) -> list[float]:
    x, weight, out = _convolved(kernel)
    if x is None or weight is None:
        return [_log(out.shape[0]), 0.0, _log(out.shape[1]), _log(prod(out.shape[2:]))]
    stride = kernel.argument("stride")
    return [
        _log(x.shape[0]), _log(x.shape[1]), _log(out.shape[1]), _log(prod(out.shape[2:])), _log(prod(weight.shape[2:])),
        _log(_groups(kernel)), float(_is_depthwise(kernel)), _log(prod(stride) if isinstance(stride, tuple) else 1),
    ]  # fmt: skip


def _is_routed_apart(kernel: Kernel) -> bool:
    """On one thread of a CPU torch computes these by itself: a convolution in float32 that looks at single places, of
    a batch below 16. On all others it calls oneDNN, which at batch 8 was seen to take half as long."""
    if kernel.kind != "convolution" or kernel.dtype != torch.float32:
        return False
    x, weight, _out = _convolved(kernel)
    if x is None or weight is None:
        return False
    steps = [kernel.argument(name) for name in ("stride", "dilation")]
    return (
        x.shape[0] < ROUTED_BATCH
        and prod(weight.shape[2:]) == 1
        and all(set(each) == {1} for each in steps if isinstance(each, tuple))
    )


def _groups(kernel: Kernel) -> int:
    groups = kernel.argument("groups")
    return groups if isinstance(groups, int) else 1


def _is_depthwise(kernel: Kernel) -> bool:
    x, _weight, _out = _convolved(kernel)
    return x is not None and _groups(kernel) == x.shape[1] > 1


def _convolved(kernel: Kernel) -> tuple[Spec | None, Spec | None, Spec]:
    """What goes in, the weight, and what comes out; of a gradient, those that it is of."""
    x = kernel.outputs[0] if kernel.part == "input" else kernel.tensor("input")
    weight = kernel.outputs[0] if kernel.part == "weight" else kernel.tensor("weight")
    return x, weight, kernel.tensor("grad_output") or kernel.outputs[0]


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


def _rows(kernel: Kernel) -> list[float]:
    """Rows that are made alike, each by itself; how long they are; the weights that they share; long or many?"""
    rows, length = _rows_and_length(kernel)
    return [_log(rows), _log(length), _log(_numel(kernel.tensor("weight"))), _log(length) - _log(rows)]


def _rows_and_length(kernel: Kernel) -> tuple[int, int]:
    """What is kept of each row tells their number: 1 / deviation, or the mean."""
    kept = kernel.tensor("rstd") or kernel.tensor("mean") or (kernel.outputs[1:2] or [None])[0]
    rows = max(1, _numel(kept))
    return rows, prod(_largest(kernel)) // rows


def _reduction(kernel: Kernel) -> list[float]:
    """Sums, the numbers of each, and whether the first and the last dimension are as long as before."""
    shape = _largest(kernel)
    made = (kernel.outputs or kernel.inputs)[0].shape or (1,)
    kept = [float(made[place] == shape[place]) for place in (0, -1)]
    return [_log(prod(made)), _log(prod(shape) / max(1, prod(made))), *kept]


def _even_blocks(kernel: Kernel) -> list[int]:
    """Of channels and of places: what lies in fours is read at once."""
    shape = _largest(kernel)
    return [shape[1] if len(shape) > 1 else shape[0], prod(shape[2:])]


def _even_rows(kernel: Kernel) -> list[int]:
    return [*_rows_and_length(kernel)]


def _fill_matmul(kernel: Kernel) -> list[float]:
    made, first, _second = _factors(kernel)
    rows, columns = _rows_and_columns(made)
    return [_filled(rows, TILE), _filled(columns, TILE), _filled(first.shape[-1], SLICE)]


def _fill_convolution(kernel: Kernel) -> list[float]:
    x, weight, out = _convolved(kernel)
    if x is None or weight is None:
        return []
    return [_filled(out.shape[1], TILE), _filled(x.shape[1], TILE), _filled(prod(out.shape[2:]), TILE)]


def _fill_attention(kernel: Kernel) -> list[float]:
    query, key = kernel.tensor("query"), kernel.tensor("key")
    return [] if query is None or key is None else [_filled(query.shape[-2], TILE), _filled(key.shape[-2], TILE)]


def _fill_blocks(kernel: Kernel) -> list[float]:
    shape = _largest(kernel)
    return [_filled(prod(shape[2:]), THREADS), _filled(shape[1] if len(shape) > 1 else 1, TILE)]


def _fill_rows(kernel: Kernel) -> list[float]:
    return [_filled(_rows_and_length(kernel)[1], TILE)]


def _filled(number: int, tile: int) -> float:
    """The share of the tiles that so many need: 130 need two of 128, and leave nearly half of them empty."""
    return number / (ceil(number / tile) * tile) if number else 0.0


def _largest(kernel: Kernel) -> tuple[int, ...]:
    return max(kernel.inputs, key=lambda spec: spec.numel).shape or (1,)


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
_EVEN: Mapping[str, Callable[[Kernel], list[int]]] = {
    "matmul": _even_matmul,
    "convolution": _even_convolution,
    "batch_norm": _even_blocks,
    "row_norm": _even_rows,
}
_FILL: Mapping[str, Callable[[Kernel], list[float]]] = {
    "matmul": _fill_matmul,
    "convolution": _fill_convolution,
    "attention": _fill_attention,
    "batch_norm": _fill_blocks,
    "row_norm": _fill_rows,
}


def _numel(spec: Spec | None) -> int:
    return 0 if spec is None else spec.numel


def _log(value: float) -> float:
    return log(value + 1.0)
