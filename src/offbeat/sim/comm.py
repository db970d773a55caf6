"""SimComm: the Comm of the virtual world."""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..comm import Steps
from ..errors import BadInput, OffbeatError
from ..layout import Layout, Ranks
from ..trace import Trace
from .clock import Clock
from .collectives import Collectives, alike, size
from .network import Network
from .pairing import Pairing
from .shifts import Shifts
from .work import SimProcess, SimWork, stopped


@dataclass(frozen=True)
class World:
    """What all simulated workers share."""

    layout: Layout
    clock: Clock
    network: Network
    traces: Sequence[Trace]
    collectives: Collectives
    pairing: Pairing
    shifts: Shifts
    swaps: dict[tuple[int, int], list["_Swap"]]  # of a pair, those that wait for the other side
    lines: dict[tuple[int, int], deque[Callable[[], None]]]  # of a pair, swaps one after the other; the first travels
    processes: list[SimProcess]
    meets_peers: bool

    @classmethod
    def of(
        cls,
        layout: Layout,
        clock: Clock,
        network: Network,
        *,
        groups: Collection[Ranks] | None = None,
        meets_peers: bool = True,
        bytes_scale: float = 1.0,
        keep: int = 20_000,
    ) -> "World":
        """groups, meets_peers: what the strategy declares; without them anybody may talk to anybody."""
        traces = [Trace(rank, keep) for rank in layout.ranks]
        collectives = Collectives(clock, network, traces, bytes_scale, groups)
        pairing = Pairing(clock, lambda a, b: network.swap_seconds(a, b, 0) * 2)
        shifts = Shifts(clock, network, traces, collectives.nbytes)
        return cls(
            layout, clock, network, traces, collectives, pairing, shifts, {}, defaultdict(deque), [], meets_peers
        )


@dataclass(frozen=True, slots=True)
class _Swap:
    """One side of a swap, since when it waits for the other."""

    rank: int
    x: Tensor
    out: Tensor
    work: SimWork[Tensor]
    since: float


class SimComm:
    def __init__(self, rank: int, world: World, seed: int) -> None:
        self.rank, self.layout, self.seed = rank, world.layout, seed
        self._world = world

    def now(self) -> float:
        return self._world.clock.now

    def alive(self) -> Ranks:
        return self.layout.ranks

    def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
        return self._world.collectives.join("average", self.rank, _into(x, out), ranks)

    def add_up(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
        return self._world.collectives.join("sum", self.rank, _into(x, out), ranks)

    def broadcast(self, x: Tensor, source: int, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
        return self._world.collectives.join("broadcast", self.rank, _into(x, out), ranks, source)

    def pair(self, candidates: Ranks, after: float = 0.0) -> SimWork[int]:
        if not candidates:
            raise BadInput("pair() got no candidates: name at least one rank")
        self._check(candidates)
        return self._world.pairing.pair(self.rank, candidates, after)

    def swap(self, x: Tensor, peer: int, out: Tensor | None = None) -> SimWork[Tensor]:
        self._check((peer,))
        if out is not None and not alike(x, out):
            raise BadInput(f"out holds {out.numel()} {out.dtype} and x {x.numel()} {x.dtype}: give an out like x")
        world, clock = self._world, self._world.clock
        work: SimWork[Tensor] = SimWork("swap")
        mine = _Swap(self.rank, x, torch.empty_like(x) if out is None else out, work, clock.now)
        pair = (min(self.rank, peer), max(self.rank, peer))
        waiting = world.swaps.setdefault(pair, [])
        if not waiting or waiting[0].rank == self.rank:
            waiting.append(mine)
            return work
        theirs = waiting.pop(0)
        nbytes = world.collectives.nbytes(x)

        def refused() -> None:
            for one, other in ((mine, theirs), (theirs, mine)):
                story = f"rank {other.rank} swaps {size(other.x)} and this rank {size(one.x)}"
                one.work.fail(BadInput(f"{story}: both must give the same size and dtype"))

        if not alike(mine.x, theirs.x):
            clock.after(0.0, refused)
            return work

        line = world.lines[pair]

        def arrived() -> None:
            line.popleft()
            if line:
                line[0]()
            from_us = mine.x.clone() if mine.out is mine.x else mine.x
            mine.out.copy_(theirs.x)
            theirs.out.copy_(from_us)
            for one, other in ((mine, theirs), (theirs, mine)):
                seconds = clock.now - one.since
                world.traces[one.rank].add("communicate", "swap", one.since, seconds, nbytes, (other.rank,))
                one.work.complete(one.out)

        def begin() -> None:
            world.network.swap(self.rank, peer, nbytes, arrived)

        line.append(begin)
        if len(line) == 1:
            begin()
        return work

    def shift(self, x: Tensor, to: int, source: int, out: Tensor | None = None) -> SimWork[Tensor]:
        self._check_peers((to, source))
        if out is x:  # what comes must not overwrite what goes
            x = x.clone()
        return self._world.shifts.join(self.rank, x, to, source, torch.empty_like(x) if out is None else out)

    def sleep(self, seconds: float) -> SimWork[None]:
        clock = self._world.clock
        interrupt = stopped(clock)

        def wake(work: SimWork[None]) -> None:
            clock.cancel(alarm)
            interrupt(work)

        work: SimWork[None] = SimWork("sleep", on_stop=wake)
        alarm = clock.after(seconds, lambda: work.complete(None))
        return work

    def mark(self, name: str) -> None:
        self._world.traces[self.rank].add("mark", name, self._world.clock.now, 0.0)

    def spawn(self, steps: Steps) -> SimProcess:
        process = SimProcess(f"background process of rank {self.rank}", steps, self._world.clock)
        self._world.processes.append(process)
        return process

    def _check(self, peers: Ranks) -> None:
        if not self._world.meets_peers:
            raise OffbeatError("this worker has no connections to peers: the strategy must set `meets_peers`")
        self._check_peers(peers)

    def _check_peers(self, peers: Ranks) -> None:
        if self.rank in peers or min(peers) < 0 or max(peers) >= self.layout.workers:
            others = [rank for rank in self.layout.ranks if rank != self.rank]
            stranger = next(peer for peer in peers if peer not in others)
            raise BadInput(f"rank {stranger} is no peer of rank {self.rank}: choose among {others}")


def _into(x: Tensor, out: Tensor | None) -> Tensor:
    """The buffer that carries x and receives the result."""
    if out is None:
        return x.clone()
    if out is not x:
        out.copy_(x)
    return out
