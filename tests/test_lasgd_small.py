"""LASGD's small tensors on a lane of their own; the opening; ends, wherever ranks are then."""

import random
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from wires import NBYTES, STEP_SECONDS, LateOnTheWire, late, on_a_wire_of

from offbeat.layout import Layout, Ranks
from offbeat.replica import Replica, Slot
from offbeat.sim.cluster import Cluster
from offbeat.sim.comm import SimComm
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.run import run
from offbeat.sim.work import SimWork
from offbeat.strategies import make_strategy


class SmallAndLarge(NoModel):
    """x is three tensors, the middle one 99 % of it; steps are seeded noise, and the sum of all is remembered."""

    def __init__(self, workers: int) -> None:
        shapes = {"first": 16, "large": 4000, "last": 16}
        offsets = {"first": 0, "large": 16, "last": 4016}
        slots = tuple(Slot(name, 0, offsets[name], (size,), (1,), True) for name, size in shapes.items())
        self.replicas = [Replica((torch.ones(4032, dtype=torch.float64),), slots) for _ in range(workers)]
        self.moved = [torch.zeros(4032, dtype=torch.float64) for _ in range(workers)]
        self._draws = [torch.Generator().manual_seed(rank) for rank in range(workers)]

    def end(self, rank: int) -> float:
        change = torch.randn(4032, generator=self._draws[rank], dtype=torch.float64)
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
            if x.ndim > 0 and out is not None and len(x) < 4032:
                sent.setdefault(self.rank, []).append((len(x) - 1, self.now()))
            return super().average(x, ranks, out)  # type: ignore[no-any-return]

    monkeypatch.setattr("offbeat.sim.run.SimComm", Noting)
    link = Link(bytes_per_second=2 * 3 / 4 * NBYTES / (9 * STEP_SECONDS), seconds=1e-5)
    hardware = Cluster(layout=Layout.even(4, 4), step_seconds=STEP_SECONDS, link=link, **cluster)
    run(make_strategy(spec), hardware, learners, [300] * 4, seed=0, nbytes=NBYTES)
    return sent


def test_small_tensors_are_averaged_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for sends in sends_of("lasgd", SmallAndLarge(4), monkeypatch).values():
        small = [at for size, at in sends if size == 16 + 16 and 5.0 < at < 30.0]
        assert len(small) > 0.95 * 250
        numbers = sum(size for size, at in sends if 5.0 < at < 30.0)
        assert numbers / 4032 * 9 > 0.97 * 250, "and the wire is full"


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
        assert first.count(16 + 16) >= 2
        assert sum(first) / 4032 * 9 > 0.9 * 3, "and the wire is full"
        parts = [size for size, at in sends if size != 16 + 16 and at < begun + 12.5 * STEP_SECONDS]
        assert sum(parts) > 0.95 * 4000, "what has not travelled comes before what has"


def test_small_tensors_stay_in_their_parts_where_the_steps_of_merges_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in ("lasgd:fragments=18,delay=9", "lasgd:fragments=18,max_delay=0", "lasgd:fragments=18,every=9"):
        sends = sends_of(spec, SmallAndLarge(4), monkeypatch)[0]
        assert {size for size, _ in sends} <= {224, 240}, spec


@pytest.mark.parametrize("slow", [{}, {2: 2.0}])
@pytest.mark.parametrize("comm", [SimComm, LateOnTheWire])
def test_small_tensors_hold_nobody_up(
    slow: dict[int, float], comm: type[SimComm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts do not wait for them, nor they for the parts: where a worker is slow, they go at its pace."""
    late.clear()
    sent = sends_of("lasgd", SmallAndLarge(4), monkeypatch, comm, stragglers=slow)
    orders = [[size for size, _ in sends if size != 16 + 16] for sends in sent.values()]
    assert all(order == orders[0] for order in orders)
    numbers = sum(size for size, at in sent[2] if 15.0 < at < 29.0)
    assert numbers / 4032 * 9 > 0.95 * 140, "the wire is full"
    rides = sum(size == 16 + 16 and 15.0 < at < 29.0 for size, at in sent[2])
    both_late = slow and comm is LateOnTheWire  # more than two steps in the mean: then they come seldom
    assert rides > (0.05 if both_late else 0.3 if slow or comm is LateOnTheWire else 0.95) * 140
    assert not both_late or rides < 0.3 * 140


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
        rides = [at / STEP_SECONDS for size, at in sends if size == 16 + 16 and at > 6.0]
        apart = [after - before for before, after in pairwise(rides)]
        assert sum(apart) > 8.5 * len(apart), "an average of all x takes nine steps"
        assert min(apart) > 5
        numbers = sum(size for size, at in sends if 15.0 < at < 29.0)
        assert numbers / 4032 * 9 > 0.95 * 140


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
            link=Link(bytes_per_second=4032 * 8 / luck.choice([0.05, 0.2, 0.5, 1.0, 3.0]), seconds=1e-5),
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
        link=Link(bytes_per_second=2 * 3 / 4 * 4032 * 8 / 0.9, seconds=1e-5),
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
