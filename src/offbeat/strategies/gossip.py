"""Gossip: pairs of neighbours average beside the steps (AD-PSGD, Lian et al. 2018).

    every step:          x_i <- x_i + delta_i                            never waits
    exchange (i, j):     m = x_i - x_j ;  x_i -= m / 2 ;  x_j += m / 2    both from the same two snapshots

Each worker takes part in `rate` exchanges per step on average: it asks a neighbour after a random time of mean
2 / rate steps, and is asked as often.
"""

import random
from dataclasses import dataclass, field
from typing import ClassVar

from ..comm import Comm, Process, Steps
from ..errors import LostPeer, Stopped
from ..options import option
from ..replica import Replica, copy_all_
from ..strategy import Strategy, training_flag
from ..topology import TOPOLOGIES, neighbours


@dataclass(kw_only=True)
class Gossip(Strategy):
    """No collective, no coordinator: a worker only ever meets its neighbours, in the background."""

    name: ClassVar[str] = "gossip"
    meets_peers: ClassVar[bool] = True
    topology: str = option("exponential", "who may exchange with whom", one_of=TOPOLOGIES)
    rate: float = option(1.0, "exchanges per worker and step", above=0)
    exchanges: int = field(default=0, init=False)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        # x is the record that exchanges work on; the model's weights follow at each boundary, shifted by what the
        # exchanges added meanwhile. Forward and backward never see x change.
        self._x, self._added = replica.like(), replica.like()
        copy_all_(self._x, replica.flats)
        self._mine, self._theirs = replica.like(), replica.like()
        self._neighbours = list(neighbours(self.topology, comm.layout.workers)[comm.rank])
        self._random = random.Random(f"gossip {comm.seed} {comm.rank}")
        self._started_at, self._steps = comm.now(), 0
        self._step_seconds = 0.0
        self._loop: Process | None = None
        self._unsettled = False

    def after_step(self, step: int) -> Steps:
        self._settle()
        self._steps += 1  # since the start; `step` goes on from a checkpoint
        self._step_seconds = (self.comm.now() - self._started_at) / self._steps
        if self._loop is None and self._neighbours:
            self._loop = self.comm.spawn(self._exchange())
        yield from ()

    def finish(self) -> Steps:
        everyone = self.comm.layout.ranks
        yield self.comm.average(training_flag(False), everyone)  # the last is here; exchanges went on
        if self._loop is not None:
            self._loop.stop()
            yield self._loop
        self._settle()
        yield from super().finish()

    def report(self) -> dict[str, float]:
        return {"averages": self.exchanges}

    def _settle(self) -> None:
        if self._unsettled:
            for weights, added in zip(self.replica.flats, self._added, strict=True):
                weights.add_(added)
                added.zero_()
            self._unsettled = False
        copy_all_(self._x, self.replica.flats)

    def _exchange(self) -> Steps:
        try:
            while self._neighbours:
                first = self._random.randrange(len(self._neighbours))
                candidates = (*self._neighbours[first:], *self._neighbours[:first])
                patience = self._random.expovariate(self.rate / 2) * self._step_seconds
                try:
                    peer = yield self.comm.pair(candidates, after=patience)
                    yield from self._average_with(peer)
                except LostPeer as lost:  # go on without it up to `finish`, which needs all
                    self._neighbours = [rank for rank in self._neighbours if rank != lost.peer]
        except Stopped:
            return

    def _average_with(self, peer: int) -> Steps:
        for x, added, mine, theirs in zip(self._x, self._added, self._mine, self._theirs, strict=True):
            mine.copy_(x)
            yield self.comm.swap(mine, peer, out=theirs)
            theirs.sub_(mine)
            x.add_(theirs, alpha=0.5)
            added.add_(theirs, alpha=0.5)
            self._unsettled = True
        self.exchanges += 1
