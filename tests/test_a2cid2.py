"""A2CiD2: the stored form against the equations, its invariants, and what the momentum is for."""

import json
import math
import os
import sys
import time
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import RATE, Pull, Quadratic
from torch import Tensor, nn
from workers import run_to_exit

import offbeat
from offbeat.layout import Layout, Ranks
from offbeat.replica import Replica, consensus_distance
from offbeat.sim.cluster import Cluster
from offbeat.sim.network import Link
from offbeat.sim.run import Run, run
from offbeat.strategies import gossip, make_strategy
from offbeat.strategies.a2cid2 import A2CiD2, MomentumSection
from offbeat.strategies.gossip import Gossip, Section
from offbeat.topology import Momentum, heal, momentum, neighbours

STEP_SECONDS, STEPS = 0.1, 400
NUMBERS = Momentum(chi_1=13.0, chi_2=0.9, eta=0.15, alpha=0.5, alpha_tilde=1.9)
events = st.lists(
    st.tuples(st.sampled_from(["step", "send", "receive"]), st.floats(0.01, 3.0), st.floats(-2.0, 2.0)), max_size=20
)


class WrittenOut:
    """x and x~ of one number, as the paper has them."""

    def __init__(self, x: float) -> None:
        self.x = self.x_tilde = x
        self.mixed_at = 0.0

    def mix(self, now: float) -> None:
        e = math.exp(-2 * NUMBERS.eta * (now - self.mixed_at))
        x, x_tilde = self.x, self.x_tilde
        self.x, self.x_tilde = (1 + e) / 2 * x + (1 - e) / 2 * x_tilde, (1 - e) / 2 * x + (1 + e) / 2 * x_tilde
        self.mixed_at = now


@given(events)
@settings(max_examples=100, deadline=None)
def test_the_stored_form_follows_the_equations(events: list[tuple[str, float, float]]) -> None:
    """Gradients come at boundaries, exchanges between them; what is sent is the mixed x of the last boundary on."""
    weights = torch.tensor([0.7], dtype=torch.float64)
    section, expected, now = MomentumSection(weights, NUMBERS), WrittenOut(0.7), 0.0
    for kind, gap, value in events:
        now += gap
        expected.mix(now)
        if kind == "step":
            expected.x += value
            expected.x_tilde += value
            weights += value  # by the optimizer, before the boundary
            section.settle(now)
            section.renew()
            assert weights.item() == pytest.approx(expected.x, abs=1e-12)
        elif kind == "send":
            section.mix(now)
            assert section.x.item() == pytest.approx(expected.x, abs=1e-12)
        else:
            expected.x -= NUMBERS.alpha * value
            expected.x_tilde -= NUMBERS.alpha_tilde * value
            section.receive(torch.tensor([-value], dtype=torch.float64), now)  # theirs less ours
    section.settle(now)
    expected.mix(now)
    assert weights.item() == pytest.approx(expected.x, abs=1e-12)
    section.end()
    assert weights.item() == pytest.approx((expected.x + expected.x_tilde) / 2, abs=1e-12)


def virtual(spec: str, workers: int, steps: int, seed: int = 0) -> tuple[Quadratic, Run]:
    learners = Quadratic(workers)
    cluster = Cluster(layout=Layout.even(workers, workers), jitter=0.2)
    return learners, run(make_strategy(spec), cluster, learners, [steps] * workers, seed=seed)


class Noise:
    """Workers that only drift apart: SGD with momentum 0.9 on pure noise."""

    ELEMENTS = 64

    def __init__(self, workers: int) -> None:
        self.replicas = [Replica((torch.zeros(self.ELEMENTS, dtype=torch.float64),)) for _ in range(workers)]
        self._velocities = [torch.zeros(self.ELEMENTS, dtype=torch.float64) for _ in range(workers)]
        self._generator = torch.Generator().manual_seed(0)
        self.distances: list[float] = []
        self._ends = 0

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        pass

    def end(self, rank: int) -> float:
        noise: Tensor = torch.randn(self.ELEMENTS, generator=self._generator, dtype=torch.float64)
        self._velocities[rank].mul_(0.9).add_(noise)
        self.replicas[rank].flats[0].sub_(self._velocities[rank], alpha=0.01)
        self._ends += 1
        if self._ends % (10 * len(self.replicas)) == 0:
            self.distances.append(consensus_distance(self.replicas))
        return 0.0

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        raise AssertionError("nobody averages gradients")

    def mean_model(self) -> nn.Module:
        raise AssertionError("there is no model")


def consensus(spec: str, workers: int = 32, steps: int = 300) -> float:
    """The mean distance in the second half of a run."""
    learners = Noise(workers)
    run(
        make_strategy(spec),
        Cluster(layout=Layout.even(workers, workers), jitter=0.1),
        learners,
        [steps] * workers,
        seed=0,
    )
    late = learners.distances[len(learners.distances) // 2 :]
    return sum(late) / len(late)


def test_on_a_ring_it_keeps_workers_closer_than_twice_the_rate_would() -> None:
    with_momentum = consensus("a2cid2:topology=ring,rate=1.0")
    assert with_momentum < 0.7 * consensus("gossip:topology=ring,rate=1.0")
    assert with_momentum < consensus("gossip:topology=ring,rate=2.0")


def test_a_wire_too_slow_for_the_rate_slows_nobody_and_is_reported() -> None:
    """An exchange takes 0.5 s, five steps: computing goes on undisturbed, and the report says what was achieved."""
    link = Link(bytes_per_second=8 * Quadratic(1).replicas[0].flats[1].numel() * 2.0, seconds=1e-4)
    for spec in ("gossip:topology=ring,rate=4.0", "a2cid2:rate=4.0"):
        learners = Quadratic(4)
        cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.1, link=link)
        done = run(make_strategy(spec), cluster, learners, [100] * 4, seed=0)
        for status, trace in zip(done.statuses, done.traces, strict=True):
            waits = [event for event in trace.events if event.kind == "wait" and 5.0 < event.start < 9.0]
            assert not waits, f"{spec}: a worker waited"
            assert 0.02 < status.notes["rate"] < 0.3
            assert status.averages - 2 <= round(status.notes["rate"] * 100) <= status.averages
            if "eta" in status.notes:  # momentum goes by the exchanges that there were
                asked = momentum(neighbours("ring", 4), 4.0).eta
                believed = (status.averages + 40) / 110 / 4
                assert status.notes["eta"] == pytest.approx(asked * believed, rel=0.05)


def test_the_rate_reported_is_that_of_the_steps_not_of_the_wait_for_a_straggler() -> None:
    learners = Quadratic(8)
    cluster = Cluster(layout=Layout.even(8, 8), stragglers={0: 4.0})
    done = run(make_strategy("gossip:rate=1.0"), cluster, learners, [100] * 8, seed=0)
    for status in done.statuses[1:]:
        assert status.averages > 200, "exchanges go on while the straggler trains"
        assert status.notes["rate"] < 1.8


@pytest.mark.parametrize("workers", [2, 5, 6, 13])
def test_on_the_complete_graph_it_is_gossip_to_the_bit(workers: int) -> None:
    plain, _ = virtual("gossip:topology=complete,rate=2.0", workers, 60)
    other, done = virtual("a2cid2:topology=complete,rate=2.0", workers, 60)
    assert done.statuses[0].notes["alpha_tilde"] == 0.5
    for rank in range(workers):
        assert torch.equal(plain.x(rank), other.x(rank))


def lose_the_middle() -> None:
    """In a real worker: rank 2 of a ring of 5 is gone without a word; the others say how they fared, as JSON."""
    rank, model = int(os.environ["RANK"]), Pull()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    strategy = make_strategy("a2cid2:topology=ring,rate=2.0")
    assert isinstance(strategy, A2CiD2)
    met: set[int] = set()
    try:
        with offbeat.attach(model, optimizer, strategy) as run:
            swap = run.comm.swap
            run.comm.swap = lambda x, peer, out=None: (met.add(peer), swap(x, peer, out))[1]  # type: ignore[method-assign]
            for number in range(150):
                time.sleep(0.01)
                if rank == 2 and number == 20:
                    os._exit(9)
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
            eta = strategy._momentum.eta
    except offbeat.LostPeer:
        print(json.dumps({"met": sorted(met), "eta": eta}), file=sys.stderr)


def test_a_ring_closes_around_a_dead_worker() -> None:
    ends = run_to_exit(lose_the_middle, 5)
    stories = {rank: json.loads(end.stderr.splitlines()[-1]) for rank, end in enumerate(ends) if rank != 2}
    assert ends[2].status == 9
    assert 3 in stories[1]["met"], "the dead worker's neighbours met each other"
    assert 1 in stories[3]["met"]
    for rank in (1, 3):
        assert stories[rank]["eta"] == pytest.approx(momentum(heal(neighbours("ring", 5), {2}), 2.0).eta)


class Dated(Section):
    """Notes how old the records are that are sent, in steps."""

    ages: ClassVar[list[float]] = []

    def __init__(self, weights: Tensor) -> None:
        super().__init__(weights)
        self._boundary = self._renewed = 0.0

    def settle(self, now: float) -> None:
        super().settle(now)
        self._boundary = now

    def renew(self) -> None:
        super().renew()
        if not self.in_flight:
            self._renewed = self._boundary

    def mix(self, now: float) -> None:
        if STEPS / 2 < now < STEPS:  # warm, and before the last boundary
            self.ages.append(now - self._renewed)


class DatedGossip(Gossip):
    def section(self, weights: Tensor) -> Section:
        return Dated(weights)


@pytest.mark.parametrize("window", [2, 8])
@pytest.mark.parametrize(("rate", "sections_per_step"), [(1.0, 2.5), (1.0, 1.0), (0.05, 1000.0)])
def test_what_is_sent_is_never_old(
    monkeypatch: pytest.MonkeyPatch, window: int, rate: float, sections_per_step: float
) -> None:
    """On slow wires and at low rates, and where many parts are in flight, as on a GPU."""
    monkeypatch.setattr(gossip, "IN_FLIGHT", window)
    monkeypatch.setattr(Dated, "ages", [])
    link = Link(bytes_per_second=sections_per_step * 2 * 8 / STEP_SECONDS, seconds=1e-6)
    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=STEP_SECONDS, link=link)
    run(DatedGossip(rate=rate, fragments=16), cluster, Quadratic(4), [STEPS] * 4, seed=0)
    assert len(Dated.ages) > 100
    assert max(Dated.ages) <= 2.0
