"""measured_step: how long a real training step takes on this machine, and what the host adds to its kernels."""

import statistics
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .subject import Subject

WARM_STEPS, FEWEST_STEPS = 2, 3


def measured_step(
    subject: Subject, batch: int, device: torch.device | str = "cpu", *, steps: int = 9, at_most_seconds: float = 10.0
) -> float:
    """The median of several steps, the first of which warm up."""
    device = torch.device(device)
    step = RealStep(subject, batch, device)
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < WARM_STEPS + steps:
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
        if len(seconds) >= FEWEST_STEPS and time.perf_counter() - began > at_most_seconds:
            break
    return statistics.median(seconds[1:] if len(seconds) <= WARM_STEPS + 1 else seconds[WARM_STEPS:])


class RealStep:
    """A model on a device, with numbers that are drawn here: every call makes one step, as long as the first.

    The learning rate is 0: a model that learns the one batch it ever sees has gradients that vanish, and a CPU takes a
    hundred times as long for numbers next to zero.
    """

    def __init__(self, subject: Subject, batch: int, device: torch.device) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = subject.model if isinstance(subject.model, nn.Module) else subject.model()
            self.model = built.to(device)
            draw = partial(_drawn, batch=batch, device=device)
            self._inputs, self._targets = tree_map_only(Tensor, draw, subject.sample)
        self._optimizer = subject.optimizer(self.model.parameters())
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._subject, self._device = subject, device

    def __call__(self) -> None:
        autocast = self._subject.autocast
        for parameter in self.model.parameters():
            parameter.grad = None
        with torch.autocast(self._device.type, dtype=autocast, enabled=autocast is not None):
            scalar = self._subject.loss(_call(self.model, self._inputs), self._targets)
        scalar.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _drawn(part: Tensor, batch: int, device: torch.device) -> Tensor:
    shape = (batch, *part.shape[1:])
    values = torch.randn(shape) if part.dtype.is_floating_point else torch.zeros(shape, dtype=part.dtype)
    return values.to(device)


def dispatch_seconds(subjects: Iterable[Subject], device: torch.device) -> float:
    """What the host needs to issue a kernel: Python, modules, autograd; of many small kernels on a GPU."""
    return statistics.median(
        measured_step(subject, 1, device, steps=30) / len(subject.at(1).ops) for subject in subjects
    )


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
