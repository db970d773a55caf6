"""TwoLevel: the hierarchical all-reduce as it was measured, from its two phases.

Inside each node the gradients are reduced, each rank keeping its L-th part, and gathered again afterwards; between
nodes the ranks of the same place reduce their parts, all L of a node at once. Each phase is a ring over its members:

    inside    2 (L - 1) a1 + 2 (L - 1) / L S b1
    between   2 (m - 1) a2 + 2 (m - 1) / m S b       b: seconds per byte of a node's link, so b2 = L b for one rank

Fitted to the phases alone, piece by piece, and judged by the whole, which nothing is fitted to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .collectives import Cost
from .fit import Fitted, Point, fit


class TwoLevelPoint(NamedTuple):
    """One size on so many nodes: seconds of each phase alone, and of all of it."""

    per_node: int
    nodes: int
    nbytes: int  # of all that is reduced
    inside: float
    between: float
    whole: float


@dataclass(frozen=True)
class TwoLevel:
    """Where each node has more than one rank, and there is more than one node."""

    inside: Fitted  # over the ranks of a node
    between: Fitted  # over nodes
    error: float  # mean, relative, of the whole

    def cost(self, nbytes: float, per_node: int, nodes: int) -> Cost:
        first, second = self.inside.cost(nbytes, per_node), self.between.cost(nbytes, nodes)
        return Cost(first.latency_seconds + second.latency_seconds, first.transfer_seconds + second.transfer_seconds)

    def as_dict(self) -> dict[str, Any]:
        return {"inside": self.inside.as_dict(), "between": self.between.as_dict(), "error": self.error}

    @classmethod
    def from_dict(cls, read: dict[str, Any]) -> "TwoLevel":
        return cls(Fitted.from_dict(read["inside"]), Fitted.from_dict(read["between"]), read["error"])


def fit_two_level(points: Sequence[TwoLevelPoint]) -> TwoLevel:
    """Two rings, and how far off their sum is."""
    inside = fit([Point(point.per_node, point.nbytes, point.inside) for point in points], ["ring"])
    between = fit([Point(point.nodes, point.nbytes, point.between) for point in points], ["ring"])
    bare = TwoLevel(inside, between, 0.0)
    errors = [abs(bare.cost(point.nbytes, point.per_node, point.nodes).seconds / point.whole - 1) for point in points]
    return TwoLevel(inside, between, sum(errors) / len(errors))
