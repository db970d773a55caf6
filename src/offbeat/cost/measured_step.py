"""measured_step: how long a real training step takes on this machine, and what the host adds to its kernels."""

import statistics
import time
from collections.abc import Callable, Iterable
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
    step = training_step(subject, batch, device)
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


def training_step(subject: Subject, batch: int, device: torch.device) -> Callable[[], None]:
    """A function that makes one step with numbers that were drawn here."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = subject.model if isinstance(subject.model, nn.Module) else subject.model()
        model = built.to(device)

        def drawn(part: Tensor) -> Tensor:
            shape = (batch, *part.shape[1:])
            values = torch.randn(shape) if part.dtype.is_floating_point else torch.zeros(shape, dtype=part.dtype)
            return values.to(device)

        inputs, targets = tree_map_only(Tensor, drawn, subject.sample)
    optimizer = subject.optimizer(model.parameters())

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.autocast(device.type, dtype=subject.autocast, enabled=subject.autocast is not None):
            scalar = subject.loss(_call(model, inputs), targets)
        scalar.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def host_seconds(subjects: Iterable[Subject], device: torch.device) -> float:
    """What the host needs to issue a kernel: Python, modules, autograd; of many small kernels on a GPU."""
    return statistics.median(
        measured_step(subject, 1, device, steps=30) / len(subject.at(1).ops) for subject in subjects
    )


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
