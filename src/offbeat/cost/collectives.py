"""Collectives: seconds of S bytes over p ranks, from the latency a of a hop and its seconds per byte b.

    ring            2 (p - 1) a + 2 (p - 1) / p S b
    tree            2 ceil(log2 p) a + 2 S b                                     (pipelined, double binary)
    hierarchical    2 (L - 1) a1 + 2 (L - 1) / L S b1 + 2 (m - 1) a2 + 2 (m - 1) / m (S / L) b2
    swap            a + S b                                                      (both ways at once)

Hierarchical: L ranks on each of m nodes; reduced inside the node (hop 1), each rank's L-th part between nodes (hop 2).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import unknown


@dataclass(frozen=True)
class Hop:
    """From one rank to the next."""

    seconds: float  # a: latency
    seconds_per_byte: float  # b


class Cost(NamedTuple):
    """What a collective takes, by what it is spent on."""

    latency_seconds: float
    transfer_seconds: float

    @property
    def seconds(self) -> float:
        return self.latency_seconds + self.transfer_seconds


def ring(nbytes: float, ranks: int, hop: Hop) -> Cost:
    """2 (p - 1) pieces of S / p over every hop, one after the other."""
    hops = 2 * (ranks - 1)
    return Cost(hops * hop.seconds, hops / ranks * nbytes * hop.seconds_per_byte)


def tree(nbytes: float, ranks: int, hop: Hop) -> Cost:
    """Up and down the tree; every rank sends S twice."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    rounds = (ranks - 1).bit_length()  # ceil(log2 p)
    return Cost(2 * rounds * hop.seconds, 2 * nbytes * hop.seconds_per_byte)


def hierarchical(nbytes: float, ranks_per_node: int, nodes: int, inside: Hop, between: Hop) -> Cost:
    """A ring inside every node, and one between nodes for each rank's part; `between` is one rank's way out."""
    first = ring(nbytes, ranks_per_node, inside)
    second = ring(nbytes / ranks_per_node, nodes, between)
    return Cost(first.latency_seconds + second.latency_seconds, first.transfer_seconds + second.transfer_seconds)


def swap(nbytes: float, hop: Hop) -> Cost:
    """Two ranks exchange S bytes."""
    return Cost(hop.seconds, nbytes * hop.seconds_per_byte)


Algorithm = Callable[[float, int, Hop], Cost]
ALGORITHMS: dict[str, Algorithm] = {"ring": ring, "tree": tree}


def _pairwise(nbytes: float, _ranks: int, hop: Hop) -> Cost:
    return swap(nbytes, hop)


FORMULAS: dict[str, Algorithm] = {**ALGORITHMS, "swap": _pairwise}  # all that can be fitted to what was measured


def find_formula(name: str) -> Algorithm:
    """That of this name."""
    if name not in FORMULAS:
        raise unknown("collective", name, FORMULAS)
    return FORMULAS[name]


def fastest(nbytes: float, ranks: int, hop: Hop) -> Cost:
    """The ring or the tree, whichever is faster, as libraries choose."""
    return min((algorithm(nbytes, ranks, hop) for algorithm in ALGORITHMS.values()), key=lambda cost: cost.seconds)
