"""Together: the steps of many simulated workers as one batched computation.

The workers' parameters are the rows of one tensor. Forward is mapped over the rows with `torch.func.vmap`, backward is
ordinary, and the optimizer, being element-wise, runs on the rows as they are.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..layout import Ranks
from ..replica import Replica, Slot, flatten, trainable
from ..train.shards import Shard
from ..train.task import Task
from .learners import Learners, OneByOne, initial_model, mean_model_

ELEMENT_WISE: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW)
TOLERANCE = 1e-4  # relative, of the trial against stepping one by one


def make_learners(task: Task, shards: Sequence[Shard], seed: int) -> Learners:
    """Step the workers together where that is faster and was seen to give the same, else one by one."""
    return (
        Together(task, shards, seed)
        if len(shards) > 1 and can_step_together(task, shards, seed)
        else OneByOne(task, shards, seed)
    )


def can_step_together(task: Task, shards: Sequence[Shard], seed: int) -> bool:
    """Two steps of two workers, both ways. Convolutions are faster one by one; random layers and BatchNorm differ."""
    model = initial_model(task, seed)
    if any(isinstance(module, _ConvNd) for module in model.modules()):
        return False
    if any(buffer.is_floating_point() for buffer in model.buffers()):
        return False
    if type(task.optimizer(model.parameters())) not in ELEMENT_WISE:
        return False
    try:
        trial: list[Learners] = [kind(task, shards[:2], seed) for kind in (OneByOne, Together)]
        for learners in trial:
            for step in range(2):
                for rank in range(2):
                    learners.begin(rank, step, alone=True)
                for rank in range(2):
                    learners.end(rank)
    except (RuntimeError, ValueError, TypeError):  # what vmap raises for a model that it cannot map
        return False
    return all(
        torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * float(a.abs().max()))
        for one, other in zip(trial[0].replicas, trial[1].replicas, strict=True)
        for a, b in zip(one.flats, other.flats, strict=True)
    )


class Together:
    def __init__(self, task: Task, shards: Sequence[Shard], seed: int) -> None:
        self._task, self._shards = task, shards
        self._workers = len(shards)
        self._model = initial_model(task, seed)
        self._base = base = flatten(self._model)
        rows = [flat.repeat(self._workers, 1) for flat in base.flats]
        self.replicas = [Replica(tuple(row[rank] for row in rows), base.slots) for rank in range(self._workers)]
        self._stacked = {slot.name: nn.Parameter(_stacked(slot, rows[slot.flat])) for slot in base.slots}
        order = [name for name, _ in trainable(self._model)]
        self._names = order
        self._optimizer = task.optimizer([self._stacked[name] for name in order])
        self._gradients: dict[str, Tensor] = {}
        self._steps_done = [0] * self._workers
        self._under_way: dict[int, tuple[int, bool]] = {}
        self._losses = [math.nan] * self._workers

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        self._under_way[rank] = (step, alone)

    def end(self, rank: int) -> float:
        if rank in self._under_way:
            under_way, self._under_way = self._under_way, {}
            by_size: dict[int, list[tuple[int, Tensor, bool]]] = defaultdict(list)
            for other in sorted(under_way):
                step, alone = under_way[other]
                indices = self._shards[other].indices(step)
                by_size[len(indices)].append((other, indices, alone))
            for batch in by_size.values():
                self._learn(batch)
        return self._losses[rank]

    def _learn(self, batch: Sequence[tuple[int, Tensor, bool]]) -> None:
        ranks = [rank for rank, _, _ in batch]
        inputs, targets = self._task.train.batch(torch.stack([indices for _, indices, _ in batch]))
        parameters = self._rows(ranks)
        losses = vmap(self._loss)(parameters, inputs, targets)
        gradients = dict(zip(parameters, torch.autograd.grad(losses.sum(), list(parameters.values())), strict=True))
        for rank, loss in zip(ranks, losses.tolist(), strict=True):
            self._losses[rank] = loss
        alone = [position for position, (_, _, is_alone) in enumerate(batch) if is_alone]
        if len(alone) == len(batch):
            self._step(ranks, gradients)
        else:
            self._keep(ranks, gradients)
            if alone:
                some = torch.tensor(alone)
                self._step([ranks[i] for i in alone], {name: g[some] for name, g in gradients.items()})

    def _loss(self, parameters: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self._task.loss(functional_call(self._model, dict(parameters), (inputs,)), targets)

    def _rows(self, ranks: Sequence[int]) -> dict[str, nn.Parameter]:
        """The parameters of some workers: all of them as they lie, fewer as a copy."""
        if len(ranks) == self._workers:
            return {name: self._stacked[name] for name in self._names}
        some = torch.tensor(ranks)
        return {name: nn.Parameter(self._stacked[name].detach()[some]) for name in self._names}

    def _keep(self, ranks: Sequence[int], gradients: Mapping[str, Tensor]) -> None:
        some = torch.tensor(ranks)
        for name, gradient in gradients.items():
            if name not in self._gradients:
                self._gradients[name] = torch.zeros_like(self._stacked[name])
            self._gradients[name][some] = gradient

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        some = torch.tensor(sources)
        mean = {name: gradient[some].mean(0) for name, gradient in self._gradients.items()}
        self._step(ranks, {name: g.expand(len(ranks), *g.shape) for name, g in mean.items()})

    def _step(self, ranks: Sequence[int], gradients: Mapping[str, Tensor]) -> None:
        """One optimizer step of `ranks`; those that have done equally many steps go together."""
        by_count: dict[int, list[int]] = defaultdict(list)
        for position, rank in enumerate(ranks):
            by_count[self._steps_done[rank]].append(position)
            self._steps_done[rank] += 1
        for count, positions in by_count.items():
            if len(positions) == self._workers:
                self._step_all(count, gradients)
            else:
                chosen = torch.tensor(positions)
                members = [ranks[i] for i in positions]
                self._step_some(members, count, {name: g[chosen] for name, g in gradients.items()})

    def _step_all(self, count: int, gradients: Mapping[str, Tensor]) -> None:
        for name in self._names:
            parameter = self._stacked[name]
            parameter.grad = gradients[name]
            state = self._optimizer.state[parameter]
            if "step" in state:
                state["step"] = torch.tensor(float(count))
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _step_some(self, ranks: Sequence[int], count: int, gradients: Mapping[str, Tensor]) -> None:
        some = torch.tensor(ranks)
        parameters = self._rows(ranks)
        optimizer = self._task.optimizer([parameters[name] for name in self._names])
        for name in self._names:
            parameters[name].grad = gradients[name]
            whole = self._optimizer.state[self._stacked[name]]
            if count > 0:
                optimizer.state[parameters[name]] = {
                    key: torch.tensor(float(count)) if key == "step" else value[some]
                    for key, value in whole.items()
                    if value is not None
                }
        optimizer.step()
        with torch.no_grad():
            for name in self._names:
                stacked = self._stacked[name]
                stacked[some] = parameters[name].detach()
                whole = self._optimizer.state[stacked]
                for key, value in optimizer.state[parameters[name]].items():
                    if key == "step":
                        whole[key] = value
                    elif value is not None:
                        if key not in whole:
                            whole[key] = torch.zeros_like(stacked)
                        whole[key][some] = value

    def mean_model(self) -> nn.Module:
        mean_model_(self._base, self.replicas)
        self._base.release()
        return self._model


def _stacked(slot: Slot, rows: Tensor) -> Tensor:
    """The tensor of all workers, [workers, *shape], as a view of their rows."""
    return rows.as_strided((len(rows), *slot.shape), (rows.stride(0), *slot.stride), slot.offset)
