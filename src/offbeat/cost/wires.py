"""Wires: how long an all-reduce over the workers of a layout takes, by data sheet or as it was measured."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from ..errors import BadInput, unknown
from ..layout import Layout, Ranks
from ..sim.network import Link, Swaps
from ..sim.rates import parse_rate
from .collectives import ALGORITHMS, Cost, Hop, fastest, hierarchical
from .device_profile import DeviceProfile
from .fit import Fitted
from .two_level import TwoLevel

Where = Literal["intra-node", "inter-node"]
HIERARCHICAL = "hierarchical"
ALL_REDUCES = ("fastest", *ALGORITHMS, HIERARCHICAL)
MEASURED = "measured"  # in place of a rate
DATASHEET_BAND = (0.9, 1.25)  # a link carries a little more or quite less than one thinks


@dataclass(frozen=True, kw_only=True)
class Wires:
    """The links of a cluster: what the virtual world's network charges when nothing else is under way.

    The ring goes through a node's workers before it leaves the node, so that it crosses each link once each way.
    """

    link: Link  # of each node
    local: Link  # of each worker inside its node
    fitted: Fitted | None = None  # instead, where all-reduces were measured
    two_level: TwoLevel | None = None  # hierarchical ones
    swap: Fitted | None = None  # swaps; None: by the links
    all_reduce_by: str = "fastest"  # of ring and tree; or ring, tree, hierarchical
    slower: float = 1.0  # all of it, for a band

    def __post_init__(self) -> None:
        if self.all_reduce_by not in ALL_REDUCES:
            raise unknown("way to all-reduce", self.all_reduce_by, ALL_REDUCES)
        if self.fitted is not None and self.all_reduce_by in ALGORITHMS:
            raise BadInput(
                f"--all-reduce {self.all_reduce_by}: those of --link measured are as the library makes them: give a "
                f"rate such as 100gbit, or leave it out"
            )
        if self.fitted is not None and self.all_reduce_by == HIERARCHICAL and self.two_level is None:
            raise BadInput(
                "--all-reduce hierarchical: the profile has no measured one: give a rate such as 100gbit, or run "
                "offbeat calibrate --workers 4, which is two nodes of two"
            )

    def all_reduce(self, nbytes: float, ranks: Ranks, layout: Layout) -> Cost:
        """By the ring or the tree, whichever is faster."""
        if len(ranks) == 1:
            return Cost(0.0, 0.0)
        if self.fitted is not None:
            nodes = self._even(ranks, layout)
            two = self.two_level if self.all_reduce_by == HIERARCHICAL and 1 < nodes < len(ranks) else None
            if two is not None:
                cost = two.cost(nbytes, len(ranks) // nodes, nodes)
            else:
                cost = self.fitted.cost(nbytes, len(ranks))
        elif self.all_reduce_by == HIERARCHICAL and (even := self._even(ranks, layout)):
            inside, per_node = Hop(self.local.seconds, 1 / self.local.bytes_per_second), len(ranks) // even
            share = Hop(self.link.seconds, per_node / self.link.bytes_per_second)  # a worker's, of its node's link
            cost = hierarchical(nbytes, per_node, even, inside, share)
        else:
            algorithm = ALGORITHMS.get(self.all_reduce_by, fastest)
            cost = algorithm(nbytes, len(ranks), self._slowest_hop(ranks, layout))
        return Cost(cost.latency_seconds * self.slower, cost.transfer_seconds * self.slower)

    def where(self, ranks: Ranks, layout: Layout) -> Where:
        """Which links hold the group back."""
        if self._within(ranks, layout):
            return "intra-node"
        alone = not self._neighbours(ranks, layout)
        return "inter-node" if alone or self.link.bytes_per_second <= self.local.bytes_per_second else "intra-node"

    def as_links(self) -> tuple[Link, Link]:
        """(between nodes, inside) for the virtual world, which knows no other; of what was fitted, its large pieces."""
        links = self.link, self.local
        if self.fitted is not None:
            measured = _link_of(self.fitted.pieces[-1].hop)
            links = measured, measured
        between, inside = map(self._slowed, links)
        return between, inside

    def swaps(self) -> Swaps:
        """For the virtual world: as they were measured; by the links where they were not."""
        if self.swap is None:
            return ()
        pieces = [(piece.nbytes, _link_of(piece.hop)) for piece in self.swap.pieces]
        return tuple((nbytes, self._slowed(link)) for nbytes, link in pieces)

    @property
    def band(self) -> tuple[float, float]:
        """Of the time of an all-reduce, relative."""
        if self.fitted is None:
            return DATASHEET_BAND
        error = self.fitted.error
        if self.all_reduce_by == HIERARCHICAL and self.two_level is not None:
            error = max(error, self.two_level.error)  # the layout says which of the two it is
        return 1 / (1 + 2 * error), 1 + 2 * error

    def _slowed(self, link: Link) -> Link:
        return Link(bytes_per_second=link.bytes_per_second / self.slower, seconds=link.seconds * self.slower)

    def _slowest_hop(self, ranks: Ranks, layout: Layout) -> Hop:
        used = [self.local] if self._within(ranks, layout) else [self.link]
        if len(used) == 1 and self._neighbours(ranks, layout):
            used.append(self.local)
        return Hop(max(link.seconds for link in used), 1 / min(link.bytes_per_second for link in used))

    def _even(self, ranks: Ranks, layout: Layout) -> int:
        """The nodes of these ranks, where each has as many of them; else 0."""
        counts = Counter(layout.node_of[rank] for rank in ranks)
        return len(counts) if len(set(counts.values())) == 1 else 0

    def _within(self, ranks: Ranks, layout: Layout) -> bool:
        return len({layout.node_of[rank] for rank in ranks}) == 1

    def _neighbours(self, ranks: Ranks, layout: Layout) -> bool:
        """Whether two of them share a node."""
        return len({layout.node_of[rank] for rank in ranks}) < len(ranks)


def wires_of(
    profile: DeviceProfile, link: str, latency: float, local_link: str | None, local_latency: float | None
) -> Wires:
    """Links as people write them; inside a node, the device's own where none are given."""
    local = Link(
        bytes_per_second=profile.local.bytes_per_second if local_link is None else parse_rate(local_link),
        seconds=profile.local.seconds if local_latency is None else local_latency,
    )
    if link == MEASURED and (local_link, local_latency) != (None, None):
        raise BadInput(
            "--link measured is the link between all workers, wherever they are: leave out --local-link and "
            "--local-latency, or give a rate"
        )
    if link == MEASURED:
        if profile.all_reduce is None:
            raise BadInput(
                f"--link measured: the profile of {profile.device.name} has no measured all-reduce: give a rate such "
                f"as 100gbit, or run offbeat calibrate --workers 2"
            )
        return Wires(
            link=local, local=local, fitted=profile.all_reduce, two_level=profile.hierarchical, swap=profile.swap
        )
    return Wires(link=Link(bytes_per_second=parse_rate(link), seconds=latency), local=local)


def _link_of(hop: Hop) -> Link:
    return Link(bytes_per_second=1 / max(hop.seconds_per_byte, 1e-15), seconds=hop.seconds)
