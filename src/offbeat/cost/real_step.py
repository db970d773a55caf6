"""RealStep: a real training step on this machine, as often as it is called."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .subject import Case, Subject


class RealStep:
    """A model on a device, with numbers that are drawn here: every call makes one step, as long as the first.

    The learning rate is 0: a model that learns the one batch it ever sees has gradients that vanish, and a CPU takes a
    hundred times as long for numbers next to zero.
    """

    def __init__(self, subject: Subject, batch: int, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
            torch.manual_seed(0)
            self.model = subject.model.to(device) if isinstance(subject.model, nn.Module) else subject.model()
            draw = partial(_drawn, batch=batch, below=subject.classes)
            self._inputs, self._targets = tree_map_only(Tensor, draw, subject.sample)
        self._optimizer = subject.optimizer(self.model.parameters())
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._subject, self.samples, self.device = subject, batch, device

    def __call__(self) -> None:
        self.by_phase()

    @property
    def held_nbytes(self) -> int:
        """Between two steps: weights, their gradients, and what the optimizer keeps."""
        weights = list(self.model.parameters())
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        state = [each for own in self._optimizer.state.values() for each in own.values() if isinstance(each, Tensor)]
        return sum(each.nbytes for each in (*weights, *gradients, *state))

    def by_phase(self) -> tuple[float, float, float]:
        """A step; the seconds that forward, backward and optimizer took the host."""
        began = time.perf_counter()
        for parameter in self.model.parameters():
            parameter.grad = None
        autocast = self._subject.autocast
        with torch.autocast(self.device.type, dtype=autocast, enabled=autocast is not None):
            scalar = self._subject.loss(_call(self.model, self._inputs), self._targets)
        forward = time.perf_counter()
        scalar.backward()  # type: ignore[no-untyped-call]
        backward = time.perf_counter()
        self._optimizer.step()
        return forward - began, backward - forward, time.perf_counter() - backward


def one_after_the_other(cases: Iterable[Case], device: torch.device) -> Callable[[], None]:
    """A step of each."""
    steps = [RealStep(subject, batch, device) for subject, batch in cases]

    def all_of_them() -> None:
        for step in steps:
            step()

    return all_of_them


def _drawn(part: Tensor, batch: int, below: int) -> Tensor:
    shape = (batch, *part.shape[1:])
    return torch.randn(shape) if part.dtype.is_floating_point else torch.randint(below, shape, dtype=part.dtype)


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
