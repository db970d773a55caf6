"""Healing: the graph closes over lost ranks.

a ring without rank 2:      1 - 2 - 3  becomes  1 - 3
a star without its centre:  the leaves become a ring
"""

from collections.abc import Set
from functools import lru_cache

from ..layout import Ranks
from .graph import Graph


def heal(graph: Graph, lost: Set[int]) -> Graph:
    """The graph without the lost ranks, connected if it was before; lost ranks keep their place, without neighbours.

    Lost ranks that hung together leave one gap; the living around a gap are joined in a ring, in the order of ranks.
    So no rank gets more than two new neighbours for those that it loses in a gap. All losses go into one call, with
    the graph as it was at first: then the result does not depend on the order in which a rank heard of them.
    """
    return _heal(graph.draws, frozenset(lost))


@lru_cache(maxsize=16)  # every survivor asks for the same
def _heal(draws: Graph, lost: frozenset[int]) -> Graph:
    joined: dict[int, set[int]] = {}  # to whom by healing
    for rim in _rims(draws, lost):
        for rank, after in zip(rim, rim[1:] + rim[:1], strict=True):
            joined.setdefault(rank, set()).add(after)
            joined.setdefault(after, set()).add(rank)
    return Graph.of_draws(
        () if rank in lost else others if rank not in joined else _without(others, lost, joined[rank] - {rank})
        for rank, others in enumerate(draws)
    )


def _without(others: Ranks, lost: frozenset[int], joined: set[int]) -> Ranks:
    kept = [other for other in others if other not in lost]
    return tuple(sorted([*kept, *joined.difference(kept)]))


def _rims(graph: Graph, lost: frozenset[int]) -> list[list[int]]:
    """For every gap, the living ranks around it, sorted."""
    rims, open_ = [], set(lost)
    while open_:
        gap, edge = set[int](), {open_.pop()}
        around: set[int] = set()
        while edge:
            gap |= edge
            met = {other for rank in edge for other in graph[rank]}
            around |= met - lost
            edge = (met & lost) - gap
        open_ -= gap
        rims.append(sorted(around))
    return rims
