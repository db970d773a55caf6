"""What can be said of a GPU without one: whose kernels are whose, where its threads run, and how it is traced."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offbeat.cost import trace
from offbeat.cost.gpu_step import FEWEST_TURNS, MARK, TURNS, Marked, Turn, _enough, at_one_speed, on_one_core
from offbeat.cost.random_models import BUSY_FLOPS, MOST_BATCH, random_models
from offbeat.cost.random_sizes import ON_A_GPU


@dataclass
class Event:
    """As torch's profiler has them."""

    name: str
    cpu_parent: "Event | None" = None
    kernels: list[Any] = field(default_factory=list)


def kernel(microseconds: float) -> Any:
    return SimpleNamespace(duration=microseconds)


def test_kernels_belong_to_the_call_that_they_were_launched_in() -> None:
    marked = Marked(split=True)
    x, weight = torch.zeros(1, 2, 4, 4, requires_grad=True), torch.zeros(3, 2, 3, 3, requires_grad=True)
    with marked:
        F.conv2d(x, weight).sum().backward()  # type: ignore[no-untyped-call]
    calls = marked.by_call(range(100))
    gradients = next(own for own in calls if len(own) > 1)  # of the input and of the weights, one by one
    assert len(gradients) == 2
    of_input, of_weight = (Event(f"{MARK}{number:.0f}") for number in gradients)
    events = [
        of_input,
        of_weight,
        Event("aten::convolution_backward", of_input, [kernel(10.0), kernel(20.0)]),
        Event("cudnn", Event("aten::convolution_backward", of_weight), [kernel(40.0)]),
        Event("somewhere else", None, [kernel(1000.0)]),
    ]
    seconds = marked.seconds(events, gap=1e-6)  # type: ignore[arg-type]
    assert [seconds[int(number)] for number in gradients] == pytest.approx([32e-6, 41e-6])
    assert sum(seconds) == pytest.approx(73e-6)


def test_all_threads_run_on_one_core_for_a_while() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("threads cannot be told where to run here")
    before = os.sched_getaffinity(0)
    with suppress(KeyError), on_one_core():
        assert len(os.sched_getaffinity(0)) == 1
        raise KeyError
    assert os.sched_getaffinity(0) == before


def traced_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    step = trace(
        lambda: nn.Linear(8, 4), torch.zeros(2, 8), torch.zeros(2, dtype=torch.long), loss=loss,
        optimizer=partial(torch.optim.SGD, lr=0.1), platform="cuda", autocast=torch.bfloat16,
    )  # fmt: skip
    forward = [op.kernel for op in step.of("forward")]
    after = forward.index(next(each for each in forward if each.kind == "matmul")) + 1
    return [f"{each.operator} {each.dtype}".removeprefix("_") for each in forward[after:]]


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        lambda outputs, targets: F.cross_entropy(input=outputs, target=targets),
        lambda outputs, targets: F.cross_entropy(outputs, targets, label_smoothing=0.0, reduction="mean"),
    ],
)
def test_a_gpu_takes_logarithms_before_it_widens(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """As seen on one."""
    widened = ["log_softmax torch.bfloat16", "to_copy torch.bfloat16", "nll_loss_forward torch.float32"]
    assert traced_loss(loss) == widened


def test_smoothed_labels_are_widened_first() -> None:
    assert traced_loss(partial(F.cross_entropy, label_smoothing=0.1))[0] == "to_copy torch.bfloat16"


def test_random_models_fit_into_the_memory() -> None:
    def peaks(most_bytes: float) -> list[int]:
        drawn = random_models(seed=0, platform="cuda", most_bytes=most_bytes)
        return [subject.at(batch).memory.peak for subject, batch in (next(drawn) for _ in range(6)) if batch > 2]

    assert max(peaks(float("inf"))) > 100e6
    assert max(peaks(100e6), default=0) <= 100e6


def test_random_models_of_all_sorts_keep_a_gpu_busy_or_wait_for_the_host() -> None:
    busy, waiting = Counter[int](), Counter[int]()  # by the dimensions of their inputs
    for subject, batch in itertools.islice(random_models(seed=0, platform="cuda"), 30):
        kept_busy = subject.at(batch).flops >= BUSY_FLOPS or batch == MOST_BATCH
        (busy if kept_busy else waiting)[subject.sample[0].dim()] += 1
    assert {2, 4} <= set(busy) & set(waiting)  # rows of features or characters, and images
    assert min(busy.total(), waiting.total()) >= 5


def test_half_of_the_batches_are_powers_of_two() -> None:
    sizes = ON_A_GPU(Random(0))
    batches = [sizes.batch() for _ in range(400)]
    assert set(batches) <= set(range(2, sizes.most_batch + 1))
    assert 0.45 < sum(batch & (batch - 1) == 0 for batch in batches) / len(batches) < 0.7


def turns_of(host_seconds: float, device_seconds: float, speeds: Sequence[tuple[float, float]]) -> list[Turn]:
    """On a host that is so many times as slow in each turn; the second number is what disturbs the step alone."""
    return [
        Turn(
            0.01 * slow,
            max(host_seconds * slow * disturbed, device_seconds),
            (0.5 * host_seconds * slow, 0.4 * host_seconds * slow, 0.1 * host_seconds * slow),
        )
        for slow, disturbed in speeds
    ]


def test_a_step_that_waits_for_the_host_is_timed_at_one_speed() -> None:
    """Each turn is brought to it from the speed that the host had just then; the medians as they are would be 6 ms."""
    usual = at_one_speed(turns_of(0.004, 0.001, [(1, 1.2), (1, 1.2), (1.5, 1), (1.5, 1), (1.5, 1.2)]), 0.001)
    assert usual.reference == pytest.approx(0.015)
    assert usual.whole == pytest.approx(0.0072)
    assert usual.phases == pytest.approx((0.003, 0.0024, 0.0006))


@pytest.mark.parametrize("slow", [1.5, 4.0])
def test_a_step_that_waits_for_the_device_takes_as_long_at_every_speed(slow: float) -> None:
    usual = at_one_speed(turns_of(0.004, 0.02, [(1, 1), (1, 1), (slow, 1), (slow, 1)]), 0.02)
    assert usual.whole == pytest.approx(0.02)
    assert sum(usual.phases) == pytest.approx(0.004 * (1 + slow) / 2)


def test_a_step_may_wait_for_the_device_in_one_turn_and_for_the_host_in_the_next() -> None:
    """At the speed between, it waits for neither much."""
    usual = at_one_speed(turns_of(0.004, 0.005, [(1, 1), (1.5, 1), (1, 1), (1.5, 1)]), 0.005)
    assert usual.whole == pytest.approx(0.005)


def test_turns_go_on_as_long_as_the_host_matters() -> None:
    host, device = turns_of(0.004, 0.001, [(1, 1)]), turns_of(0.001, 0.004, [(1, 1)])
    assert _enough([], TURNS, 0.0) == _enough(host, TURNS, 0.1) == _enough([*device, *host], TURNS, 0.1) == TURNS
    assert _enough(host, TURNS, 5.0) == FEWEST_TURNS
    assert _enough(host, 2, 5.0) == _enough(host, 2, 0.1) == 2
    assert _enough(device, TURNS, 0.1) == 1
