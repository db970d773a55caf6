"""Curve: how good the averaged model is, again and again while a run in virtual time goes on.

`run(..., watch=curve.watch)`. To look changes nothing: the mean of all workers is written into a model of the curve's
own, evaluated in eval mode without gradients, and the random numbers are put back. The virtual clock stands meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..replica import consensus_distance, flatten
from ..report.meter import Meter
from ..train.shards import Shard
from ..train.task import Samples, Task, evaluate
from .learners import Learners, initial_model, mean_model_

POINTS = 30  # of a run, about, unless told
TEST_SAMPLES = 2000  # that a point looks at; the last looks at all


@dataclass(frozen=True, kw_only=True)
class Point:
    """A run at one moment. None: only the clock ran, or the notion does not apply."""

    seconds: float  # virtual
    step: float  # mean over workers
    samples: int | None  # seen by all workers together
    loss: float | None  # mean training loss since the point before, over workers
    accuracy: float | None  # of the averaged model, on the first test samples; of the last point on all
    test_loss: float | None  # likewise
    consensus_distance: float | None  # of the workers from their mean
    computing_share: float  # of the time so far, mean over workers; what is under way counts when it is over
    waiting_share: float


class Curve:
    """A point whenever the workers have done `every` more steps on average, and one after the last step of all."""

    def __init__(
        self,
        task: Task | None,  # None: only the clock runs
        learners: Learners,
        steps: Sequence[int],  # of each worker
        shards: Sequence[Shard],  # of each worker, or none
        *,
        seed: int,
        every: int | None = None,  # None: for about `POINTS` points
    ) -> None:
        self.points: list[Point] = []
        self._learners, self._shards = learners, shards
        self._total, self._done = sum(steps), 0
        every = -(-max(steps) // POINTS) if every is None else every
        self._every = every * len(steps)
        self._meters: dict[Meter, None] = {}  # a set that keeps its order
        self._look = None if task is None else _Look(task, seed)

    @property
    def done(self) -> float:
        """The share of all steps that is done."""
        return self._done / self._total

    def watch(self, meter: Meter, now: float) -> None:
        self._meters[meter] = None
        self._done += 1
        if self._done % self._every == 0 or self._done == self._total:
            self._add(now)

    def _add(self, now: float) -> None:
        statuses = [meter.status(now) for meter in self._meters]
        count = len(statuses)
        accuracy = test_loss = None
        if self._look is not None:
            accuracy, test_loss = self._look(self._handed_in(now), whole=self._done == self._total)
        self.points.append(
            Point(
                seconds=now,
                step=self._done / len(self._learners.replicas),
                samples=sum(s.step * self._shards[s.rank].size_of_batches for s in statuses) if self._shards else None,
                loss=None if self._look is None else sum(status.loss for status in statuses) / count,
                accuracy=accuracy,
                test_loss=test_loss,
                consensus_distance=None if self._look is None else consensus_distance(self._learners.replicas),
                computing_share=sum(status.computing_share for status in statuses) / count,
                waiting_share=sum(status.waiting_share for status in statuses) / count,
            )
        )

    def _handed_in(self, now: float) -> list[Sequence[Tensor]]:
        """By the workers, if all ended now. Trails of those that stopped long ago do not count, as at the end."""
        stopped = {meter: now - meter.last_step_at for meter in self._meters}
        trail = max((meter.strategy.trail for meter in self._meters), default=0.0)
        if trail:
            reach = min(stopped.values()) + trail * now
            return [meter.strategy.handed_in for meter in self._meters if stopped[meter] <= reach]
        return [replica.flats for replica in self._learners.replicas]


class _Look:
    """Evaluates the mean of all workers in a model of its own; what does not travel in it stays as it was drawn."""

    def __init__(self, task: Task, seed: int) -> None:
        test = task.test
        few = Samples(
            inputs=test.inputs[:TEST_SAMPLES], targets=test.targets[:TEST_SAMPLES], mean=test.mean, std=test.std
        )
        self._all, self._few = task, replace(task, test=few)
        with torch.random.fork_rng(devices=[]):
            self._model = initial_model(task, seed)
        self._mean = flatten(self._model)

    def __call__(self, xs: Sequence[Sequence[Tensor]], *, whole: bool) -> tuple[float | None, float]:
        mean_model_(self._mean, xs)
        with torch.random.fork_rng(devices=[]):
            return evaluate(self._model, self._all if whole else self._few)
