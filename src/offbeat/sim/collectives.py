"""Collectives in virtual time: they begin when the last rank arrives and take the time that the network gives them."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..comm import ring_bytes
from ..errors import OffbeatError
from ..layout import Ranks
from ..trace import Trace
from .clock import Clock
from .network import Network
from .work import SimWork

Kind = Literal["average", "sum", "broadcast"]


class Round:
    """One collective over some ranks, which arrive one by one; the first says what it is."""

    def __init__(self, kind: Kind, source: int, rank: int, buffer: Tensor) -> None:
        self.kind, self.source = kind, source
        self.first_rank, self.first = rank, buffer
        self.arrived: dict[int, tuple[Tensor, SimWork[Tensor], float]] = {}


class Collectives:
    """Matches the k-th call of each rank over the same ranks, which must be in `groups` if that is given."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        traces: Sequence[Trace],
        bytes_scale: float,
        groups: Collection[Ranks] | None = None,
    ) -> None:
        self._declared = None if groups is None else frozenset(groups)
        self._clock, self._network, self._traces, self._scale = clock, network, traces, bytes_scale
        self._rounds: dict[tuple[int, int], Round] = {}  # group, number
        self._calls: dict[tuple[int, int], int] = defaultdict(int)  # group, rank
        self._latest: dict[tuple[int, int], SimWork[Tensor]] = {}  # under way of group, rank; without control messages
        self._groups: dict[Ranks, int] = {}
        self._seen: dict[int, tuple[Ranks, int]] = {}
        self._queues: dict[int, deque[Callable[[], None]]] = defaultdict(deque)  # group; the first is on the wire

    def join(self, kind: Kind, rank: int, buffer: Tensor, ranks: Ranks, source: int = -1) -> SimWork[Tensor]:
        """`buffer` holds this rank's value and will hold the result."""
        group = self._group(ranks)
        number = self._calls[group, rank]
        self._calls[group, rank] += 1
        round = self._rounds.get((group, number))
        if round is None:
            round = self._rounds[group, number] = Round(kind, source, rank, buffer)
        if (round.kind, round.source) != (kind, source):
            raise OffbeatError(f"rank {rank} calls {kind} where others call {round.kind}: orders differ")
        if not alike(buffer, round.first):
            raise OffbeatError(
                f"rank {rank} calls {kind} with {size(buffer)} and rank {round.first_rank} with {size(round.first)}: "
                f"all must give the same size and dtype"
            )
        work: SimWork[Tensor] = SimWork(kind)
        if buffer.ndim > 0 and len(ranks) > 1:
            work.found_idle = (group, rank) not in self._latest
            self._latest[group, rank] = work
        round.arrived[rank] = (buffer, work, self._clock.now)
        if len(round.arrived) == len(ranks):
            del self._rounds[group, number]
            self._begin(round, ranks, self._queues[group])
        return work

    def _begin(self, round: Round, ranks: Ranks, queue: deque[Callable[[], None]]) -> None:
        """At once, or when those over the same ranks that began before are through, as torch does it."""
        first = round.arrived[ranks[0]][0]
        nbytes = self.nbytes(first)
        if first.ndim == 0 and round.kind != "broadcast":  # all latency: no share of a link that anybody would notice
            end = partial(self._end, round, ranks, ring_bytes(nbytes, len(ranks)))
            self._clock.after(self._network.all_reduce_seconds(ranks, nbytes), end)
            return

        def ended() -> None:
            queue.popleft()
            if queue:
                queue[0]()
            self._end(round, ranks, ring_bytes(nbytes, len(ranks)) if round.kind != "broadcast" else nbytes)

        def begin() -> None:
            if round.kind != "broadcast":
                self._network.all_reduce(ranks, nbytes, ended)
            else:
                self._network.broadcast(round.source, ranks, nbytes, ended)

        queue.append(begin)
        if len(queue) == 1:
            begin()

    def _end(self, round: Round, ranks: Ranks, sent: int) -> None:
        buffers = [round.arrived[rank][0] for rank in ranks]
        if round.kind != "broadcast":
            add_up_(buffers, divide_by=len(buffers) if round.kind == "average" else 1)
        else:
            value = round.arrived[round.source][0]
            for buffer in buffers:
                if buffer is not value:
                    buffer.copy_(value)
        for rank in ranks:
            buffer, work, since = round.arrived[rank]
            place = (self._group(ranks), rank)
            if self._latest.get(place) is work:
                del self._latest[place]
            share = sent if round.kind != "broadcast" or (rank == round.source and len(ranks) > 1) else 0
            if buffer.ndim > 0:
                name = "broadcast" if round.kind == "broadcast" else "average"
                self._traces[rank].add("communicate", name, since, self._clock.now - since, share, ranks)
            work.complete(buffer)

    def _group(self, ranks: Ranks) -> int:
        """A number for these ranks. To hash thousands of them in every call would be most of the work, so a tuple seen
        before is known by its identity (and kept, so that no other can take it)."""
        if id(ranks) not in self._seen:
            if self._declared is not None and len(ranks) > 1 and ranks not in self._declared:
                raise OffbeatError(f"no process group for ranks {ranks}: the strategy must name them in `groups`")
            self._seen[id(ranks)] = (ranks, self._groups.setdefault(ranks, len(self._groups)))
        return self._seen[id(ranks)][1]

    def nbytes(self, x: Tensor) -> int:
        """On the wire. A number on its own is a control message; all else is a part of the model, to scale."""
        return x.nbytes if x.ndim == 0 else int(x.nbytes * self._scale)


def alike(x: Tensor, y: Tensor) -> bool:
    return x.numel() == y.numel() and x.dtype == y.dtype


def size(x: Tensor) -> str:
    return f"{x.nbytes} bytes of {str(x.dtype).removeprefix('torch.')}"


def add_up_(buffers: Sequence[Tensor], *, divide_by: int) -> None:
    """Every buffer becomes the sum of all, in the order given, or their mean."""
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        total += buffer
    if divide_by > 1:
        total /= divide_by
    torch._foreach_copy_(list(buffers), [total] * len(buffers))
