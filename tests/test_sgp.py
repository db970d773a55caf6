"""SGP: what it equals, what it keeps, whom it waits for, and how it ends."""

import json
import os
import sys
import time
from typing import Any

import pytest
import references
import torch
from quadratic import RATE, Pull, Quadratic, delta, start
from test_strategies import virtual
from torch import Tensor
from workers import run_to_exit, run_workers

import offbeat
from offbeat.comm import Steps
from offbeat.errors import BadInput, OffbeatError
from offbeat.layout import Layout
from offbeat.replica import consensus_distance
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE, Cluster
from offbeat.sim.comm import SimComm, World
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link, Network
from offbeat.sim.run import run
from offbeat.sim.work import SimProcess
from offbeat.strategies import make_strategy
from offbeat.strategies.sgp import SGP, Share

STEPS = 13
REAL_STEPS = [[9, 9, 9], [12, 3, 7]]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 6, 8, 9])
@pytest.mark.parametrize("overlap", [0, 1])
def test_matches_the_reference_for_any_number_of_workers(workers: int, overlap: int) -> None:
    learners, _ = virtual(f"sgp:overlap={overlap}", [STEPS] * workers, jitter=0.3)
    expected = references.sgp(overlap)(start(), delta, workers, STEPS)
    torch.testing.assert_close(learners.x(0), expected, rtol=1e-12, atol=1e-12)


def test_two_that_wait_are_synchronous_sgd() -> None:
    learners, _ = virtual("sgp:overlap=0", [STEPS, STEPS])
    expected = references.ddp(start(), delta, 2, STEPS)
    torch.testing.assert_close(learners.x(0), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "steps", [[0, 12], [4, 0, 0], [1, 30, 2], [7, 7, 7, 7, 8], [0] * 6, [3, 1, 4, 1, 5, 9]], ids=str
)
@pytest.mark.parametrize("overlap", [0, 1])
def test_any_ends_come_together(steps: list[int], overlap: int) -> None:
    learners, done = virtual(f"sgp:overlap={overlap}", steps, jitter=0.3)
    assert consensus_distance(learners.replicas) < 1e-12
    expected = start() + torch.stack(learners.moved).mean(0)
    torch.testing.assert_close(learners.x(0), expected, rtol=1e-12, atol=1e-12)
    rounds, cycle = {status.averages for status in done.statuses}, (len(steps) - 1).bit_length()
    assert len(rounds) == 1, "all ranks stop after the same round"
    assert max(steps) <= rounds.pop() < max(steps) + 2 * cycle + 1


class Inbox:
    """A comm into which a message was put by hand."""

    def __init__(self, message: list[float]) -> None:
        self.message, self.sent = torch.tensor(message, dtype=torch.float64), torch.empty(0)

    def shift(self, x: Tensor, to: int, source: int, out: Tensor) -> None:
        self.sent = x.clone()
        out.copy_(self.message)


def test_push_sum_divides_by_the_weight() -> None:
    """Where less comes than goes, z = x / w is still a mean: a graph could give some ranks less than others."""
    z = torch.tensor([3.0, -1.0], dtype=torch.float64)
    share = Share(z)
    share.begin_cycle(False)
    inbox = Inbox([0.5, 0.25, 0.25, 0.0])  # a quarter of a rank at (2, 1), which does not train
    share.send(inbox, 1, 2)  # type: ignore[arg-type]
    assert inbox.sent.tolist() == [1.5, -0.5, 0.5, 0.0]
    z += torch.tensor([0.3, 0.6], dtype=torch.float64)  # a step
    share.merge()
    torch.testing.assert_close(z, torch.tensor([(1.5 + 0.3 + 0.5) / 0.75, (-0.5 + 0.6 + 0.25) / 0.75]).double())
    assert not share.some_train
    x, second = z * 0.75, Inbox([8.0, 8.0, 1.625, 1.0])
    share.send(second, 1, 2)  # type: ignore[arg-type]
    torch.testing.assert_close(second.sent, torch.cat([x / 2, torch.tensor([0.375, 0.0]).double()]))
    share.merge()
    torch.testing.assert_close(z, (x / 2 + 8.0) / 2)
    assert share.some_train


def test_sums_are_kept_in_every_moment() -> None:
    """x with what is in flight is the start plus all deltas; the weights with those in flight are one per rank."""
    workers, learners = 5, Quadratic(5)
    clock, layout = Clock(), Layout.even(workers, 1)
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))
    strategies = [SGP() for _ in range(workers)]

    def train(rank: int) -> Steps:
        yield from strategies[rank].start(learners.replicas[rank], SimComm(rank, world, 0))
        for number in range(9):
            learners.begin(rank, number, alone=True)
            learners.end(rank)
            yield from strategies[rank].after_step(number + 1)
            assert all(share._weight == 1 for share in strategies[rank]._shares)
            halves = torch.cat([share._kept[:-2] for share in strategies[rank]._shares])
            torch.testing.assert_close(2 * halves, learners.x(rank))  # as much is under way to the next
        sums.append(learners.x(rank))
        yield from strategies[rank].finish()

    sums: list[Tensor] = []
    for rank in range(workers):
        SimProcess(f"rank {rank}", train(rank), clock)
    clock.run()
    total = torch.stack(sums).sum(0)
    torch.testing.assert_close(total, workers * start() + torch.stack(learners.moved).sum(0), rtol=1e-12, atol=1e-12)


def test_computes_while_the_message_is_in_flight() -> None:
    """A wire that takes 0.8 of a step for x: the overlapped form never waits, the other always."""
    link = Link(bytes_per_second=1e6, seconds=1e-4)
    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.1, link=link)
    waits = []
    for overlap in (0, 1):
        done = run(SGP(overlap=overlap), cluster, NoModel(4), [50] * 4, seed=0, nbytes=80_000)
        trace = done.traces[0]
        waited = [event for event in trace.events if event.kind == "wait" and event.name == "shift"]
        waits.append(sum(event.seconds for event in waited if event.start < done.seconds - 1.0))
        shifts = [event for event in trace.events if event.name == "shift" and event.kind == "communicate"]
        assert {event.peers for event in shifts} == {(1, 3), (2, 2)}
        assert len(shifts) == done.statuses[0].averages
        assert all(80_000 <= event.nbytes < 85_000 for event in shifts)
    assert waits[0] > 40 * 0.08
    assert waits[1] == 0


def test_a_late_message_is_waited_for() -> None:
    """A straggler holds up the one that it sends to, and in the long run all: rounds stay in step."""
    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.1, stragglers={2: 3.0})
    done = run(SGP(), cluster, NoModel(4), [30] * 4, seed=0)
    assert all(trace.seconds["wait"] > 4.0 for rank, trace in enumerate(done.traces) if rank != 2)


def test_virtual_shifts_must_be_alike() -> None:
    """In real time gloo cannot tell."""
    clock, layout = Clock(), Layout.even(2, 1)
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))
    SimComm(1, world, 0).shift(torch.zeros(5), 0, 0)
    with pytest.raises(OffbeatError, match="rank 0 shifts 16 bytes of float32 and rank 1 waits for 20 bytes of"):
        SimComm(0, world, 0).shift(torch.zeros(4), 1, 1)


def attached(runs: list[list[int]]) -> list[Tensor]:
    """In a real worker: x after each of the runs, with both forms."""
    rank, xs = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for steps in runs:
        for overlap in (0, 1):
            model = Pull()
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            with offbeat.attach(model, optimizer, SGP(overlap=overlap)):
                for number in range(steps[rank]):
                    optimizer.zero_grad()
                    model(rank, number).backward()
                    optimizer.step()
            xs.append(model.x.detach().clone())
    torch.distributed.destroy_process_group()
    return xs


@pytest.mark.parametrize("workers", [2, 3])
def test_virtual_equals_real(workers: int) -> None:
    runs = [steps[:workers] for steps in REAL_STEPS]
    first, *others = run_workers(attached, workers, runs)
    for index, (steps, overlap) in enumerate((steps, overlap) for steps in runs for overlap in (0, 1)):
        learners, _ = virtual(f"sgp:overlap={overlap}", steps)
        torch.testing.assert_close(first[index], learners.x(0), rtol=1e-12, atol=1e-12)
        assert all(torch.equal(first[index], other[index]) for other in others)


def lose_the_last(workers: int) -> None:
    """In a real worker: the last rank is gone without a word; the others say what they saw, as JSON."""
    rank, model, began = int(os.environ["RANK"]), Pull(), time.monotonic()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    try:
        with offbeat.attach(model, optimizer, "sgp"):
            began = time.monotonic()
            for number in range(1000):
                time.sleep(0.01)
                if rank == workers - 1 and number == 10:
                    os._exit(9)
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
    except offbeat.LostPeer as lost:
        story = {"lost": str(lost), "peer": lost.peer, "seconds": time.monotonic() - began}
        print(json.dumps(story), file=sys.stderr)


def test_a_lost_peer_is_named() -> None:
    *others, dead = run_to_exit(lose_the_last, 3, 3)
    assert dead.status == 9
    for rank, other in enumerate(others):
        assert other.status == 0, other.stderr
        story: dict[str, Any] = json.loads(other.stderr.splitlines()[-1])
        assert story["peer"] in {0, 1, 2} - {rank}
        assert story["lost"].startswith(f"rank {story['peer']} is lost: shift failed: ")
        assert story["seconds"] < 5


@pytest.mark.parametrize("overlap", [2, -1])
def test_bad_input(overlap: int) -> None:
    with pytest.raises(BadInput, match=f"overlap={overlap} does not fit: "):
        SGP(overlap=overlap)


def test_by_name() -> None:
    assert make_strategy("sgp:overlap=0") == SGP(overlap=0)
