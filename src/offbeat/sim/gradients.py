"""Gradients averaged in backward, in virtual time, bucket by bucket as DistributedDataParallel does it.

A bucket is reduced when every rank of the group has it ready and the bucket before it is through; the step ends
with the last. A rank that ran out of data follows the others: it contributes nothing but steps along with the
average, so all ranks of the group stay equal and nobody hangs.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from ..comm import ring_bytes
from ..layout import Ranks
from ..trace import Trace
from .clock import Clock
from .network import Network
from .shape import StepShape
from .work import SimWork


class _Round:
    def __init__(self, count: int) -> None:
        self.works: dict[int, SimWork[bool]] = {}
        self.training: list[int] = []
        self.ready = [0] * count  # ranks that have this bucket
        self.through = 0  # buckets reduced
        self.busy = False
        self.since = 0.0


class Gradients:
    """`apply(ranks, sources)` steps the optimizers of `ranks` with the mean gradient of `sources`."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        traces: Sequence[Trace],
        shape: StepShape,
        apply: Callable[[Ranks, Ranks], None],
    ) -> None:
        self._clock, self._network, self._traces, self._apply = clock, network, traces, apply
        self._shape, self._buckets = shape, shape.buckets
        self._rounds: dict[Ranks, dict[int, _Round]] = defaultdict(dict)
        self._calls: dict[tuple[Ranks, int], int] = defaultdict(int)

    def begin(self, rank: int, ranks: Ranks, seconds: float) -> tuple[SimWork[bool], Callable[[], None]]:
        """A step of so many seconds begins. Returns the work, and what to call when its gradient is complete."""
        round = self._join(rank, ranks)
        round.training.append(rank)
        for index, bucket in enumerate(self._buckets[:-1]):
            self._clock.after(seconds * bucket.ready_share, lambda index=index: self._ready(round, ranks, index))  # type: ignore[misc]
        return round.works[rank], lambda: self._ready(round, ranks, len(self._buckets) - 1)

    def follow(self, rank: int, ranks: Ranks) -> SimWork[bool]:
        """Step along without data; the work says whether anybody still trains."""
        round = self._join(rank, ranks)
        if len(round.works) == len(ranks) and not round.training:
            self._clock.after(0.0, lambda: self._complete(round, False))
        for index in range(len(self._buckets)):
            self._ready(round, ranks, index)
        return round.works[rank]

    def _join(self, rank: int, ranks: Ranks) -> _Round:
        number = self._calls[ranks, rank]
        self._calls[ranks, rank] += 1
        self._rounds[ranks].pop(number - 2, None)
        round = self._rounds[ranks].setdefault(number, _Round(len(self._buckets)))
        round.works[rank] = SimWork("gradients")
        return round

    def _ready(self, round: _Round, ranks: Ranks, index: int) -> None:
        round.ready[index] += 1
        self._reduce_next(round, ranks)

    def _reduce_next(self, round: _Round, ranks: Ranks) -> None:
        if round.busy or not round.training or round.ready[round.through] < len(ranks):
            return
        round.busy = True
        if round.through == 0:
            round.since = self._clock.now

        def reduced() -> None:
            round.busy = False
            round.through += 1
            if round.through < len(self._buckets):
                self._reduce_next(round, ranks)
                return
            self._apply(ranks, tuple(sorted(round.training)))
            sent = ring_bytes(self._shape.nbytes, len(ranks))
            for rank in ranks:
                since = round.since
                self._traces[rank].add("communicate", "gradients", since, self._clock.now - since, sent, ranks)
            self._complete(round, True)

        self._network.all_reduce(ranks, self._buckets[round.through].nbytes, reduced)

    def _complete(self, round: _Round, anybody_trains: bool) -> None:
        for rank in sorted(round.works):
            round.works[rank].complete(anybody_trains)
