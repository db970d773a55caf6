"""Together: the steps of many simulated workers as one batched computation.

The workers' parameters are the rows of one tensor, [workers, elements]. Forward is mapped over the rows with
`torch.func.vmap`, backward is ordinary, and the optimizer, being element-wise, runs on the rows as they are.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..layout import Ranks
from ..replica import Replica, flatten, trainable
from ..train.shards import Shard, stacked_indices
from ..train.task import Task, cross_entropy, cross_entropy_of_each
from .learners import Learners, OneByOne, initial_model, mean_model_

ELEMENT_WISE: tuple[type[Optimizer], ...] = (SGD, Adam, AdamW)
MOST = 0.5  # of all workers, from which on their rows are stepped where they lie
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
    if not is_one_element_wise_group(task.optimizer(model.parameters()), model):
        return False
    try:
        with warnings.catch_warnings(action="error"):  # such as: no batching rule, so it would be slow
            trial: list[Learners] = [kind(task, shards[:2], seed) for kind in (OneByOne, Together)]
            for learners in trial:
                for step in range(2):
                    for rank in range(2):
                        learners.begin(rank, step, alone=True)
                    for rank in range(2):
                        learners.end(rank)
    except (RuntimeError, ValueError, TypeError, Warning):  # what a model raises that cannot be mapped
        return False
    return all(
        bool(a.isfinite().all()) and torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * float(a.abs().max()))
        for one, other in zip(trial[0].replicas, trial[1].replicas, strict=True)
        for a, b in zip(one.flats, other.flats, strict=True)
    )


def is_one_element_wise_group(optimizer: Optimizer, model: nn.Module) -> bool:
    """Rows are one group: with several, or with parameters left out, elements of a row would need different steps."""
    if type(optimizer) not in ELEMENT_WISE or len(optimizer.param_groups) != 1:
        return False
    return {p for p in optimizer.param_groups[0]["params"] if p.requires_grad} == {p for _, p in trainable(model)}


class Together:
    def __init__(self, task: Task, shards: Sequence[Shard], seed: int) -> None:
        self._task, self._shards = task, shards
        self._workers = len(shards)
        self._model = initial_model(task, seed)
        self._base = base = flatten(self._model)
        if len(base.flats) > 1 or any(slot.stride != _contiguous(slot.shape) for slot in base.slots):
            raise ValueError("rows need parameters of one dtype, each contiguous")
        self._rows = nn.Parameter(base.flats[0].repeat(self._workers, 1))
        self.replicas = [Replica((row,), base.slots) for row in self._rows.detach()]
        ends = [*(slot.offset for slot in base.slots[1:]), self._rows.shape[1]]
        self._widths = [end - slot.offset for slot, end in zip(base.slots, ends, strict=True)]
        self._optimizer = task.optimizer([self._rows])
        self._counts_matter = type(self._optimizer) is not SGD or self._optimizer.param_groups[0]["dampening"] != 0
        self._gradients: Tensor | None = None  # of workers that wait for the gradients of others
        self._steps_done = [0] * self._workers
        self._under_way: dict[int, tuple[int, bool]] = {}
        self._losses = [math.nan] * self._workers

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        self._under_way[rank] = (step, alone)

    def end(self, rank: int) -> float:
        if rank in self._under_way:
            under_way, self._under_way = self._under_way, {}
            by_size: dict[int, list[int]] = defaultdict(list)
            for other in sorted(under_way):
                by_size[self._shards[other].size_of_batches].append(other)
            for ranks in by_size.values():
                self._learn(ranks, [under_way[r][0] for r in ranks], [under_way[r][1] for r in ranks])
        return self._losses[rank]

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        assert self._gradients is not None, "no worker of the group has computed a gradient"
        theirs = self._gradients if len(sources) == self._workers else self._gradients[torch.tensor(sources)]
        self._step(ranks, theirs.mean(0).expand(len(ranks), -1))

    def mean_model(self) -> nn.Module:
        mean_model_(self._base, [replica.flats for replica in self.replicas])
        self._base.release()
        return self._model

    def _learn(self, ranks: Sequence[int], steps: Sequence[int], alone: Sequence[bool]) -> None:
        """The gradients of some workers; of those alone, the step too."""
        indices = stacked_indices([self._shards[rank] for rank in ranks], steps)
        if all(alone) and self._workers > len(ranks) >= MOST * self._workers and not self._counts_matter:
            self._learn_most(ranks, indices)
            return
        inputs, targets = self._task.train.batch(indices)
        rows = self._rows if len(ranks) == self._workers else self._rows.detach()[torch.tensor(ranks)].requires_grad_()
        losses = self._losses_of(self._named(rows), inputs, targets)
        (gradients,) = torch.autograd.grad(losses.sum(), rows)
        for rank, loss in zip(ranks, losses.tolist(), strict=True):
            self._losses[rank] = loss
        if all(alone):
            self._step(ranks, gradients)
            return
        if len(ranks) == self._workers:
            self._gradients = gradients
        else:
            if self._gradients is None:
                self._gradients = torch.zeros_like(self._rows)
            self._gradients[torch.tensor(ranks)] = gradients
        if any(alone):
            chosen = torch.tensor(alone)
            self._step([rank for rank, is_alone in zip(ranks, alone, strict=True) if is_alone], gradients[chosen])

    def _learn_most(self, ranks: Sequence[int], indices: Tensor) -> None:
        """Step all rows where they lie, and put back those of the few workers that are not due: to copy the rows of
        the many out and back would cost more."""
        others = torch.tensor(sorted(set(range(self._workers)) - set(ranks)))
        everyone = indices[:1].expand(self._workers, -1).clone()  # the others learn something, which is undone
        everyone[torch.tensor(ranks)] = indices
        losses = self._losses_of(self._named(self._rows), *self._task.train.batch(everyone))
        (gradients,) = torch.autograd.grad(losses.sum(), self._rows)
        values = losses.tolist()
        for rank in ranks:
            self._losses[rank] = values[rank]
        state = self._optimizer.state[self._rows]
        kept = {key: value[others] for key, value in state.items() if _is_per_element(value)}
        rows = self._rows.detach()
        kept_rows = rows[others]
        self._step_all(0, gradients)
        rows[others] = kept_rows
        for key, value in state.items():
            if _is_per_element(value):
                value[others] = kept.get(key, 0.0)

    def _named(self, rows: Tensor) -> dict[str, Tensor]:
        """The parameters that lie in some rows, by name, [rows, *shape]."""
        parts = zip(self._base.slots, torch.split(rows, self._widths, dim=1), strict=True)
        return {slot.name: part[:, : math.prod(slot.shape)].view(-1, *slot.shape) for slot, part in parts}

    def _losses_of(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every worker, [workers]."""
        outputs = vmap(self._output)(parameters, inputs)
        if self._task.loss is cross_entropy:
            return cross_entropy_of_each(outputs, targets)
        return vmap(self._task.loss)(outputs, targets)

    def _output(self, parameters: dict[str, Tensor], inputs: Tensor) -> Any:
        return functional_call(self._model, parameters, (inputs,))

    def _step(self, ranks: Sequence[int], gradients: Tensor) -> None:
        """One optimizer step of `ranks`. Where it depends on the number of steps done, equal numbers go together."""
        by_count: dict[int, list[int]] = defaultdict(list)
        for position, rank in enumerate(ranks):
            by_count[self._steps_done[rank] if self._counts_matter else 0].append(position)
            self._steps_done[rank] += 1
        for count, positions in by_count.items():
            if len(positions) == self._workers:
                self._step_all(count, gradients)
            elif len(positions) == len(ranks):
                self._step_some(torch.tensor(ranks), count, gradients)
            else:
                chosen = torch.tensor(positions)
                self._step_some(torch.tensor(ranks)[chosen], count, gradients[chosen])

    def _step_all(self, count: int, gradients: Tensor) -> None:
        state = self._optimizer.state[self._rows]
        if "step" in state:
            state["step"] = torch.tensor(float(count))
        self._rows.grad = gradients
        self._optimizer.step()
        self._rows.grad = None

    def _step_some(self, ranks: Tensor, count: int, gradients: Tensor) -> None:
        """The same on a copy of some rows and of their part of the optimizer's state, written back then."""
        whole = self._optimizer.state[self._rows]
        rows = nn.Parameter(self._rows.detach()[ranks])
        rows.grad = gradients
        optimizer = self._task.optimizer([rows])
        optimizer.state[rows] = {key: value[ranks] for key, value in whole.items() if _is_per_element(value)}
        if "step" in whole and count > 0:
            optimizer.state[rows]["step"] = torch.tensor(float(count))
        elif count == 0 and "step" in whole:
            optimizer.state[rows] = {}
        optimizer.step()
        with torch.no_grad():
            self._rows[ranks] = rows
            for key, value in optimizer.state[rows].items():
                if not _is_per_element(value):
                    whole[key] = value
                elif key in whole:
                    whole[key][ranks] = value
                else:
                    whole[key] = torch.zeros_like(self._rows)
                    whole[key][ranks] = value


def _is_per_element(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
