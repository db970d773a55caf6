"""Topologies: who may exchange with whom. Pure functions of the number of workers."""

from collections.abc import Callable
from functools import lru_cache

from .errors import unknown
from .layout import Ranks

Neighbours = tuple[Ranks, ...]  # neighbours[rank], sorted


def ring(workers: int) -> Neighbours:
    return _undirected(workers, lambda rank: [rank + 1])


def exponential(workers: int) -> Neighbours:
    """Every rank is joined to those 1, 2, 4, ... further on."""
    return _undirected(workers, lambda rank: [rank + 2**k for k in range(max(workers - 1, 0).bit_length())])


def complete(workers: int) -> Neighbours:
    return _undirected(workers, lambda rank: list(range(rank + 1, workers)))


TOPOLOGIES: dict[str, Callable[[int], Neighbours]] = {f.__name__: f for f in (ring, exponential, complete)}


@lru_cache(maxsize=4)  # thousands of simulated workers ask for the same
def neighbours(topology: str, workers: int) -> Neighbours:
    if topology not in TOPOLOGIES:
        raise unknown("topology", topology, TOPOLOGIES)
    return TOPOLOGIES[topology](workers)


def _undirected(workers: int, onward: Callable[[int], list[int]]) -> Neighbours:
    sets: list[set[int]] = [set() for _ in range(workers)]
    for rank in range(workers):
        for other in onward(rank):
            if other % workers != rank:
                sets[rank].add(other % workers)
                sets[other % workers].add(rank)
    return tuple(tuple(sorted(s)) for s in sets)
