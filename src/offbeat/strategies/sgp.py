"""SGP: push-sum on the directed exponential graph, overlapped by one step (Assran et al. 2019).

    every step:                  z_i <- z_i + delta_i                       the gradient is taken at z_i = x_i / w_i
    round k, rank i of n:        send (x_i / 2, w_i / 2) to rank i + 2^(k mod ceil(log2 n)), keep the other half
    one step later:              x_i <- x_i / 2 + delta_i + what came ;  w_i likewise, without delta

A rank waits for one other in each round, never for all. Nothing of x or w is lost on the way, so the mean of all x_i
follows local SGD exactly. On this graph each rank gets as much as it gives: w_i is 1 when all that was sent is there.

The end: after ceil(log2 n) rounds everybody has heard of everybody, whatever n. So a flag rides along, set by those
that train when such a cycle begins and passed on by those that have seen it; when the cycle ends all ranks know
alike whether there must be another.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..comm import Comm, Steps, Work
from ..errors import BadInput
from ..options import option
from ..replica import Replica, in_chunks
from ..strategy import Strategy


@dataclass(kw_only=True)
class SGP(Strategy):
    """Each worker sends half of its model to one other in every step, to a nearer or a farther one in turns.

    Memory beside x: twice x, for what goes and what comes.
    """

    name: ClassVar[str] = "sgp"
    overlap: int = option(1, "steps that a message may take: 1, or 0 to wait for it at once", at_least=0)
    rounds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap > 1:
            raise BadInput(
                f"overlap={self.overlap} does not fit: a message is waited for one step after it was sent (1) or at "
                f"once (0)"
            )

    @property
    def copies(self) -> float:
        return super().copies + 2

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        self._shares = [Share(flat) for flat in replica.flats]
        self._works: list[Work[Tensor]] = []
        self._cycle = (comm.layout.workers - 1).bit_length()  # ceil(log2 n) rounds

    def after_step(self, step: int) -> Steps:
        if self._cycle:
            yield from self._boundary(training=True)

    def finish(self) -> Steps:
        while self._cycle and (yield from self._boundary(training=False)):
            pass
        yield from super().finish()

    def report(self) -> dict[str, float]:
        return {"averages": self.rounds, "delay": float(self.overlap)}

    def _boundary(self, *, training: bool) -> Generator[Work[Any], Any, bool]:
        """The last round ends and the next begins, unless a cycle is over in which nobody trained: then False."""
        yield from self._receive()
        if self.rounds % self._cycle == 0:
            if not training and self.rounds and not any(share.some_train for share in self._shares):
                return False
            for share in self._shares:
                share.begin_cycle(training)
        self._send()
        if self.overlap == 0:
            yield from self._receive()
        return True

    def _send(self) -> None:
        hop, workers = 1 << self.rounds % self._cycle, self.comm.layout.workers
        to, source = (self.comm.rank + hop) % workers, (self.comm.rank - hop) % workers
        self._works = [share.send(self.comm, to, source) for share in self._shares]
        self.rounds += 1

    def _receive(self) -> Steps:
        works, self._works = self._works, []
        for work in works:
            yield work
        if works:
            for share in self._shares:
                share.merge()


class Share:
    """One flat of the model, which holds z. Behind each half that travels are its weight and the flag."""

    def __init__(self, z: Tensor) -> None:
        self._z = z
        self._kept, self._came = (z.new_zeros(len(z) + 2) for _ in range(2))  # what is sent is what is kept
        self._weight = z.new_ones(())
        self._flag = z.new_ones(())

    @property
    def some_train(self) -> bool:
        """Of those heard of since the cycle began."""
        return bool(self._flag > 0)

    def begin_cycle(self, training: bool) -> None:
        self._flag.fill_(float(training))

    def send(self, comm: Comm, to: int, source: int) -> Work[Tensor]:
        torch.mul(self._z, self._weight / 2, out=self._kept[:-2])
        self._kept[-2] = self._weight / 2
        self._kept[-1] = self._flag
        return comm.shift(self._kept, to, source, out=self._came)

    def merge(self) -> None:
        """With delta = z - x / w, of what was kept:  x <- x + delta + what came ;  z <- x / w."""
        weight = self._kept[-2]
        self._weight = weight + self._came[-2]
        for z, kept, came in in_chunks(self._z, self._kept[:-2], self._came[:-2]):
            z.addcmul_(kept, 1 - 1 / weight).add_(came).div_(self._weight)
        torch.maximum(self._flag, self._came[-1], out=self._flag)
