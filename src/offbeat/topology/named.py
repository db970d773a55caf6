"""Topologies by name: functions of the number of workers, and files of edges."""

import random
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import isqrt
from pathlib import Path

from ..errors import BadInput, unknown
from .edge_list import parse_edges, read_text
from .graph import Graph

DEGREE, SEED = 4, 0  # of random_regular without more words
MOST_WORKERS, MOST_COMPLETE = 1 << 20, 1 << 13


def ring(workers: int) -> Graph:
    """Every rank is joined to the next, the last to the first."""
    return _onward(workers, lambda rank: [rank + 1])


def exponential(workers: int) -> Graph:
    """Every rank is joined to those 1, 2, 4, ... further on and further back; drawn twice where both are the same."""
    hops = [sign * 2**k for k in range((workers - 1).bit_length()) for sign in (1, -1)]
    return Graph.of_draws(tuple(sorted((rank + hop) % workers for hop in hops)) for rank in range(workers))


def complete(workers: int) -> Graph:
    """All are joined to all."""
    return Graph((*range(rank), *range(rank + 1, workers)) for rank in range(workers))


def torus(workers: int) -> Graph:
    """Rows and columns as nearly square as the number allows, each of them a ring."""
    _, columns = torus_sides(workers)
    return _onward(workers, lambda rank: [rank + columns, rank + 1 if (rank + 1) % columns else rank + 1 - columns])


def hypercube(workers: int) -> Graph:
    """Ranks are joined that differ in one bit."""
    bits = workers.bit_length() - 1
    if workers != 1 << bits:
        raise BadInput(
            f"hypercube does not fit {workers} workers, whose number must be a power of two: "
            f"use {1 << bits} or {1 << bits + 1}"
        )
    return Graph(tuple(sorted(rank ^ 1 << bit for bit in range(bits))) for rank in range(workers))


def star(workers: int) -> Graph:
    """All are joined to rank 0 only."""
    return Graph.of_edges(workers, ((0, rank) for rank in range(1, workers)))


def random_regular(workers: int, degree: int = DEGREE, seed: int = SEED) -> Graph:
    """Every rank has `degree` neighbours, drawn at random; the first draw that holds together."""
    import networkx

    name = f"random_regular-{degree}"
    if degree >= workers:
        raise BadInput(
            f"{name} does not fit {workers} workers, who have {workers - 1} others each: "
            f"use complete, or {degree + 1} workers or more"
        )
    if workers * degree % 2:
        raise BadInput(
            f"{name} does not fit {workers} workers, as the product of the two must be even: "
            f"use {workers + 1} workers, or random_regular-{degree + 1 if degree + 1 < workers else degree - 1}"
        )
    if degree < min(2, workers - 1):
        raise BadInput(
            f"{name} does not fit {workers} workers, which it cannot hold together: use random_regular-2 or more"
        )
    chance = random.Random(f"{name} {workers} {seed}")
    sparse = degree <= workers // 2  # the draw takes forever where few edges are missing, so draw those
    while True:
        drawn = networkx.random_regular_graph(degree if sparse else workers - 1 - degree, workers, seed=chance)
        graph = Graph.of_edges(workers, (drawn if sparse else networkx.complement(drawn)).edges)
        if graph.connected:
            return graph


def torus_sides(workers: int) -> tuple[int, int]:
    """Rows and columns; no more rows than columns."""
    rows = next(side for side in range(isqrt(workers), 0, -1) if workers % side == 0)
    if rows == 1 < workers:
        near = "4" if workers < 4 else f"{workers - 1} or {workers + 1}"
        raise BadInput(
            f"torus does not fit {workers} workers, a prime number that no rows and columns make up: use {near}"
        )
    return rows, workers // rows


TOPOLOGIES: dict[str, Callable[[int], Graph]] = {
    f.__name__: f for f in (ring, exponential, complete, torus, hypercube, star, random_regular)
}


def neighbours(topology: str, workers: int) -> Graph:
    """`ring`, `random_regular-4-1` or `edges.txt`, for so many workers."""
    check_topology(topology)
    if workers < 1:
        raise BadInput(f"a topology of {workers} workers joins nobody: give at least 1")
    most = MOST_COMPLETE if topology == complete.__name__ else MOST_WORKERS
    if workers > most:
        raise BadInput(f"{topology} of {workers} workers does not fit into memory: use {most} or fewer")
    if is_file(topology):
        return parse_edges(topology, read_text(topology), workers)
    return _named(topology, workers)


def check_topology(topology: str) -> None:
    """All that can be told before the number of workers is known."""
    if is_file(topology) or topology in TOPOLOGIES:
        return
    if topology.partition("-")[0] != random_regular.__name__:
        raise BadInput(f"{unknown('topology', topology, TOPOLOGIES)}, or a file of edges such as ./edges.txt")
    _degree_and_seed(topology)


def is_file(topology: str) -> bool:
    """A name with a dot or a slash, or of a file that is there, is that of an edge list."""
    return topology not in TOPOLOGIES and ("." in topology or "/" in topology or Path(topology).is_file())


@lru_cache(maxsize=4)  # thousands of simulated workers ask for the same
def _named(topology: str, workers: int) -> Graph:
    if topology in TOPOLOGIES:
        return TOPOLOGIES[topology](workers)
    return random_regular(workers, *_degree_and_seed(topology))


def _degree_and_seed(topology: str) -> tuple[int, int]:
    """4 and 1 of `random_regular-4-1`."""
    numbers = topology.split("-")[1:]
    if not 1 <= len(numbers) <= 2 or not all(n.isascii() and n.isdecimal() for n in numbers) or int(numbers[0]) < 1:
        raise BadInput(
            f"{topology} does not fit: write random_regular-DEGREE or random_regular-DEGREE-SEED with a degree "
            f"of at least 1, as in random_regular-{DEGREE}-{SEED}"
        )
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else SEED


def _onward(workers: int, onward: Callable[[int], Iterable[int]]) -> Graph:
    """Each rank is joined to those that `onward` tells, counted round."""
    return Graph.of_edges(workers, ((rank, other % workers) for rank in range(workers) for other in onward(rank)))
