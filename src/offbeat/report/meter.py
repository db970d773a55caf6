"""Meter: turns what one worker does into `Status`; the training loop of either world feeds it once a step."""

import math

from torch import Tensor

from ..strategy import Strategy
from ..trace import Trace
from .status import Status


class Meter:
    def __init__(self, rank: int, steps: int, trace: Trace, strategy: Strategy) -> None:
        self.rank, self.strategy = rank, strategy
        self._steps, self._trace = steps, trace
        self.steps_done = 0
        self.last_step_at = 0.0
        self._losses = 0
        self._loss_sum: Tensor | float = 0.0
        self._loss = math.nan

    def step(self, loss: Tensor | float, now: float) -> None:
        """A step is done. A loss on an accelerator stays there until a status is asked for."""
        self.steps_done += 1
        self.last_step_at = now
        self._losses += 1
        self._loss_sum = self._loss_sum + loss

    def status(self, now: float) -> Status:
        """At `now` seconds since the run began; the loss is the mean since the last call."""
        status = self.peek(now)
        self._loss, self._losses, self._loss_sum = status.loss, 0, 0.0
        return status

    def peek(self, now: float) -> Status:
        """The same, without a trace: the next status will say what it would have said."""
        loss = float(self._loss_sum) / self._losses if self._losses else self._loss
        report, seconds = self.strategy.report(), self._trace.seconds
        return Status(
            rank=self.rank,
            step=self.steps_done,
            steps=self._steps,
            seconds=now,
            loss=loss,
            steps_per_second=self.steps_done / self.last_step_at if self.last_step_at else 0.0,
            computing_share=min(1.0, seconds["compute"] / now) if now else 0.0,
            waiting_share=min(1.0, seconds["wait"] / now) if now else 0.0,
            bytes_sent=self._trace.bytes_sent,
            averages=int(report.get("averages", 0)),
            delay=report.get("delay"),
            notes={name: value for name, value in report.items() if name not in ("averages", "delay")},
        )
