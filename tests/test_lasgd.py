"""LASGD: parts and the queue, bounds on staleness, a narrower wire, gradients averaged inside a node."""

import os
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
import torch
from quadratic import Quadratic
from torch import Tensor, nn
from wires import NBYTES, STEP_SECONDS, LateOnTheWire, late, on_a_wire_of
from workers import run_workers

import offbeat
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.replica import Replica, flatten
from offbeat.sim.cluster import Cluster
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.run import Run, run
from offbeat.strategies import make_strategy
from offbeat.wire_time import WireTime, time_the_wire


def waits(done: Run, before: float) -> list[float]:
    """The waits that began between the first steps and `before`."""
    return [e.start for trace in done.traces for e in trace.events if e.kind == "wait" and 1.0 < e.start < before]


def test_nobody_waits_while_the_average_is_in_flight() -> None:
    done = on_a_wire_of(4.5, "lasgd:fragments=1")
    assert not waits(done, before=19.9)
    for status in done.statuses:
        assert 4.9 < status.delay <= 5.0  # type: ignore[operator]


@pytest.mark.parametrize(("steps_per_average", "fragments"), [(0.2, 1), (0.4, 2), (0.9, 4), (4.5, 18), (9.0, 36)])
def test_fragments_are_chosen_from_the_wire_and_the_step_time(steps_per_average: float, fragments: int) -> None:
    done = on_a_wire_of(steps_per_average, "lasgd")
    for status in done.statuses:
        assert fragments - 1 <= status.notes["fragments"] <= fragments + 1
        assert status.delay <= 2.0, "a part of x is merged a step or two after its snapshot"  # type: ignore[operator]
    assert not waits(done, before=19.9)


def result_of(timing: Generator[Any, Any, WireTime]) -> WireTime:
    """Where all work is done when it is yielded."""

    def to_the_end() -> Generator[Any, Any, None]:
        found.append((yield from timing))

    found: list[WireTime] = []
    generator, value = to_the_end(), None
    with suppress(StopIteration):
        while True:
            value = generator.send(value)
    return found[0]


@pytest.mark.parametrize("hiccup", [None, *range(11)])
@pytest.mark.parametrize("burst", [0, 128_000])
@pytest.mark.parametrize("numbers", [1, 20_000, 3_000_000])
def test_neither_a_burst_nor_a_hiccup_makes_the_wire_look_faster(numbers: int, burst: int, hiccup: int | None) -> None:
    """A shaped link carries the first bytes of a probe at once, and as many again when it has rested."""

    class Bursty:
        layout, seconds, tokens, calls = Layout.even(4, 4), 0.0, float(burst), 0

        def now(self) -> float:
            return self.seconds

        def add_up(self, x: torch.Tensor, _ranks: object) -> None:
            took = 1e-4 + max(0.0, 1.5 * x.nbytes - self.tokens) / 12e6
            self.tokens = min(burst, self.tokens - 1.5 * x.nbytes + 12e6 * took)
            self.seconds += took + (0.02 if self.calls == hiccup else 0.0)
            self.calls += 1

        def average(self, x: torch.Tensor, _ranks: object) -> torch.Tensor:
            return x

    wire = result_of(time_the_wire(Bursty(), Replica((torch.zeros(numbers),)), "bfloat16"))  # type: ignore[arg-type]
    latency, seconds = wire.latency, wire.seconds
    real = 1e-4 + 1.5 * 2 * numbers / 12e6
    assert latency == pytest.approx(1e-4, rel=0.05)
    if not burst or numbers > 1_000_000:
        assert 0.99 * real <= seconds <= 1.01 * real


@pytest.mark.parametrize("spec", ["lasgd", "lasgd:fragments=9", "lasgd:fragments=30", "lasgd:fragments=3"])
def test_the_wire_never_runs_dry(spec: str) -> None:
    """On a wire that is the limit, averages follow each other back to back once the queue is deep enough."""
    done = on_a_wire_of(4.5, spec)
    for trace in done.traces:
        sent = [event for event in trace.events if event.name == "average" and event.nbytes > 1000]
        ends = sorted(event.start + event.seconds for event in sent if 5.0 < event.start + event.seconds < 19.0)
        shares = sum(event.nbytes for event in sent if 5.0 < event.start + event.seconds < 19.0)
        capacity = (ends[-1] - ends[0]) * 2 * 3 / 4 * NBYTES / (4.5 * STEP_SECONDS)
        assert shares / capacity > 0.97


def test_the_wire_never_runs_dry_where_averages_begin_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is never empty then, and yet the wire is, unless the queue is deep enough for the time before it."""
    monkeypatch.setattr("offbeat.sim.run.SimComm", LateOnTheWire)
    late.clear()
    on_a_wire_of(4.5, "lasgd:fragments=9")
    for works in late.values():
        warm = works[len(works) // 2 : -20]
        assert len(warm) > 100
        assert sum(work.found_idle for work in warm) < 0.03 * len(warm)


def test_each_fragment_has_at_most_one_average_in_flight() -> None:
    strategy = make_strategy("lasgd:fragments=3")
    most = 0

    class Counting(type(strategy)):  # type: ignore[misc]
        def after_step(self, step: int):  # type: ignore[no-untyped-def]
            nonlocal most
            yield from super().after_step(step)
            most = max(most, sum(parcel.in_flight for parcel in self._large))
            assert len(self._queue) == len({id(parcel) for parcel in self._queue})

    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.01, link=Link(bytes_per_second=1e6, seconds=1e-4))
    run(Counting(fragments=3), cluster, NoModel(4), [60] * 4, seed=0, nbytes=100_000)
    assert 2 <= most <= 3


def test_a_straggler_delays_averages_and_nobodys_steps() -> None:
    done = on_a_wire_of(2.0, "lasgd", stragglers={2: 3.0})
    assert not waits(done, before=19.9)
    fast, slow = done.statuses[0], done.statuses[2]
    assert fast.delay > slow.delay  # type: ignore[operator]


def test_max_delay_bounds_staleness_by_waiting_and_says_so() -> None:
    done = on_a_wire_of(6.0, "lasgd:fragments=1,max_delay=2")
    assert len(waits(done, before=19.9)) > 20
    assert all(status.delay <= 2.0 for status in done.statuses)  # type: ignore[operator]
    assert done.seconds > 1.5 * 200 * STEP_SECONDS


class Norm(nn.Module):
    """Few parameters, more buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("variance", torch.full((100,), 8.0))


class Falling(NoModel):
    """Each step moves a parameter by 1, and a buffer half of the way to 0."""

    def __init__(self) -> None:
        self.replicas = [flatten(Norm()) for _ in range(2)]
        self.lowest = 8.0

    def end(self, rank: int) -> float:
        replica = self.replicas[rank]
        replica.parameters[0][:3] += 1.0
        replica.buffers[0][:100] *= 0.5
        self.lowest = min(self.lowest, *(float(each.buffers[0][:100].min()) for each in self.replicas))
        return 0.0


@pytest.mark.parametrize("more", ["delay=2", "fragments=2", "wire_dtype=int8", "every=1"])
def test_momentum_is_of_parameters_not_of_buffers(more: str) -> None:
    """A variance with momentum would go on falling, below 0. Also where more fragments would be chosen for the whole of
    x than there are parameters."""
    learners = Falling()
    cluster = Cluster(layout=Layout.even(2, 2), step_seconds=0.01, link=Link(bytes_per_second=1e4, seconds=1e-5))
    run(make_strategy(f"lasgd:{more},momentum=0.5"), cluster, learners, [60] * 2, seed=0)
    assert float(learners.replicas[0].parameters[0][0]) > 75, "60 steps of 1, and more by momentum"
    assert learners.lowest >= 0.0


def test_a_momentum_of_1_is_refused() -> None:
    with pytest.raises(BadInput, match=r"momentum=1.0 does not fit: from 1 on nothing is ever forgotten, so use less"):
        make_strategy("lasgd:momentum=1")


def test_bytes_of_too_many_workers_are_refused() -> None:
    with pytest.raises(BadInput, match="wire_dtype=int8 adds up bytes of at most 63 workers, and there are 64: use bf"):
        run(make_strategy("lasgd:wire_dtype=int8"), Cluster(layout=Layout.even(64, 64)), NoModel(64), [3] * 64, seed=0)


def test_delay_and_max_delay_contradict_each_other() -> None:
    with pytest.raises(BadInput, match="delay=2 and max_delay=3 contradict each other: give one of them"):
        make_strategy("lasgd:delay=2,max_delay=3")


def test_more_fragments_than_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match="fragments=33 does not fit: x has 32 numbers, so use that or fewer"):
        run(make_strategy("lasgd:fragments=33"), Cluster(layout=Layout.even(2, 2)), Quadratic(2), [3, 3], seed=0)


class Still(Quadratic):
    """Steps that change nothing."""

    def _move(self, rank: int, change: Tensor) -> None:
        pass


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16", "float16", "int8"])
def test_a_narrower_wire_never_rounds_x(wire_dtype: str) -> None:
    learners = Still(4)
    before = [learners.x(rank) for rank in range(4)]
    run(make_strategy(f"lasgd:wire_dtype={wire_dtype}"), Cluster(layout=Layout.even(4, 2)), learners, [20] * 4, seed=0)
    for rank in range(4):
        assert torch.equal(learners.x(rank), before[rank])


def test_a_narrower_wire_sends_fewer_bytes() -> None:
    runs = [on_a_wire_of(0.5, f"lasgd:fragments=1{more}") for more in ("", ",wire_dtype=bfloat16", ",wire_dtype=int8")]
    whole, half, quarter = (run.statuses[0].bytes_sent for run in runs)
    assert half / whole == pytest.approx(0.5, rel=0.02)
    assert quarter / whole == pytest.approx(0.25, rel=0.05)


def train_on_two_nodes() -> tuple[list[Tensor], dict[str, float]]:
    """In a real worker: x after every step, with gradients averaged inside nodes of two."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator, seen = torch.Generator().manual_seed(rank), []
    with offbeat.attach(model, optimizer, "lasgd:fragments=9,gradients=node", layout=Layout.even(4, 2)) as attached:
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(16, 64, generator=generator)).square().mean().backward()
            time.sleep(0.002 * (rank // 2))  # the second node is slower
            optimizer.step()
            seen.append(model.weight.detach().clone())
    return seen, attached.strategy.report()


def test_ranks_of_a_node_stay_equal_and_nodes_go_their_own_way() -> None:
    ends = run_workers(train_on_two_nodes, 4)
    for one, other in ((0, 1), (2, 3)):
        assert all(torch.equal(a, b) for a, b in zip(ends[one][0], ends[other][0], strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(ends[0][0], ends[2][0], strict=True))
    assert all(report["averages"] >= 1 for _, report in ends)
