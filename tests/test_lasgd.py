"""LASGD: fragments and the queue, bounds on staleness, a narrower wire, gradients averaged inside a node."""

import os
import random
import time
from collections.abc import Generator
from contextlib import suppress
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from quadratic import Quadratic
from torch import Tensor, nn
from workers import run_workers

import offbeat
from offbeat.errors import BadInput
from offbeat.layout import Layout, Ranks
from offbeat.letter import GatheredLetter, Letter
from offbeat.parcel import Parcel
from offbeat.replica import Replica, Slot, flatten
from offbeat.sim.cluster import Cluster
from offbeat.sim.comm import SimComm
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.run import Run, run
from offbeat.sim.work import SimWork
from offbeat.strategies import make_strategy
from offbeat.wire_time import WireTime, time_the_wire

STEP_SECONDS, NBYTES = 0.1, 1_200_000


def on_a_wire_of(
    steps_per_average: float, spec: str, *, steps: int = 200, stragglers: dict[int, float] | None = None
) -> Run:
    """Four workers on four nodes; an average of all x takes so many steps on the wire."""
    bytes_per_second = 2 * 3 / 4 * NBYTES / (steps_per_average * STEP_SECONDS)
    cluster = Cluster(
        layout=Layout.even(4, 4),
        step_seconds=STEP_SECONDS,
        link=Link(bytes_per_second=bytes_per_second, seconds=1e-5),
        stragglers=stragglers or {},
    )
    return run(make_strategy(spec), cluster, NoModel(4), [steps] * 4, seed=0, nbytes=NBYTES)


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


class LateOnTheWire(SimComm):
    """As on a GPU, where a snapshot waits for the kernels before it: averages begin one and a half steps later."""

    steps_late: ClassVar[float] = 1.5

    def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
        if x.ndim > 0 and out is None:
            return super().average(x, ranks, out)
        out = x.clone() if out is None else out.copy_(x)
        outer: SimWork[Tensor] = SimWork("average")
        if x.ndim > 0:
            late.setdefault(self.rank, []).append(outer)

        def begin() -> None:
            inner = super(LateOnTheWire, self).average(out, ranks, out)
            outer.found_idle = inner.found_idle
            inner.then(lambda: outer.complete(inner.result()))

        self._world.clock.after(self.steps_late * STEP_SECONDS, begin)
        return outer


late: dict[int, list[SimWork[Tensor]]] = {}


def test_the_wire_never_runs_dry_where_averages_begin_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is never empty then, and yet the wire is, unless the queue is deep enough for the time before it."""
    monkeypatch.setattr("offbeat.sim.run.SimComm", LateOnTheWire)
    late.clear()
    on_a_wire_of(4.5, "lasgd:fragments=9")
    for works in late.values():
        warm = works[len(works) // 2 : -20]
        assert len(warm) > 100
        assert sum(work.found_idle for work in warm) < 0.03 * len(warm)


class SmallAndLarge(NoModel):
    """x is three tensors, the middle one 98 % of it; steps are seeded noise, and the sum of all is remembered."""

    def __init__(self, workers: int) -> None:
        shapes = {"first": 32, "large": 4000, "last": 48}
        offsets = {"first": 0, "large": 32, "last": 4032}
        slots = tuple(Slot(name, 0, offsets[name], (size,), (1,), True) for name, size in shapes.items())
        self.replicas = [Replica((torch.ones(4080, dtype=torch.float64),), slots) for _ in range(workers)]
        self.moved = [torch.zeros(4080, dtype=torch.float64) for _ in range(workers)]
        self._draws = [torch.Generator().manual_seed(rank) for rank in range(workers)]

    def end(self, rank: int) -> float:
        change = torch.randn(4080, generator=self._draws[rank], dtype=torch.float64)
        self.replicas[rank].flats[0].add_(change)
        self.moved[rank] += change
        return 0.0


Sent = dict[int, list[tuple[int, float]]]  # of each rank, in order: numbers of an average, and when it was sent


def sends_of(
    spec: str, learners: NoModel, monkeypatch: pytest.MonkeyPatch, comm: type[SimComm] = SimComm, **cluster: Any
) -> Sent:
    """All averages, control messages left out, on a wire that takes nine steps for one of all x."""
    sent: Sent = {}

    class Noting(comm):  # type: ignore[misc, valid-type]
        def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
            if x.ndim > 0 and out is not None and len(x) < 4080:
                sent.setdefault(self.rank, []).append((len(x) - 1, self.now()))
            return super().average(x, ranks, out)  # type: ignore[no-any-return]

    monkeypatch.setattr("offbeat.sim.run.SimComm", Noting)
    link = Link(bytes_per_second=2 * 3 / 4 * NBYTES / (9 * STEP_SECONDS), seconds=1e-5)
    hardware = Cluster(layout=Layout.even(4, 4), step_seconds=STEP_SECONDS, link=link, **cluster)
    run(make_strategy(spec), hardware, learners, [300] * 4, seed=0, nbytes=NBYTES)
    return sent


def test_small_tensors_are_averaged_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for sends in sends_of("lasgd", SmallAndLarge(4), monkeypatch).values():
        small = [at for size, at in sends if size == 32 + 48 and 5.0 < at < 30.0]
        assert len(small) > 0.95 * 250
        numbers = sum(size for size, at in sends if 5.0 < at < 30.0)
        assert numbers / 4080 * 9 > 0.97 * 250, "and the wire is full"


def test_averages_begin_with_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody knows how long a step takes; and with the small tensors, which come after every few parts."""
    for trace in on_a_wire_of(9, "lasgd").traces:
        first_end = min(e.start + e.seconds for e in trace.events if e.kind == "compute")
        sent = [
            e.start for e in trace.events if e.name == "average" and e.nbytes > 1000 and e.start >= first_end - 1e-9
        ]
        assert min(sent) == pytest.approx(first_end)
    for sends in sends_of("lasgd", SmallAndLarge(4), monkeypatch).values():
        begun = sends[0][1]
        first = [size for size, at in sends if at < begun + 3.5 * STEP_SECONDS]
        assert first.count(32 + 48) >= 2
        assert sum(first) / 4080 * 9 > 0.9 * 3, "and the wire is full"
        parts = [size for size, at in sends if size != 32 + 48 and at < begun + 12.5 * STEP_SECONDS]
        assert sum(parts) > 0.95 * 4000, "what has not travelled comes before what has"


def test_small_tensors_stay_in_their_parts_where_the_steps_of_merges_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in ("lasgd:fragments=18,delay=9", "lasgd:fragments=18,max_delay=0", "lasgd:fragments=18,every=9"):
        sends = sends_of(spec, SmallAndLarge(4), monkeypatch)[0]
        assert {size for size, _ in sends} <= {224, 240}, spec


@pytest.mark.parametrize("slow", [{}, {2: 3.0}])
@pytest.mark.parametrize("comm", [SimComm, LateOnTheWire])
def test_small_tensors_hold_nobody_up(
    slow: dict[int, float], comm: type[SimComm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts do not wait for them, nor they for the parts: where a worker is slow, they go at its pace."""
    late.clear()
    sent = sends_of("lasgd", SmallAndLarge(4), monkeypatch, comm, stragglers=slow)
    orders = [[size for size, _ in sends if size != 32 + 48] for sends in sent.values()]
    assert all(order == orders[0] for order in orders)
    numbers = sum(size for size, at in sent[2] if 15.0 < at < 29.0)
    assert numbers / 4080 * 9 > 0.95 * 140, "the wire is full"
    rides = sum(size == 32 + 48 and 15.0 < at < 29.0 for size, at in sent[2])
    assert rides > (0.95 if not slow and comm is SimComm else 0.3) * 140


class LaterOnTheWire(LateOnTheWire):
    steps_late = 4.5


def test_small_tensors_that_come_back_late_travel_no_more_often_than_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrections that are five steps late, and as often, would drive workers with momentum apart."""
    late.clear()
    sent = sends_of("lasgd", SmallAndLarge(4), monkeypatch, LaterOnTheWire)
    orders = [[size for size, _ in sends] for sends in sent.values()]
    assert all(order == orders[0] for order in orders)
    for sends in sent.values():
        # By then the opening is over, in which nobody asks, and they have seen enough rides to come seldom.
        rides = [at / STEP_SECONDS for size, at in sends if size == 32 + 48 and at > 6.0]
        apart = [after - before for before, after in pairwise(rides)]
        assert sum(apart) > 8.5 * len(apart), "an average of all x takes nine steps"
        assert min(apart) > 5
        numbers = sum(size for size, at in sends if 15.0 < at < 29.0)
        assert numbers / 4080 * 9 > 0.95 * 140


@pytest.mark.parametrize(
    "spec",
    [f"lasgd:fragments=9{more}" for more in ("", ",wire_dtype=bfloat16", ",wire_dtype=int8", ",gradients=node")],
)
def test_small_tensors_keep_the_mean_and_the_bits(spec: str) -> None:
    ends = []
    for _ in range(2):
        learners = SmallAndLarge(4)
        link = Link(bytes_per_second=1e6, seconds=1e-4)
        cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.01, link=link, jitter=0.2, stragglers={1: 1.5})
        run(make_strategy(spec), cluster, learners, [80, 80, 80, 60], seed=0)
        ends.append(learners)
        mean = 1 + sum(learners.moved) / 4
        tolerance = 1e-12 if "wire_dtype" not in spec else 0.05
        for replica in learners.replicas:
            torch.testing.assert_close(replica.flats[0], mean, rtol=0, atol=tolerance)
    assert torch.equal(ends[0].replicas[0].flats[0], ends[1].replicas[0].flats[0])


class Skewed(SimComm):
    """An average is over on each rank a moment later than on another, as on real machines."""

    luck: ClassVar[random.Random]

    def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
        inner, outer = super().average(x, ranks, out), SimWork[Tensor]("average")
        outer.found_idle, moment = inner.found_idle, 0.01 * self.luck.random()
        inner.then(lambda: self._world.clock.after(moment, lambda: outer.complete(inner.result())))
        return outer


@pytest.mark.parametrize(
    "spec",
    [
        "lasgd",
        "lasgd:fragments=9",
        "lasgd:max_delay=2",
        "lasgd:fragments=9,max_delay=2",
        "lasgd:fragments=18,max_delay=2,every=3",
    ],
)
def test_however_ranks_lie_apart_nobody_waits_for_ever(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two lanes each has an order, and they have none in common: who waited on the one might keep the other up."""
    monkeypatch.setattr("offbeat.sim.run.SimComm", Skewed)
    Skewed.luck = luck = random.Random(0)
    for _ in range(40):
        workers = luck.choice([2, 3, 4])
        steps = luck.choice([[luck.randint(1, 60) for _ in range(workers)], [luck.randint(10, 60)] * workers])
        cluster = Cluster(
            layout=Layout.even(workers, workers),
            step_seconds=0.1,
            link=Link(bytes_per_second=4080 * 8 / luck.choice([0.05, 0.2, 0.5, 1.0, 3.0]), seconds=1e-5),
            jitter=luck.choice([0.0, 0.1, 0.3]),
            stragglers=luck.choice([{}, {1: 2.0}, {0: 1.3}]),
        )
        learners = SmallAndLarge(workers)
        run(make_strategy(spec), cluster, learners, steps, seed=0)
        mean = 1 + sum(learners.moved) / workers
        torch.testing.assert_close(learners.replicas[0].flats[0], mean, rtol=0, atol=1e-9)


NARROW = (",wire_dtype=bfloat16", ",wire_dtype=int8")


@pytest.mark.parametrize("more", ["", *NARROW, ",gradients=node", ",momentum=0.3", ",every=3", ",max_delay=3"])
@pytest.mark.parametrize("steps", [[1, 1, 1, 1], [2, 5, 1, 3], [40, 4, 9, 17]])
def test_runs_that_end_in_the_opening_keep_the_mean(steps: list[int], more: str) -> None:
    """When some have sent all parts of it and others have not, or nobody yet, or all and the parts are chosen."""
    learners = SmallAndLarge(4)
    cluster = Cluster(
        layout=Layout.even(4, 2 if "node" in more else 4),
        step_seconds=0.1,
        link=Link(bytes_per_second=2 * 3 / 4 * 4080 * 8 / 0.9, seconds=1e-5),
        stragglers={1: 2.0},
    )
    if "node" in more:
        steps = [steps[0]] * 2 + [steps[1]] * 2  # whose ranks step together
    run(make_strategy(f"lasgd{':' if more else ''}{more.removeprefix(',')}"), cluster, learners, steps, seed=0)
    mean = 1 + sum(learners.moved) / 4
    for replica in learners.replicas[1:]:
        assert torch.equal(replica.flats[0], learners.replicas[0].flats[0])
    if "momentum" not in more:  # with which the mean goes on
        tolerance = 0.05 if "wire_dtype" in more else 1e-12
        torch.testing.assert_close(learners.replicas[0].flats[0], mean, rtol=0, atol=tolerance)


class Settling(SmallAndLarge):
    """Steps move x at first, each rank elsewhere, and then no more."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.ended = [0] * workers
        self.latest = [torch.zeros(0)] * workers  # x after the latest step: before `finish` makes all equal

    def end(self, rank: int) -> float:
        self.ended[rank] += 1
        if self.ended[rank] <= 20:
            super().end(rank)
        self.latest[rank] = self.replicas[rank].flats[0].clone()
        return 0.0


@pytest.mark.parametrize(
    "spec",
    [f"lasgd:fragments={n}{more}" for n in ("none", 9) for more in ("", ",wire_dtype=bfloat16", ",wire_dtype=int8")],
)
def test_workers_that_stand_still_come_together(spec: str) -> None:
    """Also where the fragments are chosen when the workers have parted already: the reference is older than that."""
    learners = Settling(4)
    cluster = Cluster(
        layout=Layout.even(4, 4), step_seconds=0.01, link=Link(bytes_per_second=1e6, seconds=1e-4), jitter=0.1
    )
    run(make_strategy(spec), cluster, learners, [200] * 4, seed=0)
    for other in learners.latest[1:]:
        torch.testing.assert_close(other, learners.latest[0], rtol=0, atol=0.02)


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


class OneRank:
    """An average over this rank and another one whose x stands still at zero, both of them as the wire has it."""

    def average(self, x: Tensor, ranks: tuple[int, ...], out: Tensor) -> "OneRank":
        self.done = True
        out.copy_(x / 2)
        return self

    def result(self) -> Tensor:
        raise AssertionError


def test_the_merge_uses_the_snapshot_as_it_was_rounded() -> None:
    """x + (mean - sent), not x + (mean - x): otherwise the mean would drift by the rounding, round after round."""
    x = torch.full((5,), 1.0)
    parcel = Parcel((x,), "bfloat16")
    x += 1 / 3  # bfloat16 knows no third
    parcel.send(OneRank(), (0, 1), 0, training=True)  # type: ignore[arg-type]
    for _ in parcel.receive():
        pass
    parcel.merge()
    third = torch.tensor(1 / 3).bfloat16()
    torch.testing.assert_close(x, torch.full((5,), 4 / 3 - float(third) + float(third / 2)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("late", [False, True])
def test_pieces_handled_together_end_where_those_do_that_are_handled_one_by_one(
    wire_dtype: str | None, late: bool, momentum: float
) -> None:
    sizes, ends = (5, 1, 16, 3), []
    for kind in (Letter, GatheredLetter):
        torch.manual_seed(0)
        xs = [torch.randn(size) for size in sizes]
        references = [x + 0.1 * torch.randn_like(x) for x in xs]
        letter = kind(list(zip(xs, references, strict=True)), wire_dtype, momentum)
        for _ in range(2):
            letter.send(OneRank(), (0, 1), training=True)  # type: ignore[arg-type]
            if late:
                for x in xs:
                    x += 1
                letter.merge()
            else:
                letter.adopt()
        ends.append(xs + references)
    for one_by_one, together in zip(*ends, strict=True):
        torch.testing.assert_close(together, one_by_one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_fragments_cover_x_once_and_evenly(count: int) -> None:
    flats = (torch.arange(1000.0), torch.arange(700.0).double())
    fragments = Replica(flats).fragments(count)
    assert len(fragments) == count
    for dtype, flat in zip((torch.float32, torch.float64), flats, strict=True):
        pieces = [piece for fragment in fragments for piece in fragment if piece.dtype == dtype]
        assert torch.equal(torch.cat(pieces), flat)
        assert all(piece.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for piece in pieces)
    sizes = [sum(piece.nbytes for piece in fragment) for fragment in fragments]
    assert max(sizes) - min(sizes) <= 2 * 16 * 8


def test_padding_does_not_count_as_numbers() -> None:
    replica = flatten(nn.Linear(2, 1))
    assert replica.numbers == 3
    with pytest.raises(BadInput, match="fragments=4 does not fit: x has 3 numbers, so use that or fewer"):
        replica.fragments(4)


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
