"""Every strategy of the table, in virtual and in real time."""

import copy
import os

import pytest
import torch
from quadratic import RATE, Pull, Quadratic, delta, start, target
from references import ddp
from table import ROWS, Row
from torch import Tensor
from workers import run_workers

import offbeat
from offbeat.layout import Layout
from offbeat.replica import consensus_distance
from offbeat.sim.cluster import Cluster
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.run import Run, run
from offbeat.strategies import STRATEGIES, make_strategy

WORKERS, STEPS = 4, 21
UNEVEN = [STEPS, STEPS - 7, STEPS - 1, STEPS + 3]

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)


def virtual(
    spec: str, steps: list[int], *, jitter: float = 0.0, seed: int = 0, nodes: int = 2, slow: float = 1.5
) -> tuple[Quadratic, Run]:
    learners = Quadratic(len(steps))
    cluster = Cluster(layout=Layout.even(len(steps), min(nodes, len(steps))), jitter=jitter, stragglers={0: slow})
    return learners, run(make_strategy(spec), cluster, learners, steps, seed=seed)


def attached(specs: list[str], steps: list[int]) -> list[tuple[Tensor, dict[str, float]]]:
    """In a real worker: x at the end with each strategy, one after another."""
    rank, ends = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for spec in specs:
        model = Pull()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(model, optimizer, spec) as attachment:
            for number in range(steps[rank]):
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
        ends.append((model.x.detach().clone(), attachment.strategy.report()))
    torch.distributed.destroy_process_group()
    return ends


@pytest.fixture(scope="module")
def real() -> dict[str, list[Tensor]]:
    """x at the end on every rank, for every row; one set of processes runs them all."""
    specs = [row.spec for row in ROWS]
    ends = run_workers(attached, WORKERS, specs, [STEPS] * WORKERS)
    return {spec: [end[index][0] for end in ends] for index, spec in enumerate(specs)}


@pytest.fixture(scope="module")
def real_uneven() -> dict[str, list[Tensor]]:
    specs = [row.spec for row in ROWS]
    ends = run_workers(attached, WORKERS, specs, UNEVEN)
    return {spec: [end[index][0] for end in ends] for index, spec in enumerate(specs)}


def test_every_strategy_has_a_row() -> None:
    assert {row.make().name for row in ROWS} == set(STRATEGIES)


@every_row
def test_virtual_matches_the_reference(row: Row) -> None:
    if row.reference is None:
        learners, _ = virtual(row.spec, [STEPS] * WORKERS)
        moved = torch.stack(learners.moved).mean(0)
        expected = start() + moved  # whatever the order of events: nothing learned is lost
    else:
        learners, _ = virtual(row.spec, [STEPS] * WORKERS)
        expected = row.reference(start(), delta, WORKERS, STEPS)
    for rank in range(WORKERS):
        torch.testing.assert_close(learners.x(rank), expected, rtol=1e-12, atol=1e-12)


@every_row
def test_real_matches_the_reference(row: Row, real: dict[str, list[Tensor]]) -> None:
    first = real[row.spec][0]
    for x in real[row.spec]:
        assert torch.equal(x, first), "ranks differ after the final average"
    if row.reference is not None:
        expected = row.reference(start(), delta, WORKERS, STEPS)
        torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-12)


@every_row
def test_same_seed_same_bits(row: Row) -> None:
    runs = [virtual(row.spec, UNEVEN, jitter=0.2, seed=3) for _ in range(2)]
    (one, first), (other, second) = runs
    assert first.seconds == second.seconds
    assert [list(t.events) for t in first.traces] == [list(t.events) for t in second.traces]
    for rank in range(WORKERS):
        assert torch.equal(one.x(rank), other.x(rank))


def test_another_seed_gives_other_bits() -> None:
    ends = [virtual("gossip", UNEVEN, jitter=0.2, seed=seed)[1].seconds for seed in (3, 4)]
    assert ends[0] != ends[1]


@every_row
@pytest.mark.parametrize("steps", [[STEPS] * WORKERS, UNEVEN, [3], [5, 2]], ids=["even", "uneven", "one", "two"])
def test_mean_follows_the_steps(row: Row, steps: list[int]) -> None:
    """The invariant of all: the mean of the workers is the start plus the mean of all that their steps changed."""
    learners, _ = virtual(row.spec, steps, jitter=0.3)
    expected = start() + torch.stack(learners.moved).mean(0)
    mean = torch.stack([learners.x(rank) for rank in range(len(steps))]).mean(0)
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=1e-12)
    assert consensus_distance(learners.replicas) < 1e-12


@every_row
def test_uneven_ends_agree_in_both_worlds(row: Row, real_uneven: dict[str, list[Tensor]]) -> None:
    xs = real_uneven[row.spec]
    assert all(torch.equal(x, xs[0]) for x in xs)
    if row.same_in_both_worlds:
        learners, _ = virtual(row.spec, UNEVEN)
        torch.testing.assert_close(xs[0], learners.x(0), rtol=1e-10, atol=1e-10)


@every_row
def test_converges(row: Row) -> None:
    """Among equals, all end near the mean of the targets. (A straggler's last steps, alone, pull to its own.)"""
    goal = torch.stack([target(rank) for rank in range(WORKERS)]).mean(0)
    learners, _ = virtual(row.spec, [150] * WORKERS, jitter=0.1, slow=1.0)
    x = learners.x(0)
    assert (x - goal).norm() < 0.15 * (start() - goal).norm()


@every_row
def test_alone_it_is_the_plain_loop(row: Row) -> None:
    learners, _ = virtual(row.spec, [STEPS])
    x = start()
    for number in range(STEPS):
        x = x + delta(0, number, x)
    assert torch.equal(learners.x(0), x)


@every_row
def test_equals_synchronous_sgd(row: Row) -> None:
    learners, _ = virtual(row.spec, [STEPS] * WORKERS)
    close = torch.allclose(learners.x(0), ddp(start(), delta, WORKERS, STEPS), rtol=1e-12, atol=1e-12)
    # With one pull per worker, linear in x, only a delay or an interval can make a difference.
    assert close or not row.one_step_of_sgd


@every_row
def test_state_comes_back(row: Row) -> None:
    strategy = row.make()
    again = copy.deepcopy(strategy)
    again.load_state_dict(strategy.state_dict())
    assert again == strategy
    with pytest.raises(ValueError, match="keeps no state"):
        again.load_state_dict({"surprise": 1})


def test_gossip_meets_the_rate_asked_for() -> None:
    for rate in (0.5, 1.0, 2.0):
        learners, done = virtual(f"gossip:rate={rate}", [400] * 8, jitter=0.1, nodes=8, slow=1.0)
        per_step = sum(status.averages for status in done.statuses) / sum(status.step for status in done.statuses)
        assert rate * 0.8 < per_step < rate * 1.2
        assert consensus_distance(learners.replicas) < 1e-12


def test_lasgd_computes_while_the_average_is_in_flight() -> None:
    """On a wire that takes 5 steps per average nobody waits for it before the end, and the delay says so."""
    slow = Link(bytes_per_second=1e6, seconds=1e-4)
    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.1, link=slow)
    done = run(make_strategy("lasgd"), cluster, NoModel(4), [100] * 4, seed=0, nbytes=300_000)
    for status, trace in zip(done.statuses, done.traces, strict=True):
        assert status.delay == pytest.approx(5.0)  # 2 * 3/4 * 0.3 MB at 1 MB/s is 0.45 s
        assert all(event.start > 9.9 for event in trace.events if event.kind == "wait" and event.start > 1.0)
