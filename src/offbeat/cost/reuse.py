"""nearness: how much of what an operation reads may still be in a cache.

Since the last operation that touched the same memory began, the step has moved so many bytes: few, and a cache close
to the core still has it; some, and the last-level cache has; more, and it comes from memory. What a step reads first it
last touched in the step before.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .counts import bytes_of
from .kernel import Kernel

Caches = tuple[int, int]  # bytes moved since: fewer, and it is near; fewer than that, and it is not far
CACHES: dict[str, Caches] = {"cpu": (1 << 20, 16 << 20), "cuda": (8 << 20, 48 << 20)}
PARTS = 8  # shares are rounded to eighths, so that kernels in like places are the same


Storage = tuple[int, int]  # its name: see Alive


class Touched(NamedTuple):
    """Memory, by storage."""

    read: tuple[tuple[Storage, int], ...]  # and bytes
    written: tuple[Storage, ...]


def nearness(kernels: Sequence[Kernel], touched: Sequence[Touched], caches: Caches) -> list[tuple[int, int]]:
    """Of each operation, the eighths of its reads that are nearest, and those that are further but not far."""
    last: dict[Storage, int] = {}  # the bytes moved so far, when what touched it began
    begins, moved, (near, far) = list[int](), 0, caches
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
