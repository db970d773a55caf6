"""Learners: the replicas of all simulated workers and the real steps they take.

Between the begin and the end of a step nobody touches the worker's weights, so the step may be computed at any moment
between: `Together` computes all steps under way at once when the first of them ends.
"""

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..layout import Ranks
from ..replica import Replica, flatten
from ..train.seed import worker_seed
from ..train.shards import Shard
from ..train.task import Task


class Learners(Protocol):
    @property
    def replicas(self) -> Sequence[Replica]: ...

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        """The worker's step number `step` (from 0) begins; alone: no gradient but its own goes into it."""
        ...

    def end(self, rank: int) -> float:
        """The worker's gradient is there, and applied if alone; returns the training loss."""
        ...

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        """Step the optimizers of `ranks` with the mean gradient of `sources`."""
        ...

    def mean_model(self) -> nn.Module:
        """A model with the mean of all workers' parameters and buffers."""
        ...


class OneByOne:
    """Every worker has its own model and optimizer; steps are computed one after the other. Takes any model."""

    def __init__(self, task: Task, shards: Sequence[Shard], seed: int) -> None:
        self._task, self._shards = task, shards
        first = initial_model(task, seed)
        self._models = [first, *(copy.deepcopy(first) for _ in shards[1:])]
        self.replicas = [flatten(model) for model in self._models]
        self._parameters = [[p for p in model.parameters() if p.requires_grad] for model in self._models]
        self._optimizers = [task.optimizer(model.parameters()) for model in self._models]
        self._rng_states = [  # what one draws, in dropout say, is no other's
            torch.Generator().manual_seed(worker_seed(seed, shard.rank)).get_state() for shard in shards
        ]
        self._under_way: dict[int, tuple[int, bool]] = {}

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        self._under_way[rank] = (step, alone)

    def end(self, rank: int) -> float:
        step, alone = self._under_way.pop(rank)
        inputs, targets = self._task.train.batch(self._shards[rank].indices(step))
        torch.set_rng_state(self._rng_states[rank])
        loss = self._task.loss(self._models[rank](inputs), targets)
        for parameter in self._parameters[rank]:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._rng_states[rank] = torch.get_rng_state()
        if alone:
            self._optimizers[rank].step()
        return float(loss.detach())

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        for parameters in zip(*(self._parameters[rank] for rank in sources), strict=True):
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                mean = torch.stack(gradients).mean(0)
                for p in parameters:
                    p.grad = mean.clone()
        for rank in ranks:
            if rank not in sources:
                for mine, theirs in zip(self._parameters[rank], self._parameters[sources[0]], strict=True):
                    mine.grad = None if theirs.grad is None else theirs.grad.clone()
            self._optimizers[rank].step()

    def mean_model(self) -> nn.Module:
        mean_model_(self.replicas[0], [replica.flats for replica in self.replicas])
        self.replicas[0].release()
        return self._models[0]


MOST_ELEMENTS, ALL_ELEMENTS = 4096, 1 << 19  # of a stand-in, so that it can be cut; of all of them, for the cache


class NoModel:
    """Timing only: nothing is learned; x is a small stand-in, its bytes scaled up on the wire."""

    def __init__(self, workers: int) -> None:
        elements = min(MOST_ELEMENTS, ALL_ELEMENTS // workers + 64)
        self.replicas = [Replica((torch.zeros(elements),)) for _ in range(workers)]

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        pass

    def end(self, rank: int) -> float:
        return float("nan")

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        pass

    def mean_model(self) -> nn.Module:
        return nn.Identity()


def initial_model(task: Task, seed: int) -> nn.Module:
    """The model as every worker, simulated or real, starts with it."""
    torch.manual_seed(seed)
    return task.model()


def mean_model_(target: Replica, xs: Sequence[Sequence[Tensor]]) -> None:
    """Write the mean of all workers' flats into `target`."""
    for mean, *flats in zip(target.flats, *xs, strict=True):
        total: Tensor = flats[0].double()
        for flat in flats[1:]:
            total += flat
        mean.copy_(total / len(flats))
