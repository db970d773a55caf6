"""nearness, warmth, bulk: how much of what an operation reads, and of its code, may still be in a cache.

Since the last operation that touched the same memory began, the step has moved so many bytes: few, and a cache close
to the core still has it; some, and the last-level cache has; more, and it comes from memory. What a step reads first it
last touched in the step before. The same goes for code: the first of a few short operations that are alike was seen to
take four times as long as those that follow it (gelu of 1,024 numbers, 94 us and 21 to 25). A step that moves little
leaves in the caches what serves all of its operations: the interpreter, autograd, the allocator.
"""

import itertools
from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from .counts import bytes_of
from .kernel import Kernel

PARTS = 8  # shares are rounded to eighths, so that kernels in like places are the same
WARMEST = 5  # code that ran just before


class Caches(NamedTuple):
    near: int  # where fewer bytes were moved since, memory is near;
    far: int  # where fewer than these, it is not far
    code: bool  # whether code counts, too: a GPU's kernels are launched ahead of time


CACHES: dict[str, Caches] = {"cpu": Caches(1 << 20, 16 << 20, True), "cuda": Caches(8 << 20, 48 << 20, False)}

Storage = tuple[int, int]  # its name: see Alive


class Touched(NamedTuple):
    """Memory, by storage."""

    read: tuple[tuple[Storage, int], ...]  # and bytes
    written: tuple[Storage, ...]


def nearness(kernels: Sequence[Kernel], touched: Sequence[Touched], caches: Caches) -> list[tuple[int, int]]:
    """Of each operation, the eighths of its reads that are nearest, and those that are further but not far."""
    last: dict[Storage, int] = {}  # the bytes moved so far, when what touched it began
    begins, moved, near, far = list[int](), 0, caches.near, caches.far
    for kernel, own in zip(kernels, touched, strict=True):
        begins.append(moved)
        last.update(dict.fromkeys((*(storage for storage, _ in own.read), *own.written), moved))
        moved += bytes_of(kernel)
    now = {storage: at - moved for storage, at in last.items()}  # as the step before left it
    found = []
    for begin, own in zip(begins, touched, strict=True):
        nearest = further = total = 0
        for storage, nbytes in own.read:
            distance = begin - now.get(storage, begin - far)
            nearest += nbytes if distance < near else 0
            further += nbytes if near <= distance < far else 0
            total += nbytes
        found.append((round(PARTS * nearest / total), round(PARTS * further / total)) if total else (0, 0))
        now.update(dict.fromkeys((*(storage for storage, _ in own.read), *own.written), begin))
    return found


def warmth(kernels: Sequence[Kernel], caches: Caches) -> list[int]:
    """Of each operation: WARMEST where fewer bytes than are near were moved since its code last ran, one less where
    four times as many were, and so on, to 0."""
    if not caches.code:
        return [0] * len(kernels)
    codes, ends = list(map(_code, kernels)), list(itertools.accumulate(map(bytes_of, kernels)))  # bytes moved by then
    ended = {code: end - ends[-1] for code, end in zip(codes, ends, strict=True)}  # as the step before left it
    found = []
    for code, begin, end in zip(codes, (0, *ends), ends, strict=False):
        distance = begin - ended[code]
        found.append(sum(distance < caches.near << 2 * level for level in range(WARMEST)))
        ended[code] = end
    return found


def bulk(kernels: Sequence[Kernel], caches: Caches) -> int:
    """Of a step: the bytes that it moves, as twice their logarithm to base 2; 0 where code does not count."""
    return round(2 * log2(1 + sum(map(bytes_of, kernels)))) if caches.code else 0


def _code(kernel: Kernel) -> str:
    """What is compiled once: what oneDNN computes, for its very shapes."""
    of_its_shapes = (
        kernel.kind == "convolution"
        or kernel.operator in ("gelu", "gelu_backward")
        or (kernel.kind == "matmul" and kernel.dtype.itemsize == 2)
    )
    return kernel.call if of_its_shapes else f"{kernel.name} {kernel.dtype}"
