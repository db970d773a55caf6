"""Every strategy of the table, in virtual and in real time."""

import json
import os
import sys
import time

import pytest
import torch
from quadratic import RATE, Pull, Quadratic, delta, start, target
from references import ddp
from table import ROWS, Row
from torch import Tensor
from workers import run_to_exit, run_workers

import offbeat
from offbeat.comm import Steps
from offbeat.layout import Layout
from offbeat.replica import consensus_distance
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE, Cluster
from offbeat.sim.comm import SimComm, World
from offbeat.sim.network import Network
from offbeat.sim.run import Run, run
from offbeat.sim.work import SimProcess
from offbeat.strategies import STRATEGIES, make_strategy
from offbeat.strategy import Strategy

WORKERS, STEPS = 4, 21
UNEVEN = [STEPS, STEPS - 7, STEPS - 1, STEPS + 3]

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec)


def virtual(
    spec: str, steps: list[int], *, jitter: float = 0.0, seed: int = 0, nodes: int = 2, slow: float = 1.5
) -> tuple[Quadratic, Run]:
    learners = Quadratic(len(steps))
    cluster = Cluster(layout=Layout.even(len(steps), min(nodes, len(steps))), jitter=jitter, stragglers={0: slow})
    return learners, run(make_strategy(spec), cluster, learners, steps, seed=seed)


def attached(specs: list[str], steps: list[int]) -> list[tuple[Tensor, Tensor]]:
    """In a real worker: x at the end with each strategy, one after another, and what this rank's steps moved."""
    rank, ends = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for spec in specs:
        model, moved = Pull(), torch.zeros_like(start())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(model, optimizer, spec, layout=Layout.even(WORKERS, 2)):
            for number in range(steps[rank]):
                moved += delta(rank, number, model.x.detach())
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
        ends.append((model.x.detach().clone(), moved))
    torch.distributed.destroy_process_group()
    return ends


Ends = dict[str, list[tuple[Tensor, Tensor]]]  # for every row, x at the end and what steps moved, on every rank


def real_ends(steps: list[int]) -> Ends:
    """One set of processes runs all rows."""
    specs = [row.spec for row in ROWS]
    ends = run_workers(attached, WORKERS, specs, steps)
    return {spec: [end[index] for end in ends] for index, spec in enumerate(specs)}


@pytest.fixture(scope="module")
def real() -> Ends:
    return real_ends([STEPS] * WORKERS)


@pytest.fixture(scope="module")
def real_uneven() -> Ends:
    return real_ends(UNEVEN)


def assert_mean_follows(row: Row, ends: list[tuple[Tensor, Tensor]]) -> None:
    if row.keeps_mean:
        xs, moved = (torch.stack(parts).mean(0) for parts in zip(*ends, strict=True))
        torch.testing.assert_close(xs, start() + moved, rtol=row.tolerance, atol=row.tolerance)


def test_every_strategy_has_a_row() -> None:
    assert {row.make().name for row in ROWS} == set(STRATEGIES)


@every_row
def test_virtual_matches_the_reference(row: Row) -> None:
    learners, _ = virtual(row.spec, [STEPS] * WORKERS)
    xs = [learners.x(rank) for rank in range(WORKERS)]
    assert_mean_follows(row, list(zip(xs, learners.moved, strict=True)))  # in any order of events nothing is lost
    for x in xs:
        expected = xs[0] if row.reference is None else row.reference(start(), delta, WORKERS, STEPS)
        torch.testing.assert_close(x, expected, rtol=row.tolerance, atol=row.tolerance)


@every_row
def test_real_matches_the_reference(row: Row, real: Ends) -> None:
    first, _ = real[row.spec][0]
    for x, _ in real[row.spec]:
        assert torch.equal(x, first), "ranks differ after the final average"
    assert_mean_follows(row, real[row.spec])
    if row.reference is not None:
        expected = row.reference(start(), delta, WORKERS, STEPS)
        torch.testing.assert_close(first, expected, rtol=row.tolerance, atol=row.tolerance)


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
    """The mean of the workers is the start plus the mean of all that their steps changed, also with uneven ends."""
    learners, _ = virtual(row.spec, steps, jitter=0.3)
    assert_mean_follows(row, [(learners.x(rank), learners.moved[rank]) for rank in range(len(steps))])
    assert consensus_distance(learners.replicas) < 1e-12


@every_row
def test_uneven_ends_agree_in_both_worlds(row: Row, real_uneven: Ends) -> None:
    xs = [x for x, _ in real_uneven[row.spec]]
    assert all(torch.equal(x, xs[0]) for x in xs)
    if row.same_in_both_worlds:
        learners, _ = virtual(row.spec, UNEVEN)
        tolerance = max(1e-10, row.tolerance)
        torch.testing.assert_close(xs[0], learners.x(0), rtol=tolerance, atol=tolerance)
    elif len(row.make().gradient_ranks(Layout.even(WORKERS, 2), 0)) == 1:  # else ranks step along with others, unseen
        assert_mean_follows(row, real_uneven[row.spec])


@every_row
def test_converges(row: Row) -> None:
    """Among equals, all end near the mean of the targets. (A straggler's last steps, alone, pull to its own.)"""
    goal = torch.stack([target(rank) for rank in range(WORKERS)]).mean(0)
    learners, _ = virtual(row.spec, [150] * WORKERS, jitter=0.1, slow=1.0)
    x = learners.x(0)
    assert (x - goal).norm() < 0.15 * (start() - goal).norm()


@pytest.mark.parametrize("row", [row for row in ROWS if row.plain_alone], ids=lambda row: row.spec)
def test_alone_it_is_the_plain_loop(row: Row) -> None:
    learners, _ = virtual(row.spec, [STEPS])
    x = start()
    for number in range(STEPS):
        x = x + delta(0, number, x)
    assert torch.equal(learners.x(0), x)


@pytest.mark.parametrize("row", [row for row in ROWS if row.one_step_of_sgd], ids=lambda row: row.spec)
def test_equals_synchronous_sgd(row: Row) -> None:
    """With one pull per worker, linear in x, only a delay or an interval can make a difference."""
    learners, _ = virtual(row.spec, [STEPS] * WORKERS)
    torch.testing.assert_close(learners.x(0), ddp(start(), delta, WORKERS, STEPS), rtol=1e-12, atol=1e-12)


@every_row
def test_a_state_of_something_else_is_refused(row: Row) -> None:
    with pytest.raises(ValueError, match=f"{row.make().name} keeps .*, but was given"):
        row.make().load_state_dict({"surprise": 1})


def drive(strategies: list[Strategy], numbers: range) -> list[dict[str, float]]:
    """Steps of 0.1 s with these numbers, in virtual time, and with these very instances; their reports."""
    clock, layout, learners = Clock(), Layout.even(len(strategies), 1), Quadratic(len(strategies))
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))

    def train(rank: int, strategy: Strategy) -> Steps:
        comm = SimComm(rank, world, 0)
        yield from strategy.start(learners.replicas[rank], comm)
        for number in numbers:
            yield comm.sleep(0.1)
            yield from strategy.after_step(number)
        yield from strategy.finish()

    for rank, strategy in enumerate(strategies):
        SimProcess(f"rank {rank}", train(rank, strategy), clock)
    clock.run()
    return [strategy.report() for strategy in strategies]


@every_row
def test_a_strategy_used_again_counts_anew(row: Row) -> None:
    strategies = [row.make() for _ in range(WORKERS)]
    assert drive(strategies, range(1, 30)) == drive(strategies, range(1, 30))


def test_gossip_keeps_its_rate_after_a_restart() -> None:
    reports = drive([make_strategy("gossip") for _ in range(8)], range(10_001, 10_301))
    assert 0.8 < sum(report["averages"] for report in reports) / (8 * 300) < 1.2


def lose_the_last(workers: int) -> None:
    """In a real worker: the last rank is gone without a word; the others say how they fared, as JSON."""
    rank, model, story = int(os.environ["RANK"]), Pull(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    try:
        with offbeat.attach(model, optimizer, "gossip:rate=2.0") as run:
            for number in range(100):
                time.sleep(0.01)
                if rank == workers - 1 and number == 10:
                    os._exit(9)
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
                if number == 50:
                    story["half"] = run.strategy.report()["averages"]
            story["end"], finished = run.strategy.report()["averages"], time.monotonic()
    except offbeat.LostPeer as lost:
        print(json.dumps({**story, "seconds": time.monotonic() - finished, "lost": str(lost)}), file=sys.stderr)


def test_gossip_trains_on_without_a_lost_peer_up_to_the_end() -> None:
    *others, dead = run_to_exit(lose_the_last, 3, 3)
    assert dead.status == 9
    for other in others:
        assert other.status == 0, other.stderr
        story = json.loads(other.stderr.splitlines()[-1])
        assert story["end"] > story["half"] + 5, "the survivors did not go on exchanging"
        assert story["lost"].startswith("a rank is lost: average over ranks [0, 1, 2] failed: ")
        assert story["seconds"] < 5


def test_gossip_meets_the_rate_asked_for() -> None:
    for rate in (0.5, 1.0, 2.0):
        learners, done = virtual(f"gossip:rate={rate}", [400] * 8, jitter=0.1, nodes=8, slow=1.0)
        per_step = sum(status.averages for status in done.statuses) / sum(status.step for status in done.statuses)
        assert rate * 0.8 < per_step < rate * 1.2
        assert consensus_distance(learners.replicas) < 1e-12
