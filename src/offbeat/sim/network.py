"""Network: how long messages take in virtual time, on links that they share.

Nodes hang on a non-blocking switch. A node has one full-duplex link to it, that is two wires, up and down;
inside a node every rank has a faster full-duplex port. Traffic between nodes uses the nodes' links, traffic
inside a node the ranks' ports; neither disturbs the other.

A transfer moves in lockstep over a set of wires: it has one rate, which it takes on each of them. So a swap is
one transfer over both directions, and a ring all-reduce, which is as fast as its slowest hop, one over all
its hops. It holds its wires until its bytes are through, and is complete when the latency has passed too.

Transfers share wires by max-min fairness: no rate can grow without taking from one that is no greater. Every
wire has a level, the most that one transfer may take there. A transfer's rate is the lowest level on its
wires; a wire's level is such that its transfers, each held back by its other wires too, fill it:

    rate_t = min over wires w of t: level_w        sum over transfers t on w: min(level_w, limit_t) = capacity_w

where limit_t is the lowest level on the other wires of t. The solution is unique, and is the max-min share
(Bertsekas and Gallager, Data Networks, 6.5; Charny, Clark and Jain 1995). When a transfer starts or ends, the
levels of its wires are worked out anew, then those of the wires on which a rate has changed, and so on.

What is approximate:

- Where more than `EXACT_TRANSFERS` transfers hang together through shared wires, a rate stays as it is while
  its max-min share is within `TOLERANCE` of it. This stops the ripples, so that the cost of an event does not
  grow with the network; a wire may then be overfull, or idle, by a few `TOLERANCE`. With 8 ranks on each of 64
  nodes and links 90 % busy, the time of a swap was off by 0.2 % (root mean square), at most by 3 %, on average
  by 0.04 %. Below that number rates are exact (to 1e-12).
- A tree is charged to the wires of the chain or ring over the same ranks: every rank's wires are held until
  the slowest is through. A tree and a ring are chosen by their times on an idle network.
- Latency comes after the bytes: the gaps that it leaves between the steps of a ring are not offered to others.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from ..errors import BadInput
from ..layout import Layout, Ranks
from .clock import Clock, Event

EXACT_TRANSFERS = 64
EXACT = 1e-12
TOLERANCE = 0.01
LAST = 1 << 30  # the priority of the rating pass: after all that happens at the same time


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex link; both directions alike."""

    bytes_per_second: float  # each way, > 0
    seconds: float  # latency, one way, from end to end, >= 0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_second < inf:
            raise BadInput(
                f"a link of {self.bytes_per_second} bytes per second carries nothing or has no limit: "
                "give a positive number, such as 1.25e9"
            )
        if not 0 <= self.seconds < inf:
            raise BadInput(f"a latency of {self.seconds} s is not a time: give 0 or more, such as 50e-6")


Swaps = tuple[tuple[int, Link], ...]  # what a swap takes alone, from so many bytes on; the first for less, too


class Wire:
    """One direction of a link."""

    __slots__ = ("capacity", "level", "load", "name", "once", "queued", "seen", "transfers")

    def __init__(self, name: str, capacity: float) -> None:
        self.name = name
        self.capacity = capacity  # bytes per second
        self.transfers: dict[Transfer, int] = {}  # how often each crosses this wire; in order of arrival
        self.level = inf  # infinite: room is left, all transfers are held back elsewhere
        self.load = 0.0  # bytes per second, kept up with every change of a rate
        self.once = (self, 1)
        self.queued = False
        self.seen = 0  # the last rating pass that came by

    def __repr__(self) -> str:
        return f"<{self.name}: {self.load:.4g} of {self.capacity:.4g} bytes/s>"


class Transfer:
    """Bytes under way; see `Network.transfer`."""

    __slots__ = (
        "at",
        "before",
        "event",
        "latency",
        "low",
        "rate",
        "remaining",
        "second",
        "seen",
        "since",
        "then",
        "touched",
        "wires",
    )

    def __init__(
        self, wires: tuple[tuple[Wire, int], ...], nbytes: float, then: Callable[[], object], latency: float
    ) -> None:
        self.wires = wires  # each with how often it is crossed; empty when the bytes are through
        self.remaining = nbytes  # at the time `since`
        self.since = 0.0
        self.rate = 0.0  # bytes per second; 0 until it is first rated, at the end of the instant
        self.then = then
        self.latency = latency
        self.event: Event | None = None  # the last byte leaves, later the last byte arrives
        # The lowest level on the wires, where it is (None: not known), and the lowest elsewhere (-1: not known).
        self.low = inf
        self.at: Wire | None = None
        self.second = -1.0
        self.seen = 0
        self.touched = 0  # the last rating pass that changed the rate, and the rate before it
        self.before = 0.0

    def find_lowest(self) -> None:
        low = second = inf
        at = self.wires[0][0]
        for wire, _ in self.wires:
            level = wire.level
            if level < low:
                second = low
                low = level
                at = wire
            elif level < second:
                second = level
        self.low, self.second, self.at = low, second, at


class _Path(NamedTuple):
    """A ring or a chain over ranks."""

    wires: tuple[tuple[Wire, int], ...]
    bytes_per_second: float  # of the slowest wire
    slowest_hop: float  # seconds
    all_hops: float  # seconds


class Network:
    """`link`: of every node, or one per node; between two nodes the greater latency counts. `local`: of a rank.

    `swaps`: where swaps were measured by themselves, they take that on idle wires; for the wires, which they share with
    all else, each is as many bytes as those carry in that time.
    """

    def __init__(
        self,
        layout: Layout,
        clock: Clock,
        *,
        link: Link | Sequence[Link],
        local: Link,
        swaps: Swaps = (),
    ) -> None:
        links = (link,) * layout.nodes if isinstance(link, Link) else tuple(link)
        if len(links) != layout.nodes:
            raise BadInput(
                f"{len(links)} links do not fit {layout.nodes} nodes: give one link for all, or one per node"
            )
        self.layout = layout
        self.clock = clock
        self.up = tuple(Wire(f"node {node} up", link.bytes_per_second) for node, link in enumerate(links))
        self.down = tuple(Wire(f"node {node} down", link.bytes_per_second) for node, link in enumerate(links))
        self.port_up = tuple(Wire(f"rank {rank} up", local.bytes_per_second) for rank in layout.ranks)
        self.port_down = tuple(Wire(f"rank {rank} down", local.bytes_per_second) for rank in layout.ranks)
        self._link_seconds = tuple(link.seconds for link in links)
        self._local_seconds = local.seconds
        self._swaps = swaps
        self._dirty: list[Wire] = []  # wires whose transfers have changed in this instant
        self._passes = 0
        self._ring = lru_cache(maxsize=1024)(self._find_ring)
        self._chain = lru_cache(maxsize=1024)(self._find_chain)

    # What a strategy asks for.

    def swap(self, a: int, b: int, nbytes: float, then: Callable[[], object]) -> Transfer:
        """`nbytes` from a to b and as many from b to a, at once; `then` runs when both have arrived."""
        wires, nbytes, latency = self._swap(a, b, nbytes)
        return self._start(wires, nbytes, then, latency)

    def swap_seconds(self, a: int, b: int, nbytes: float) -> float:
        """How long a swap takes on an idle network."""
        wires, nbytes, latency = self._swap(a, b, nbytes)
        return latency + nbytes / min(wire.capacity for wire, _ in wires)

    def all_reduce(self, ranks: Ranks, nbytes: float, then: Callable[[], object]) -> Transfer:
        """Sum `nbytes` over `ranks`, by the ring or the tree, whichever is faster on an idle network.

        The ring (ordered by node) sends 2 (p - 1) pieces of nbytes / p over every hop, one after the other:
        2 (p - 1) hops of latency. The tree is the pipelined double binary tree, as in NCCL: every rank sends
        2 nbytes, in 2 ceil(log2 p) hops of latency.
        """
        path = self._ring(ranks)
        sent, latency = _all_reduce_plan(path, len(ranks), nbytes)
        return self._start(path.wires, sent, then, latency)

    def all_reduce_seconds(self, ranks: Ranks, nbytes: float) -> float:
        """How long an all-reduce takes on an idle network."""
        path = self._ring(ranks)
        sent, latency = _all_reduce_plan(path, len(ranks), nbytes)
        return latency + sent / path.bytes_per_second

    def broadcast(self, source: int, ranks: Ranks, nbytes: float, then: Callable[[], object]) -> Transfer:
        """`nbytes` from `source` to all `ranks`, by chain or tree, whichever is faster on an idle network.

        The chain is pipelined: nbytes once over every hop, p - 1 hops of latency. The binomial tree takes
        ceil(log2 p) rounds, each of one hop of latency and nbytes.
        """
        path = self._chain(source, ranks)
        sent, latency = _broadcast_plan(path, len(ranks), nbytes)
        return self._start(path.wires, sent, then, latency)

    def broadcast_seconds(self, source: int, ranks: Ranks, nbytes: float) -> float:
        """How long a broadcast takes on an idle network."""
        path = self._chain(source, ranks)
        sent, latency = _broadcast_plan(path, len(ranks), nbytes)
        return latency + sent / path.bytes_per_second

    # Transfers.

    def transfer(
        self, path: Iterable[Wire], nbytes: float, then: Callable[[], object], latency: float = 0.0
    ) -> Transfer:
        """Move `nbytes` over all wires of `path` in lockstep; `then` runs `latency` seconds after the last byte.

        A wire that occurs twice in the path carries every byte twice. An empty path takes no time but latency.
        """
        crossed: dict[Wire, int] = {}
        for wire in path:
            crossed[wire] = crossed.get(wire, 0) + 1
        return self._start(tuple(crossed.items()), nbytes, then, latency)

    def cancel(self, transfer: Transfer) -> None:
        """Give up a transfer: it leaves its wires, and its `then` will not run."""
        if transfer.event is not None:
            self.clock.cancel(transfer.event)
        if transfer.wires:
            self._leave(transfer)

    def hop(self, a: int, b: int) -> tuple[Wire, Wire]:
        """The two wires from rank a to rank b: out of a, and into b."""
        node_of = self.layout.node_of
        if node_of[a] == node_of[b]:
            return self.port_up[a], self.port_down[b]
        return self.up[node_of[a]], self.down[node_of[b]]

    def hop_seconds(self, a: int, b: int) -> float:
        """The latency from rank a to rank b."""
        node_a, node_b = self.layout.node_of[a], self.layout.node_of[b]
        if node_a == node_b:
            return self._local_seconds
        return max(self._link_seconds[node_a], self._link_seconds[node_b])

    def _swap(self, a: int, b: int, nbytes: float) -> tuple[tuple[tuple[Wire, int], ...], float, float]:
        """The wires, the bytes on them, and the latency."""
        wires, latency = self._both_ways(a, b)
        if not self._swaps:
            return wires, nbytes, latency
        own = self._swaps[max(0, bisect_right(self._swaps, nbytes, key=lambda each: each[0]) - 1)][1]
        share = min(wire.capacity for wire, _ in wires) / own.bytes_per_second
        return wires, nbytes * share, own.seconds

    def _both_ways(self, a: int, b: int) -> tuple[tuple[tuple[Wire, int], ...], float]:
        workers = self.layout.workers
        if a == b or not (0 <= a < workers and 0 <= b < workers):
            raise BadInput(f"ranks {a} and {b} cannot swap: give two different ranks from 0 to {workers - 1}")
        node_a, node_b = self.layout.node_of[a], self.layout.node_of[b]
        if node_a == node_b:
            up, down, latency = self.port_up, self.port_down, self._local_seconds
        else:
            up, down = self.up, self.down
            latency = max(self._link_seconds[node_a], self._link_seconds[node_b])
            a, b = node_a, node_b
        return (up[a].once, down[b].once, up[b].once, down[a].once), latency

    def _find_ring(self, ranks: Ranks) -> _Path:
        order = self._by_node(ranks)
        return self._path(order, [*order[1:], order[0]])

    def _find_chain(self, source: int, ranks: Ranks) -> _Path:
        order = self._by_node(ranks)
        if source not in order:
            raise BadInput(f"rank {source} is not one of the ranks {ranks}: broadcast from one of them")
        node_of = self.layout.node_of
        order.sort(key=lambda rank: (node_of[rank] != node_of[source], rank != source))
        return self._path(order[:-1], order[1:])

    def _by_node(self, ranks: Ranks) -> list[int]:
        workers = self.layout.workers
        if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= workers:
            raise BadInput(f"ranks {ranks} are not a group: give one or more different ranks from 0 to {workers - 1}")
        return sorted(ranks, key=lambda rank: (self.layout.node_of[rank], rank))

    def _path(self, senders: Sequence[int], receivers: Sequence[int]) -> _Path:
        hops = [(a, b) for a, b in zip(senders, receivers, strict=True) if a != b]
        wires = tuple(wire.once for a, b in hops for wire in self.hop(a, b))
        seconds = [self.hop_seconds(a, b) for a, b in hops]
        slowest = min((wire.capacity for wire, _ in wires), default=inf)
        return _Path(wires, slowest, max(seconds, default=0.0), sum(seconds))

    # Rates.

    def _start(
        self, wires: tuple[tuple[Wire, int], ...], nbytes: float, then: Callable[[], object], latency: float
    ) -> Transfer:
        if not 0 <= nbytes < inf:
            raise BadInput(f"{nbytes} bytes cannot be sent: give a number of bytes, 0 or more")
        clock = self.clock
        transfer = Transfer(wires, nbytes, then, latency)
        if not wires or nbytes == 0:
            transfer.wires = ()
            transfer.event = clock.after(latency, then)
            return transfer
        transfer.since = clock.now
        alone = True
        rate = inf
        for wire, times in wires:
            if wire.transfers:
                alone = False
                self._disturb(wire)
            else:
                wire.level = level = wire.capacity / times
                if level < rate:
                    rate = level
            wire.transfers[transfer] = times
        if alone:
            transfer.rate = rate
            for wire, times in wires:
                wire.load = rate * times
            transfer.event = clock.at(clock.now + nbytes / rate, partial(self._finish, transfer))
        return transfer

    def _finish(self, transfer: Transfer) -> None:
        self._leave(transfer)
        if transfer.latency:
            transfer.event = self.clock.after(transfer.latency, transfer.then)
        else:
            transfer.then()

    def _leave(self, transfer: Transfer) -> None:
        rate = transfer.rate
        for wire, times in transfer.wires:
            sharers = wire.transfers
            del sharers[transfer]
            if sharers:
                wire.load -= rate * times
                self._disturb(wire)
            else:
                wire.load = 0.0
        transfer.wires = ()

    def _disturb(self, wire: Wire) -> None:
        """Have the rates on this wire worked out anew, at the end of this instant."""
        if not wire.queued:
            wire.queued = True
            if not self._dirty:
                self.clock.at(self.clock.now, self._rate, LAST)
            self._dirty.append(wire)

    def _rate(self) -> None:
        queue = self._dirty
        self._dirty = []
        self._passes = this_pass = self._passes + 1
        tolerance, updates_left = self._effort(queue)
        clock = self.clock
        now = clock.now
        changed: list[Transfer] = []
        for wire in queue:  # grows as changes spread
            wire.queued = False
            if not wire.transfers:
                continue
            updates_left -= 1
            if updates_left < 0:  # not seen yet; ends even a cycle that rounding might cause
                tolerance = max(2 * tolerance, TOLERANCE)
                updates_left = len(queue)
            self._set_level(wire, tolerance)
            for transfer in wire.transfers:
                low, rate = transfer.low, transfer.rate
                change = low - rate
                if -tolerance * rate <= change <= tolerance * rate:
                    continue
                if transfer.touched != this_pass:
                    transfer.touched = this_pass
                    transfer.before = rate
                    transfer.remaining -= rate * (now - transfer.since)
                    transfer.since = now
                    changed.append(transfer)
                transfer.rate = low
                for other, times in transfer.wires:
                    other.load += change * times
                    if (
                        not other.queued
                        and other is not wire
                        and len(other.transfers) > 1
                        and (other.level != inf or other.load > other.capacity * (1 + tolerance))
                    ):
                        other.queued = True
                        queue.append(other)
        for transfer in changed:
            if transfer.rate == transfer.before:
                continue
            if transfer.event is not None:
                clock.cancel(transfer.event)
            left = transfer.remaining / transfer.rate
            transfer.event = clock.at(now + left if left > 0 else now, partial(self._finish, transfer))

    def _effort(self, dirty: Sequence[Wire]) -> tuple[float, int]:
        """The tolerance, and how many levels may be set: see how many transfers hang together."""
        this_pass = self._passes
        wires = list(dirty)
        for wire in wires:
            wire.seen = this_pass
        transfers = 0
        for wire in wires:  # grows
            for transfer in wire.transfers:
                if transfer.seen != this_pass:
                    transfer.seen = this_pass
                    transfers += 1
                    if transfers > EXACT_TRANSFERS:
                        return TOLERANCE, 64 * len(wires)
                    for other, _ in transfer.wires:
                        if other.seen != this_pass:
                            other.seen = this_pass
                            wires.append(other)
        return EXACT, 64 * len(wires)

    def _set_level(self, wire: Wire, tolerance: float) -> None:
        """Fill the wire: sum of min(level, limit) = capacity; and tell its transfers."""
        capacity = wire.capacity
        crossings = 0
        limits: list[tuple[float, int]] = []
        for transfer, times in wire.transfers.items():
            if transfer.at is None:
                transfer.find_lowest()
            limit = transfer.low
            if transfer.at is wire:
                if transfer.second < 0:
                    transfer.find_lowest()
                limit = transfer.second
            limits.append((limit, times))
            crossings += times
        level = capacity / crossings
        if len(limits) > 1:
            if sum([limit * times for limit, times in limits]) <= capacity * (1 + tolerance):
                level = inf
            else:
                limits.sort()
                room = capacity
                for limit, times in limits:
                    level = room / crossings
                    if limit >= level:
                        break
                    room -= limit * times
                    crossings -= times
        old = wire.level
        wire.level = level
        for transfer in wire.transfers:
            if transfer.at is wire:
                if level <= transfer.second:
                    transfer.low = level
                else:
                    transfer.find_lowest()
            elif level < transfer.low:
                transfer.second = transfer.low
                transfer.low = level
                transfer.at = wire
            elif level < transfer.second:
                transfer.second = level
            elif old == transfer.second and level > old:
                transfer.second = -1.0


def _rounds(p: int) -> int:
    """ceil(log2 p)"""
    return (p - 1).bit_length()


def _all_reduce_plan(path: _Path, p: int, nbytes: float) -> tuple[float, float]:
    """Bytes over every wire, and latency."""
    ring = 2 * (p - 1) / p * nbytes, 2 * (p - 1) * path.slowest_hop
    tree = 2 * nbytes, 2 * _rounds(p) * path.slowest_hop
    return min(ring, tree, key=lambda plan: plan[0] / path.bytes_per_second + plan[1])


def _broadcast_plan(path: _Path, p: int, nbytes: float) -> tuple[float, float]:
    """Bytes over every wire, and latency."""
    chain = nbytes, path.all_hops
    tree = _rounds(p) * nbytes, _rounds(p) * path.slowest_hop
    return min(chain, tree, key=lambda plan: plan[0] / path.bytes_per_second + plan[1])
