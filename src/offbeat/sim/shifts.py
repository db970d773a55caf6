"""Shifts in virtual time: what one rank sends meets what another waits for, and travels one way once both are there."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ..errors import OffbeatError
from ..layout import Ranks
from ..trace import Trace
from .clock import Clock
from .collectives import alike, size
from .network import Network
from .work import SimWork


class Shift:
    """One rank's: done when what it sends and what it receives have both arrived."""

    __slots__ = ("arrivals", "out", "peers", "rank", "since", "work", "x")

    def __init__(self, rank: int, x: Tensor, out: Tensor, peers: Ranks, since: float) -> None:
        self.rank, self.x, self.out, self.peers, self.since = rank, x, out, peers, since
        self.work: SimWork[Tensor] = SimWork("shift")
        self.arrivals = 0


class Shifts:
    """Matches the k-th shift of a rank to another with the k-th of that one from the first."""

    def __init__(
        self, clock: Clock, network: Network, traces: Sequence[Trace], nbytes: Callable[[Tensor], int]
    ) -> None:
        self._clock, self._network, self._traces, self._nbytes = clock, network, traces, nbytes
        self._waiting: dict[tuple[int, int], deque[Shift]] = defaultdict(deque)  # sender, receiver; all of one side

    def join(self, rank: int, x: Tensor, to: int, source: int, out: Tensor) -> SimWork[Tensor]:
        shift = Shift(rank, x, out, (to, source), self._clock.now)
        for sender, receiver in ((rank, to), (source, rank)):
            waiting = self._waiting[sender, receiver]
            if not waiting or waiting[0].rank == rank:
                waiting.append(shift)
            elif rank == sender:
                self._begin(shift, waiting.popleft())
            else:
                self._begin(waiting.popleft(), shift)
        return shift.work

    def _begin(self, sent: Shift, received: Shift) -> None:
        if not alike(sent.x, received.out):
            raise OffbeatError(
                f"rank {sent.rank} shifts {size(sent.x)} and rank {received.rank} waits for {size(received.out)}: "
                f"all must give the same size and dtype"
            )
        a, b = sent.rank, received.rank
        arrived = partial(self._arrive, sent, received)
        self._network.transfer(self._network.hop(a, b), self._nbytes(sent.x), arrived, self._network.hop_seconds(a, b))

    def _arrive(self, sent: Shift, received: Shift) -> None:
        received.out.copy_(sent.x)
        for shift in (sent, received):
            shift.arrivals += 1
            if shift.arrivals == 2:
                seconds, nbytes = self._clock.now - shift.since, self._nbytes(shift.x)
                self._traces[shift.rank].add("communicate", "shift", shift.since, seconds, nbytes, shift.peers)
                shift.work.complete(shift.out)
