"""Meetings: which workers a contestant lets talk to each other, for the picture of the cluster."""

from dataclasses import dataclass

from ..errors import BadInput
from ..layout import Layout
from ..strategies import make_strategy
from ..strategies.gossip import Gossip
from ..strategies.sgp import SGP
from ..topology import neighbours

MOST_EDGES = 2000  # that a picture can show


@dataclass(frozen=True)
class Meetings:
    sentence: str
    edges: tuple[tuple[int, int], ...] = ()  # of ranks; none: nobody meets, or all do at once
    directed: bool = False


def meetings(spec: str, layout: Layout) -> Meetings:
    if ".py:" in spec:
        return Meetings("A rival does not tell who meets whom.")
    strategy = make_strategy(spec)
    workers = layout.workers
    if isinstance(strategy, Gossip):
        try:
            graph = neighbours(strategy.topology, workers)
        except BadInput as error:  # its lap has failed for the same reason
            return Meetings(f"{error}.")
        found = Meetings(f"Pairs of neighbours average, on the graph {strategy.topology}.", tuple(graph.edges))
    elif isinstance(strategy, SGP):
        hops = [1 << k for k in range((workers - 1).bit_length())]
        arrows = tuple((rank, (rank + hop) % workers) for hop in hops for rank in layout.ranks)
        found = Meetings("Each worker sends half of its model to one other, at distances 1, 2, 4, ...", arrows, True)
    elif strategy.name == "none":
        return Meetings("Nobody talks to anybody.")
    elif 1 < len(strategy.gradient_ranks(layout, 0)) < workers:
        return Meetings("Gradients are averaged within each node, models across the nodes.")
    else:
        return Meetings("All workers average together.")
    if len(found.edges) > MOST_EDGES:
        return Meetings(f"{found.sentence} Its {len(found.edges):,} edges are too many to show.")
    return found
