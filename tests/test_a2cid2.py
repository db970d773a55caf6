"""A2CiD2: the stored form against the equations, its invariants, and what the momentum is for."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic import Quadratic
from torch import Tensor, nn

from offbeat.layout import Layout, Ranks
from offbeat.replica import Replica, consensus_distance
from offbeat.sim.cluster import Cluster
from offbeat.sim.network import Link
from offbeat.sim.run import Run, run
from offbeat.strategies import make_strategy
from offbeat.strategies.a2cid2 import MomentumSection
from offbeat.topology import Momentum

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
            sent = torch.empty(1, dtype=torch.float64)
            section.send(sent, now)
            assert sent.item() == pytest.approx(expected.x, abs=1e-12)
        else:
            expected.x -= NUMBERS.alpha * value
            expected.x_tilde -= NUMBERS.alpha_tilde * value
            section.receive(torch.tensor([value], dtype=torch.float64), now)
    section.settle(now)
    expected.mix(now)
    assert weights.item() == pytest.approx(expected.x, abs=1e-12)
    section.end()
    assert weights.item() == pytest.approx((expected.x + expected.x_tilde) / 2, abs=1e-12)


def virtual(spec: str, workers: int, steps: int, seed: int = 0) -> tuple[Quadratic, Run]:
    learners = Quadratic(workers)
    cluster = Cluster(layout=Layout.even(workers, workers), jitter=0.2)
    return learners, run(make_strategy(spec), cluster, learners, [steps] * workers, seed=seed)


def test_on_the_complete_graph_it_is_gossip_to_the_bit() -> None:
    plain, _ = virtual("gossip:topology=complete,rate=2.0", 6, 60)
    other, done = virtual("a2cid2:topology=complete,rate=2.0", 6, 60)
    assert done.statuses[0].notes["alpha_tilde"] == pytest.approx(0.5)
    for rank in range(6):
        assert torch.equal(plain.x(rank), other.x(rank))


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
            assert status.averages == round(status.notes["rate"] * 100)
