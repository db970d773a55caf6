"""roundness: how even and how round a kernel's sizes are, and how much of the tiles and lanes they need is filled."""

from collections.abc import Callable, Mapping
from math import ceil, log, prod

from .kernel import Kernel
from .roles import convolved, factors, groups_of, largest_shape, rows_and_columns, rows_and_length

EVEN, FILL, LANE = 4, 3, 4  # the most numbers that a class has
EVENEST, ROUNDEST = 4, 10  # how often 2 divides 16, and 1,024
TILE, SLICE, THREADS = 128, 32, 512  # what a GPU computes at a time: of rows and columns, of a sum, of places
LANES, LANES_OF_A_ROW = 16, 8  # and what a CPU does: of channels, of the places of a row
IMAGE_CHANNELS = 4  # so few are read as they are


def up_to_even(kernel: Kernel) -> list[float]:
    """What is even fills vectors and blocks: the more, the better."""
    return [float(min(twos, EVENEST)) for twos in _twos_of(kernel)]


def beyond_even(kernel: Kernel) -> list[float]:
    """What is rounder than that may lie badly in a cache: rows of 512 numbers or a multiple share a few places."""
    return [float(max(0, twos - EVENEST)) for twos in _twos_of(kernel)]


def tiles_filled(kernel: Kernel) -> list[float]:
    return _FILL[kernel.kind](kernel) if kernel.kind in _FILL else []


def lanes_wasted(kernel: Kernel) -> list[float]:
    """Of a convolution: by how much its channels going in and coming out, and its rows, are enlarged to fill vectors,
    and by how much its arithmetic is: logs. 24 channels take as long as 32, which numbers of twos do not tell."""
    if kernel.kind != "convolution":
        return []
    x, weight, out = convolved(kernel)
    if x is None or weight is None:
        return []
    inner, outer = (_enlarged(each.shape[1], LANES) for each in (x, out))
    arithmetic = 0.0 if groups_of(kernel) > 1 else outer + (inner if x.shape[1] > IMAGE_CHANNELS else 0.0)
    return [inner, outer, _enlarged(out.shape[-1], LANES_OF_A_ROW), arithmetic]


def _enlarged(number: int, lanes: int) -> float:
    return -log(_filled(number, lanes)) if number else 0.0


def _twos_of(kernel: Kernel) -> list[int]:
    """How often 2 divides each."""
    numbers = _EVEN[kernel.kind](kernel) if kernel.kind in _EVEN else []
    return [next(power for power in range(ROUNDEST, -1, -1) if number % (1 << power) == 0) for number in numbers]


def _even_matmul(kernel: Kernel) -> list[int]:
    made, first, _second = factors(kernel)
    rows, columns = rows_and_columns(made)
    return [first.shape[-1], columns, rows]


def _even_convolution(kernel: Kernel) -> list[int]:
    """Libraries work on blocks of 8 or 16 channels, and read the places of a channel in fours and eights."""
    x, weight, out = convolved(kernel)
    if x is None or weight is None:
        return []
    return [x.shape[1] // groups_of(kernel), out.shape[1], prod(x.shape[2:]), prod(out.shape[2:])]


def _even_blocks(kernel: Kernel) -> list[int]:
    """Of channels and of places: what lies in fours is read at once."""
    shape = largest_shape(kernel)
    return [shape[1] if len(shape) > 1 else shape[0], prod(shape[2:])]


def _even_rows(kernel: Kernel) -> list[int]:
    return [*rows_and_length(kernel)]


def _fill_matmul(kernel: Kernel) -> list[float]:
    made, first, _second = factors(kernel)
    rows, columns = rows_and_columns(made)
    return [_filled(rows, TILE), _filled(columns, TILE), _filled(first.shape[-1], SLICE)]


def _fill_convolution(kernel: Kernel) -> list[float]:
    x, weight, out = convolved(kernel)
    if x is None or weight is None:
        return []
    return [_filled(out.shape[1], TILE), _filled(x.shape[1], TILE), _filled(prod(out.shape[2:]), TILE)]


def _fill_attention(kernel: Kernel) -> list[float]:
    query, key = kernel.tensor("query"), kernel.tensor("key")
    return [] if query is None or key is None else [_filled(query.shape[-2], TILE), _filled(key.shape[-2], TILE)]


def _fill_blocks(kernel: Kernel) -> list[float]:
    shape = largest_shape(kernel)
    return [_filled(prod(shape[2:]), THREADS), _filled(shape[1] if len(shape) > 1 else 1, TILE)]


def _fill_rows(kernel: Kernel) -> list[float]:
    return [_filled(rows_and_length(kernel)[1], TILE)]


def _filled(number: int, tile: int) -> float:
    """The share of the tiles that so many need: 130 need two of 128, and leave nearly half of them empty."""
    return number / (ceil(number / tile) * tile) if number else 0.0


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
