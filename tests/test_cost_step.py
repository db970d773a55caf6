"""The step in time: the host ahead of the device, buckets as torch has them, and what synchronous SGD exposes."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD

from offbeat.cost import TracedStep, trace
from offbeat.cost.pace import Machines, Work, closed_form, pace, played_out
from offbeat.cost.step import StepTime, synchronous, time_step
from offbeat.cost.wires import Wires
from offbeat.layout import Layout
from offbeat.sim.network import Link
from offbeat.strategies import STRATEGIES, make_strategy

MIB = 1 << 20


def layers(*megabytes: float) -> TracedStep:
    """A chain of layers; the last of them has its gradient first."""
    widths = [256, *(round(m * MIB / 4 / 256) for m in megabytes)]

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(256, width, bias=False) for width in widths[1:])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = x + part(x).mean(1, keepdim=True)
            return x

    return trace(Layers, torch.zeros(2, 256), None, loss=lambda out, _: out.mean(), optimizer=partial(SGD, lr=0.1))


def test_phases_add_up_and_the_host_may_be_the_later() -> None:
    step = layers(1, 1)
    quick = time_step(step, [1.0] * len(step.ops))
    assert quick.seconds == len(step.ops)
    assert quick.forward_seconds == len(step.of("forward"))
    assert quick.optimizer_seconds == len(step.of("optimizer"))
    slow_host = time_step(step, [1.0] * len(step.ops), [3.0] * len(step.ops))
    assert slow_host.seconds == 3 * len(step.ops), "the device waits for every launch"
    one_long = time_step(step, [100.0, *[1.0] * (len(step.ops) - 1)], [3.0] * len(step.ops))
    assert one_long.seconds == max(100 + len(step.ops) - 1, 3 * len(step.ops)), "the host gets ahead meanwhile"


def test_buckets_are_those_of_torch() -> None:
    step = layers(30, 20, 4, 0.5, 0.25)  # ready in reverse: 0.25, 0.5, 4, 20, 30
    ready = time_step(step, [1.0] * len(step.ops)).ready
    assert [nbytes / MIB for nbytes, _ in ready] == [4.75, 50]
    times = [at for _, at in ready]
    assert times == sorted(times)
    assert len(step.of("forward")) < times[0] < times[1] <= len(step.of("forward")) + len(step.of("backward"))


STEP = StepTime(
    forward_seconds=10.0,
    backward_seconds=20.0,
    optimizer_seconds=5.0,
    ready=((MIB, 12.0), (25 * MIB, 20.0), (9 * MIB, 30.0)),
)


def test_overlap_as_in_the_recursion() -> None:
    free = synchronous(STEP, lambda _: 0.0)
    assert (free.seconds, free.exposed_seconds, free.critical_wire_seconds) == (35.0, 0.0, 0.0)
    short = synchronous(STEP, lambda _: 4.0)  # 12-16, 20-24, 30-34
    assert (short.seconds, short.exposed_seconds, short.critical_wire_seconds) == (39.0, 4.0, 4.0)
    long = synchronous(STEP, lambda nbytes: nbytes / MIB)  # 12-13, 20-45, 45-54
    assert (long.seconds, long.exposed_seconds, long.critical_wire_seconds) == (59.0, 24.0, 34.0)
    assert long.busy == ((12.0, 13.0), (20.0, 45.0), (45.0, 54.0))


def machines(workers: int, per_node: int, rate: float) -> Machines:
    link, local = Link(bytes_per_second=rate, seconds=1e-4), Link(bytes_per_second=20 * rate, seconds=1e-5)
    return Machines(layout=Layout.even(workers, -(-workers // per_node)), wires=Wires(link=link, local=local))


def closed() -> Iterator[str]:
    for name in (*STRATEGIES, "local_sgd:every=3", "diloco:every=4"):
        if closed_form(make_strategy(name)) is not None:
            yield name


@pytest.mark.parametrize("name", list(closed()))
@pytest.mark.parametrize(("workers", "per_node"), [(2, 1), (6, 3), (7, 2)])
@pytest.mark.parametrize("rate", [1e6, 1e7, 1e9])
def test_closed_forms_agree_with_the_virtual_world(name: str, workers: int, per_node: int, rate: float) -> None:
    work = Work(time=STEP.scaled(0.1), model_bytes=36 * MIB)
    there = machines(workers, per_node, rate)
    formula = pace(make_strategy(name), work, there)
    played = played_out(make_strategy(name), work, there)
    assert (formula.by, played.by) == ("closed form", "virtual world")
    assert played.step_seconds == pytest.approx(formula.step_seconds, rel=1e-9)
    assert played.step_seconds > STEP.seconds * 0.0999
    assert played.averages_per_step == pytest.approx(formula.averages_per_step)


def test_closed_forms_are_those_that_wait_for_everybody() -> None:
    assert set(closed()) == {"none", "ddp", "local_sgd", "diloco", "local_sgd:every=3", "diloco:every=4"}
    for spec in ("local_sgd:warmup_steps=5", "diloco:delay=1", "diloco:fragments=2"):
        assert closed_form(make_strategy(spec)) is None, spec


def test_a_straggler_slows_all_in_ddp_and_itself_in_gossip() -> None:
    work = Work(time=STEP.scaled(0.01), model_bytes=MIB)
    there = machines(8, 4, 1e12)
    late = Machines(layout=there.layout, wires=there.wires, stragglers={3: 3.0})
    assert pace(make_strategy("ddp"), work, late).step_seconds == pytest.approx(3 * 0.35, rel=1e-3)
    mean_rate = (7 + 1 / 3) / 8 / 0.35
    assert pace(make_strategy("gossip"), work, late).step_seconds == pytest.approx(1 / mean_rate, rel=1e-3)


def test_averages_that_take_longer_than_was_played_are_what_the_wire_carries() -> None:
    work = Work(time=STEP.scaled(0.001), model_bytes=100 * MIB)
    there = machines(4, 1, 1e6)
    average = there.wires.all_reduce(100 * MIB, there.layout.ranks, there.layout).seconds
    found = pace(make_strategy("lasgd"), work, there)
    assert average > 50 * 0.035
    assert found.averages_per_step == pytest.approx(0.035 / average, rel=1e-6)
    assert pace(make_strategy("lasgd"), work, machines(4, 1, 1e12)).averages_per_step > 0.5


def test_an_optimizer_comes_after_the_average_and_is_not_lost() -> None:
    shape = STEP.shape()
    assert shape.optimizer_share == pytest.approx(5 / 35)
    assert [bucket.ready_share * 35 for bucket in shape.buckets] == pytest.approx([12, 20, 30])
    assert shape.nbytes == 35 * MIB
