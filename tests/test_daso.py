"""DASO: phases, the controller, nodes of unequal size, and what others got wrong. (More in the table.)"""

import itertools
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from commands import run_here
from quadratic import CUT, RATE, Pull, Quadratic, delta, start
from torch import Tensor, nn
from workers import run_workers

import offbeat
from offbeat.comm import Steps
from offbeat.layout import Layout
from offbeat.replica import consensus_distance
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE, Cluster
from offbeat.sim.comm import SimComm, World
from offbeat.sim.learners import NoModel, OneByOne
from offbeat.sim.network import Link, Network
from offbeat.sim.run import Run, run
from offbeat.sim.work import SimProcess
from offbeat.strategies import make_strategy
from offbeat.strategies.daso import DASO, Cycle
from offbeat.strategy import Plan
from offbeat.trace import Event
from offbeat.train.shards import Shard
from offbeat.train.task import Task
from offbeat.train.tasks import load_task

CONSTANT = "daso:warmup_epochs=0,cooldown_epochs=0"  # where no plan is given


@dataclass(frozen=True)
class Case:
    """A whole run: epochs of 5 steps, in which the loss falls at first and then stands still."""

    node_of: tuple[int, ...]
    b_max: int
    wait: int | None = None
    warmup: int = 2  # epochs, here and below
    cooldown: int = 3
    epochs: int = 16
    epoch: int = 5  # steps
    patience: int = 2
    fewer: tuple[int, ...] = ()  # steps that a rank has less than others

    @property
    def steps(self) -> list[int]:
        fewer = (*self.fewer, *[0] * len(self.node_of))
        return [self.epochs * self.epoch - fewer[rank] for rank in range(len(self.node_of))]

    @property
    def plan(self) -> Plan:
        return Plan(self.epochs * self.epoch, self.epoch)

    @property
    def layout(self) -> Layout:
        return Layout(self.node_of)

    def strategy(self) -> DASO:
        return DASO(
            b_max=self.b_max, wait=self.wait, warmup_epochs=self.warmup, cooldown_epochs=self.cooldown,
            patience=self.patience,
        )  # fmt: skip

    def loss(self, rank: int, number: int) -> float:
        """Of a step, counted from 0. A rank alone would decide otherwise: only the mean of all is as `mean_loss`."""
        workers = len(self.node_of)
        return self.mean_loss(number // self.epoch) + (rank - (workers - 1) / 2) * (number // self.epoch) ** 2

    def mean_loss(self, epoch: int) -> float:
        return max(1.0, 2.0 - epoch / 5)


CASES = {
    "nodes of two": Case((0, 0, 1, 1), b_max=4),
    "unequal nodes": Case((0, 0, 0, 1), b_max=4),
    "nodes interleaved": Case((1, 0, 1, 0), b_max=5, wait=4, patience=1),
    "single ranks": Case((0, 1, 2), b_max=2, wait=2, warmup=0, cooldown=0),
    "blocking": Case((0, 0, 1, 1), b_max=4, warmup=4, cooldown=1, epochs=5),
}
UNEVEN = {
    "one node ends early": Case((0, 0, 1, 1), b_max=4, fewer=(7, 8)),
    "in another epoch": Case((0, 0, 0, 1), b_max=4, wait=3, warmup=0, cooldown=0, fewer=(0, 2, 1, 12)),
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_uneven = pytest.mark.parametrize("case", UNEVEN.values(), ids=UNEVEN.keys())


def written_out(case: Case) -> tuple[Tensor, list[str]]:
    """x at the end, and what was decided."""
    layout, nodes, steps = case.layout, case.layout.nodes, case.plan.steps
    warmup, cycling_ends = case.warmup * case.epoch, steps - case.cooldown * case.epoch
    every, wait = first = (case.b_max, max(1, case.b_max // 4) if case.wait is None else case.wait)
    xs, total = [start() for _ in range(nodes)], torch.zeros_like(start())
    sent_at, wait_when_sent, in_flight = 0, 0, False
    epochs_heard, best, bad, decided, was_blocking = 0, math.inf, 0, [], None
    for number in range(1, steps + 1):
        for node, x in enumerate(xs):
            xs[node] = x + torch.stack([delta(rank, number - 1, x) for rank in layout.on(node)]).mean(0)
        blocking = not warmup < number <= cycling_ends
        if blocking != was_blocking:
            decided.append("blocking" if blocking else f"B={every} W={wait}")
            was_blocking = blocking
        merged = False
        if in_flight and (blocking or number == sent_at + wait_when_sent):
            late, in_flight, merged = number - sent_at, False, True
            xs = [(2 * late * x + total) / (2 * late + nodes) for x in xs]
        if blocking:
            xs, sent_at, merged = [torch.stack(xs).mean(0)] * nodes, number, True
        while merged and (epochs_heard + 1) * case.epoch <= sent_at:
            loss = case.mean_loss(epochs_heard)
            epochs_heard += 1
            if epochs_heard * case.epoch <= warmup:
                best = min(best, loss)
            elif not blocking:
                improved = math.isinf(best) or (best - loss) / best > 0.05
                best, bad = (loss, 0) if improved else (best, bad + 1)
                if bad == case.patience:
                    bad = 0
                    every, wait = first if every == 1 else (every // 2, max(1, wait // 2))
                    decided.append(f"B={every} W={wait}")
        if not blocking and not in_flight and number - sent_at >= every:
            total, sent_at, wait_when_sent, in_flight = torch.stack(xs).sum(0), number, wait, True
    if in_flight:
        late = steps - sent_at
        xs = [(2 * late * x + total) / (2 * late + nodes) for x in xs]
    return torch.stack([xs[node] for node in case.node_of]).mean(0), decided


class Told(Quadratic):
    """With the losses of a case instead of its own."""

    def __init__(self, case: Case) -> None:
        super().__init__(len(case.node_of))
        self._loss = case.loss

    def end(self, rank: int) -> float:
        number, _ = self._under_way[rank]
        super().end(rank)
        return self._loss(rank, number)


def virtual(case: Case) -> tuple[Quadratic, Run]:
    learners = Told(case)
    cluster = Cluster(layout=case.layout, jitter=0.3, stragglers={0: 1.5})
    return learners, run(case.strategy(), cluster, learners, case.steps, seed=0, plan=case.plan)


def marks(done: Run) -> list[list[str]]:
    return [[event.name for event in trace.events if event.kind == "mark"] for trace in done.traces]


def attached(cases: list[Case]) -> list[tuple[Tensor, list[str], dict[str, float]]]:
    """In a real worker: x at the end, what was decided and the report, for every case with so many ranks."""
    rank, ends = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for case in cases:
        model = Pull()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(
            model, optimizer, case.strategy(), layout=case.layout, epochs=case.epochs, steps_per_epoch=case.epoch
        ) as training:
            for number in range(case.steps[rank]):
                optimizer.zero_grad()
                model(rank, number).backward()
                training.observe(torch.tensor(case.loss(rank, number), dtype=torch.float64, requires_grad=True))
                optimizer.step()
        decided = [event.name for event in training.trace.events if event.kind == "mark"]
        ends.append((model.x.detach().clone(), decided, training.strategy.report()))
    torch.distributed.destroy_process_group()
    return ends


Ends = dict[Case, list[tuple[Tensor, list[str], dict[str, float]]]]


@pytest.fixture(scope="module")
def real() -> Ends:
    ends: Ends = {}
    for workers in (3, 4):
        cases = [case for case in (*CASES.values(), *UNEVEN.values()) if len(case.node_of) == workers]
        for case, of_ranks in zip(cases, zip(*run_workers(attached, workers, cases), strict=True), strict=True):
            ends[case] = list(of_ranks)
    return ends


@every_case
def test_the_whole_of_it_is_as_written_out(case: Case, real: Ends) -> None:
    """Phases, merges with the staleness that was, and the controller; every rank decides the same, in both worlds."""
    x, decided = written_out(case)
    learners, done = virtual(case)
    assert marks(done) == [decided] * len(case.node_of)
    for rank, (real_x, real_decided, _) in enumerate(real[case]):
        torch.testing.assert_close(learners.x(rank), x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(real_x, x, rtol=1e-12, atol=1e-12)
        assert real_decided == decided


def test_a_plateau_halves_and_one_at_1_starts_over() -> None:
    _, decided = written_out(CASES["nodes of two"])
    assert decided == ["blocking", "B=4 W=1", "B=2 W=1", "B=1 W=1", "B=4 W=1", "blocking"]
    assert set(written_out(CASES["nodes interleaved"])[1]) >= {"B=5 W=4", "B=2 W=2", "B=1 W=1"}


@every_uneven
def test_nodes_that_end_early_take_part_to_the_end(case: Case, real: Ends) -> None:
    learners, done = virtual(case)
    assert consensus_distance(learners.replicas) < 1e-12
    decided = max(marks(done), key=len)  # of a rank that trained to the end
    assert all(each == decided[: len(each)] for each in marks(done))
    assert len({status.averages for status in done.statuses}) == 1
    for x, real_decided, report in real[case]:
        torch.testing.assert_close(x, learners.x(0), rtol=1e-10, atol=1e-10)
        assert real_decided == decided[: len(real_decided)]
        assert report["averages"] == done.statuses[0].averages


@pytest.mark.parametrize("kind", [Case((0, 0, 1, 1), b_max=4), Case((0, 1, 1), b_max=3, wait=3)], ids=["even", "odd"])
@pytest.mark.parametrize("ends", [*itertools.product((0, 1, 6), (0, 3))])
def test_no_ends_hang(kind: Case, ends: tuple[int, int]) -> None:
    for warmup in (0, 2):
        case = replace(kind, warmup=warmup, fewer=(ends[0], ends[1], 9))
        learners, _ = virtual(case)
        assert consensus_distance(learners.replicas) < 1e-12


# B, W and S.


def averages(done: Run, rank: int = 0) -> list[Event]:
    return [event for event in done.traces[rank].events if (event.kind, event.name) == ("communicate", "average")]


@pytest.mark.parametrize(("b_max", "warmup"), [(4, 0), (7, 0), (3, 2), (10, 1)])
def test_b_max_is_the_b_that_is_used_from_the_first_cycle_on(b_max: int, warmup: int) -> None:
    strategy = DASO(b_max=b_max, warmup_epochs=warmup, cooldown_epochs=0, patience=100)
    cluster = Cluster(layout=Layout.even(3, 3), step_seconds=1.0)
    done = run(strategy, cluster, NoModel(3), [60] * 3, seed=0, plan=Plan(60, 10))
    blocking = warmup * 10
    starts = [round(event.start) for event in averages(done)]
    expected = [*range(1, blocking + 1), *range(blocking + b_max, 61, b_max)]
    assert starts[: len(expected)] == expected
    assert done.statuses[0].notes["every"] == b_max


def test_the_merge_uses_the_steps_that_have_really_gone_by() -> None:
    """Cool-down begins when a sum has been in flight for 2 of its 3 steps. By hand, two nodes of a single rank."""
    strategy = DASO(b_max=4, wait=3, warmup_epochs=0, cooldown_epochs=1)
    learners = Quadratic(2)
    done = run(strategy, Cluster(layout=Layout.even(2, 2)), learners, [10, 10], seed=0, plan=Plan(10, 5))
    xs, total = [start(), start()], torch.zeros_like(start())
    for number in range(1, 11):
        xs = [x + delta(rank, number - 1, x) for rank, x in enumerate(xs)]
        if number > 5:  # where all take the mean, the merge before it, with S = 2, changes that of the two
            mean = (xs[0] + xs[1]) / 2
            xs = [(4 * mean + total) / 6] * 2 if number == 6 else [mean] * 2
        if number == 4:
            total = xs[0] + xs[1]
    torch.testing.assert_close(learners.x(0), xs[0], rtol=1e-12, atol=1e-12)
    assert done.statuses[0].averages == 1 + 5
    assert done.statuses[0].delay == pytest.approx(2 / 6)


def test_it_waits_only_where_the_average_is_not_there_in_time() -> None:
    """2 * 3/4 * 0.3 MB at 1 MB/s is 0.45 s, or 4.5 steps."""
    slow = Link(bytes_per_second=1e6, seconds=1e-4)
    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.1, link=slow)
    waited = []
    for wait in (5, 1):
        done = run(
            make_strategy(f"{CONSTANT},b_max=8,wait={wait}"), cluster, NoModel(4), [80] * 4, seed=0, nbytes=300_000
        )
        first = averages(done)[0].start
        events = (event for event in done.traces[0].events if event.kind == "wait" and event.start >= first)
        waited.append([event.seconds for event in events][:8])
        assert done.statuses[0].delay == pytest.approx(wait, abs=0.5)
    patient, impatient = waited
    assert len(patient) == 3  # at the end: for what is in flight, for the last synchronisation, for the exact average
    assert impatient == pytest.approx([0.35] * 8, abs=0.02)


def test_the_group_rotates_over_the_ranks_of_every_node() -> None:
    cluster = Cluster(layout=Layout((0, 0, 0, 1, 1, 2)))
    done = run(make_strategy(f"{CONSTANT},b_max=1,wait=0"), cluster, NoModel(6), [6] * 6, seed=0)
    met = [{event.peers for event in averages(done, rank) if len(event.peers) == 3} for rank in range(6)]
    turns = [(0, 3, 5), (1, 4, 5), (2, 3, 5)]
    assert met == [{group for group in turns if rank in group} for rank in range(6)]


# What it equals.


def test_one_node_is_ddp_exactly() -> None:
    layout, ends = Layout.even(4, 1), []
    for spec in ("ddp", "daso", CONSTANT):
        learners = Quadratic(4)
        done = run(make_strategy(spec), Cluster(layout=layout), learners, [20, 20, 17, 20], seed=0, plan=Plan(20, 5))
        ends.append([learners.x(rank) for rank in range(4)])
        assert done.statuses[0].averages == 0
    for other in ends[1:]:
        assert all(torch.equal(x, y) for x, y in zip(ends[0], other, strict=True))


def regression() -> Task:
    """Digits, in double precision, with all that SGD has."""

    def optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)  # type: ignore[arg-type]

    task = load_task("digits", seed=1)
    inputs, targets = task.train.batch(torch.arange(len(task.train)))
    samples = offbeat.Samples(inputs=inputs.double(), targets=targets)
    return replace(task, model=linear, optimizer=optimizer, train=samples)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()


def shard(task: Task, rank: int) -> Shard:
    return Shard(samples=len(task.train), rank=rank, workers=4, batch=8, seed=1)


def on_the_global_batch(steps: int) -> Tensor:
    task = regression()
    torch.manual_seed(1)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    for step in range(steps):
        batches = [task.train.batch(shard(task, rank).indices(step)) for rank in range(4)]
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def train_for_real(spec: str, steps: int) -> Tensor:
    rank, task = int(os.environ["RANK"]), regression()
    torch.manual_seed(1)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    with offbeat.attach(model, optimizer, spec, layout=Layout.even(4, 2)):
        for step in range(steps):
            inputs, targets = task.train.batch(shard(task, rank).indices(step))
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_b_1_and_w_0_is_synchronous_sgd_with_momentum_and_weight_decay() -> None:
    spec, steps, task = f"{CONSTANT},b_max=1,wait=0", 30, regression()
    expected = on_the_global_batch(steps)
    learners = OneByOne(task, [shard(task, rank) for rank in range(4)], seed=1)
    run(make_strategy(spec), Cluster(layout=Layout.even(4, 2)), learners, [steps] * 4, seed=1)
    virtual_end = nn.utils.parameters_to_vector(learners.mean_model().parameters()).detach()
    torch.testing.assert_close(virtual_end, expected, rtol=1e-9, atol=1e-12)
    for x in run_workers(train_for_real, 4, spec, steps):
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-12)


# What travels.


class Tied(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.ear, self.mouth, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.mouth.weight = self.ear.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad = False
            parameter.fill_(rank)  # what does not travel stays different

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mouth(self.frozen(self.ear(x)))
        return out


def train_tied(specs: list[str], rate: float) -> list[tuple[Tensor, Tensor, Tensor, bool]]:
    """In a real worker: the weights before and after, the frozen ones, and whether the tied are still tied."""
    rank, ends = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for spec in specs:
        torch.manual_seed(0)
        model = Tied(rank)
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=rate)
        before = nn.utils.parameters_to_vector([*model.ear.parameters(), model.mouth.bias]).detach().clone()
        with offbeat.attach(model, optimizer, spec, layout=Layout.even(4, 2), epochs=8, steps_per_epoch=3) as training:
            for _ in range(24):
                optimizer.zero_grad()
                loss = model(torch.randn(4, 8)).square().mean()
                loss.backward()
                training.observe(loss)
                optimizer.step()
        after = nn.utils.parameters_to_vector([*model.ear.parameters(), model.mouth.bias]).detach()
        frozen = nn.utils.parameters_to_vector(model.frozen.parameters()).detach()
        ends.append((before, after, frozen, model.ear.weight is model.mouth.weight))
    torch.distributed.destroy_process_group()
    return ends


WIRES = ["daso:b_max=3", "daso:b_max=3,wire_dtype=bfloat16", "daso:b_max=3,wait=3,wire_dtype=float16"]


def test_a_narrow_wire_never_rounds_the_weights() -> None:
    """With a learning rate of 0 nothing moves, to the last bit, whatever the phase."""
    for ends in run_workers(train_tied, 4, WIRES, 0.0):
        for before, after, _, _ in ends:
            assert torch.equal(before, after)


def test_frozen_weights_stay_and_tied_ones_stay_tied() -> None:
    of_ranks = run_workers(train_tied, 4, WIRES, 0.01)
    for rank, ends in enumerate(of_ranks):
        for index, (before, after, frozen, tied) in enumerate(ends):
            assert torch.equal(frozen, torch.full_like(frozen, rank))
            assert tied
            assert not torch.equal(before, after)
            assert torch.equal(after, of_ranks[0][index][1])


def test_half_the_bytes_between_nodes() -> None:
    sent = []
    for wire in ("none", "bfloat16"):
        strategy = make_strategy(f"{CONSTANT},wire_dtype={wire}")
        done = run(strategy, Cluster(layout=Layout.even(2, 2)), NoModel(2), [40] * 2, seed=0)
        sent.append(sum(event.nbytes for event in averages(done)[:-1]))  # the last is the exact one, at the end
    assert sent[1] == pytest.approx(sent[0] / 2, rel=1e-2)


# A checkpoint.


class Saved(dict[int, tuple[Tensor, dict[str, object]]]):
    """Of every rank: x and the strategy's state."""


def drive(
    case: Case, numbers: range, saved: Saved | None = None, save_after: int = 0
) -> tuple[Quadratic, dict[int, list[dict[str, float]]], Saved]:
    """Train these steps in virtual time, from `saved` on if given; x, the report after every step, what was saved."""
    clock, layout, learners, strategies = Clock(), case.layout, Quadratic(len(case.node_of)), case.strategy
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))
    reports: dict[int, list[dict[str, float]]] = {rank: [] for rank in layout.ranks}
    kept = Saved()

    def train(rank: int) -> Steps:
        strategy, replica = strategies(), learners.replicas[rank]
        strategy.prepare(case.plan)
        if saved is not None:
            replica.flats[0].copy_(saved[rank][0][:CUT])
            replica.flats[1].copy_(saved[rank][0][CUT:])
        comm = SimComm(rank, world, 0)
        yield from strategy.start(replica, comm)
        if saved is not None:
            strategy.load_state_dict(saved[rank][1])
        for number in numbers:
            yield comm.sleep(0.1)
            change = delta(layout.node_of[rank], number, learners.x(rank))  # the same on all ranks of a node
            replica.flats[0].add_(change[:CUT])
            replica.flats[1].add_(change[CUT:])
            strategy.observe(case.loss(rank, number - 1))
            yield from strategy.after_step(number)
            if number == save_after:
                yield from strategy.finish()
                kept[rank] = (learners.x(rank), json.loads(json.dumps(strategy.state_dict())))
            report = strategy.report()
            reports[rank].append({name: report[name] for name in ("every", "wait")})
        yield from strategy.finish()

    for rank in layout.ranks:
        SimProcess(f"rank {rank}", train(rank), clock)
    clock.run()
    return learners, reports, kept


@pytest.mark.parametrize("save_after", [3, 10, 23, 25, 37, 61])
def test_a_checkpoint_goes_on_as_if_nothing_had_been(save_after: int) -> None:
    case = CASES["unequal nodes"]
    steps = range(1, case.plan.steps + 1)
    learners, reports, saved = drive(case, steps, save_after=save_after)
    resumed, reports_after, _ = drive(case, steps[save_after:], saved)
    for rank in range(4):
        assert reports[rank][save_after:] == reports_after[rank]
        assert torch.equal(learners.x(rank), resumed.x(rank))
    assert {report["every"] for report in reports[0]} == {1, 2, 4}


def test_an_interruption_changes_no_decision() -> None:
    case = CASES["unequal nodes"]
    steps = range(1, case.plan.steps + 1)
    _, reports, _ = drive(case, steps)
    _, interrupted, _ = drive(case, steps, save_after=23)  # in the middle of an epoch
    changes = [[i for i, (a, b) in enumerate(itertools.pairwise(r[0])) if a != b] for r in (reports, interrupted)]
    assert len(changes[0]) == len(changes[1])
    assert all(abs(a - b) <= case.b_max for a, b in zip(*changes, strict=True))


# Used again, in metrics, and refused.


def test_a_strategy_used_again_starts_over() -> None:
    case, strategy = CASES["nodes of two"], CASES["nodes of two"].strategy()
    cluster = Cluster(layout=case.layout)
    runs = [run(strategy, cluster, Told(case), case.steps, seed=0, plan=case.plan) for _ in range(2)]
    assert marks(runs[0]) == marks(runs[1])
    assert runs[0].statuses == runs[1].statuses


def test_losses_that_nobody_tells_change_nothing() -> None:
    done = run(DASO(), Cluster(layout=Layout.even(2, 2)), NoModel(2), [200] * 2, seed=0, plan=Plan(200, 10))
    assert marks(done) == [["blocking", "B=4 W=1", "blocking"]] * 2
    assert "loss_of_epoch" not in done.statuses[0].notes


@pytest.mark.parametrize(
    ("losses", "every"),
    [([3, 2, 1, 0.5], 4), ([1, 1, 1], 2), ([1, 0.97, 0.96], 2), ([1, 1.0, 0.9, 0.9], 4), ([-1, -2, -3, -4], 4),
     ([-2, -1, -1], 2), ([0, 0, 0], 2), ([1] * 5, 1), ([1] * 7, 4)],
)  # fmt: skip
def test_what_a_plateau_is(losses: list[float], every: int) -> None:
    cycle = Cycle(4, 1)
    for loss in losses:
        cycle.judge(loss, start=(4, 1), threshold=0.05, patience=2)
    assert cycle.every == every


@pytest.mark.parametrize("epochs", [1, 2, 3, 40])
def test_by_default_a_run_of_any_length_has_all_phases(epochs: int) -> None:
    done = run(
        DASO(), Cluster(layout=Layout.even(2, 2)), NoModel(2), [10 * epochs] * 2, seed=0, plan=Plan(10 * epochs, 10)
    )
    assert marks(done)[0] == ["blocking", "B=4 W=1", "blocking"]
    starts = [round(event.start * 10) for event in averages(done)]
    warmup = next(index for index, gap in enumerate(itertools.pairwise(starts), 1) if gap[1] - gap[0] > 1)
    assert warmup == min(40, 10 * epochs // 4)


def test_the_command_line_runs_it_and_the_metrics_tell(tmp_path: Path) -> None:
    run_here(["simulate", "--strategy", "daso", "--epochs", "6", "--quiet", "--out", str(tmp_path)], tmp_path)
    statuses = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {status["notes"]["every"] for status in statuses} >= {1, 4}
    assert any(0 < status["notes"].get("loss_of_epoch", 0) < 10 for status in statuses)


@pytest.mark.parametrize(
    ("make", "story"),
    [
        (lambda: DASO(b_max=0), "b_max=0 does not fit: b_max must be at least 1"),
        (lambda: DASO(threshold=-0.1), "threshold=-0.1 does not fit: threshold must be at least 0"),
        (lambda: DASO(threshold=1.0), "threshold=1.0 does not fit: .* below 1, such as 0.05"),
        (lambda: DASO(patience=0), "patience=0 does not fit: patience must be at least 1"),
        (lambda: DASO(warmup_epochs=-1), "warmup_epochs=-1 does not fit"),
        (lambda: DASO(wait=5), "wait=5 does not fit b_max=4: .* wait must be at most 4"),
        (lambda: DASO(wire_dtype="int8"), "int8"),
    ],
)
def test_bad_options(make: Callable[[], DASO], story: str) -> None:
    with pytest.raises(offbeat.BadInput, match=story):
        make()


@pytest.mark.parametrize(
    ("strategy", "plan", "story"),
    [
        (DASO(), None, "how long the run will be: give attach.. epochs and steps_per_epoch, or set warmup_epochs=0"),
        (DASO(warmup_epochs=0), None, "how long the run will be"),
        (DASO(warmup_epochs=3, cooldown_epochs=2), Plan(40, 10),
         "warmup_epochs=3 and cooldown_epochs=2 is more than the 4 epochs of this run: train longer, or give fewer"),
        (DASO(cooldown_epochs=5), Plan(40, 10), "^cooldown_epochs=5 is more than the 4 epochs of this run"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nodes", [1, 2])
def test_phases_that_do_not_fit(strategy: DASO, plan: Plan | None, story: str, nodes: int) -> None:
    with pytest.raises(offbeat.BadInput, match=story):
        run(strategy, Cluster(layout=Layout.even(2, nodes)), NoModel(2), [40] * 2, seed=0, plan=plan)


def test_one_phase_given_leaves_the_rest_to_the_other() -> None:
    strategy = DASO(warmup_epochs=4)
    done = run(strategy, Cluster(layout=Layout.even(2, 2)), NoModel(2), [40] * 2, seed=0, plan=Plan(40, 10))
    assert marks(done)[0] == ["blocking"]
