"""LASGD: local SGD with an exact all-reduce in flight (Avidor & Tal Israel 2022).

    every step:                     x_i <- x_i + delta_i                 never waits
    nothing in flight, every H:     s_i <- x_i ; start the average of s over all ranks
    it is there, at a boundary:     x_i <- x_i + (mean_j s_j - s_i)      keeps what was learned meanwhile

The corrections of all ranks add up to zero, so the mean over workers follows local SGD exactly. At most one
average is in flight: with two the recursion e' = e - e_delayed is only marginally stable.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from ..comm import Comm, Steps, Work
from ..options import option
from ..replica import Replica, add_difference_, copy_all_
from ..strategy import Strategy, training_flag


@dataclass(kw_only=True)
class LASGD(Strategy):
    """Nobody waits: the wire averages one snapshot while the workers train on."""

    name: ClassVar[str] = "lasgd"
    every: int = option(1, "fewest steps between two snapshots", at_least=1)
    delay: int | None = option(
        None, "merge exactly so many steps after the snapshot, waiting if need be (none: as soon as it is there)",
        at_least=0,
    )  # fmt: skip
    averages: int = field(default=0, init=False)
    steps_late: int = field(default=0, init=False)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        self._sent, self._mean = replica.like(), replica.like()
        self._in_flight: list[Work[Tensor]] = []
        self._sent_at = 0

    def after_step(self, step: int) -> Steps:
        late = step - self._sent_at
        if self._in_flight and self._is_due(late):
            yield from self._merge(late)
        if not self._in_flight and late >= self.every:
            self._send(step, training=True)
            if self.delay == 0:
                yield from self._merge(late=0)

    def finish(self) -> Steps:
        if self._in_flight:
            yield from self._receive()
            self._add_correction()
        some_train = True
        while some_train:
            self._send(self._sent_at, training=False)
            some_train = yield from self._receive()
            copy_all_(self.replica.flats, self._mean)

    def report(self) -> dict[str, float]:
        return {"averages": self.averages, "delay": self.steps_late / max(self.averages, 1)}

    def _is_due(self, late: int) -> bool:
        return all(work.done for work in self._in_flight) if self.delay is None else late >= self.delay

    def _send(self, step: int, *, training: bool) -> None:
        everyone = self.comm.layout.ranks
        copy_all_(self._sent, self.replica.flats)
        self._in_flight = [
            self.comm.average(sent, everyone, out=mean) for sent, mean in zip(self._sent, self._mean, strict=True)
        ]
        self._in_flight.append(self.comm.average(training_flag(training), everyone))
        self._sent_at = step

    def _receive(self) -> Any:
        """Wait for the average in flight; tells whether some rank still trained when it was sent."""
        for work in self._in_flight:
            flag = yield work
        self._in_flight = []
        return flag.item() > 0

    def _merge(self, late: int) -> Steps:
        yield from self._receive()
        self.averages += 1
        self.steps_late += late
        if late == 0:
            copy_all_(self.replica.flats, self._mean)
        else:
            self._add_correction()

    def _add_correction(self) -> None:
        for x, mean, sent in zip(self.replica.flats, self._mean, self._sent, strict=True):
            add_difference_(x, mean, sent)
