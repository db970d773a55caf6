"""The task of all findings: a small real CNN on a part of Fashion-MNIST, SGD with momentum 0.9.

    offbeat simulate --task benchmarks/findings/fashion.py:task --strategy lasgd

It has 20,746 parameters, so that a step takes about a millisecond and a finding of a hundred runs a few minutes. What
counts for time is the ratio of communication to compute, and the links are chosen for that. The learning rate is that
of Offbeat's own task fashion-mnist; `steeper_task` has a higher one, at which being late costs more.
"""

from functools import partial

from images import parts  # a module of its own is read once per process, this file once per run
from torch import nn

from offbeat.train.task import Samples, Task, cross_entropy
from offbeat.train.tasks import sgd

SAMPLES, FEWER_SAMPLES = 16_000, 6_000
BATCH = 16
LEARNING_RATE, STEEPER_LEARNING_RATE = 0.02, 0.05


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def task() -> Task:
    return _task()


def steeper_task() -> Task:
    return _task(learning_rate=STEEPER_LEARNING_RATE)


def small_task() -> Task:
    """For findings that need many epochs, or many runs."""
    return _task(samples=FEWER_SAMPLES)


def quick_task() -> Task:
    """For smoke runs: hardly anything to learn from, or to test on."""
    return _task(samples=512, test_samples=500)


def _task(*, samples: int = SAMPLES, test_samples: int | None = None, learning_rate: float = LEARNING_RATE) -> Task:
    fashion = parts()
    return Task(
        name="fashion",
        model=model,
        optimizer=partial(sgd, learning_rate=learning_rate),
        loss=cross_entropy,
        train=_first(fashion.train, samples),
        test=_first(fashion.test, test_samples),
        batch=BATCH,
        epochs=4,
    )


def _first(samples: Samples, count: int | None) -> Samples:
    return Samples(inputs=samples.inputs[:count], targets=samples.targets[:count], mean=samples.mean, std=samples.std)
