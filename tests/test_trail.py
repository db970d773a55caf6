"""The mean over steps: what it is, that it changes nothing in the training, and that it is what is handed in."""

import copy
import os
import time
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quadratic import RATE, Pull, Quadratic, delta, start
from table import ROWS
from torch import Tensor, nn
from workers import run_workers

import offbeat
from offbeat.compare.contest import Contest, run_contest
from offbeat.compare.snapshots import flat_of, load_flat
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.report.meter import Meter
from offbeat.sim.cluster import Cluster
from offbeat.sim.curve import Curve
from offbeat.sim.learners import NoModel, OneByOne
from offbeat.sim.run import run
from offbeat.strategies import make_strategy
from offbeat.trail import Trail
from offbeat.train.shards import Shard
from offbeat.train.task import evaluate
from offbeat.train.tasks import load_task

WORKERS, STEPS, SHARE = 4, 17, 0.3
SAME_IN_BOTH_WORLDS = [  # the last of each strategy
    *{row.make().name: row.spec for row in ROWS if row.same_in_both_worlds and row.tolerance < 1e-10}.values()
]


def with_trail(spec: str, share: float = SHARE) -> str:
    return f"{spec}{',' if ':' in spec else ':'}trail={share}"


def written_out(xs: list[Tensor], share: float) -> Tensor:
    """After the last of these steps; beginning, as the first step does away with it, wherever."""
    mean = torch.zeros_like(xs[0])
    for number, x in enumerate(xs):
        weight = 1 / (1 + share * number)
        mean = (1 - weight) * mean + weight * x
    return mean


def virtual(
    spec: str, steps: list[int] | None = None, ends: dict[int, float] | None = None
) -> tuple[Quadratic, list[list[Tensor]]]:
    """The learners at the end, and every worker's x at each of its boundaries; into `ends`, when the last one was."""
    learners, seen = Quadratic(WORKERS), [list[Tensor]() for _ in range(WORKERS)]
    last = {} if ends is None else ends

    def watch(meter: Meter, now: float) -> None:
        seen[meter.rank].append(learners.x(meter.rank))
        last[meter.rank] = now

    cluster = Cluster(layout=Layout.even(WORKERS, 2), stragglers={0: 1.5})
    run(make_strategy(spec), cluster, learners, steps or [STEPS] * WORKERS, seed=0, watch=watch)
    return learners, seen


def attached(specs: list[str], steps: list[int]) -> list[Tensor]:
    """In a real worker: x at the end with each strategy."""
    rank, ends = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for spec in specs:
        model = Pull()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(model, optimizer, spec, layout=Layout.even(WORKERS, 2)):
            for number in range(steps[rank]):
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
        ends.append(model.x.detach().clone())
    torch.distributed.destroy_process_group()
    return ends


@pytest.mark.parametrize("share", [1.0, 0.5, 0.07])
def test_it_is_the_mean_over_the_latest_share_of_the_steps(share: float) -> None:
    x = torch.zeros(3, 2, dtype=torch.float64)
    trail, seen = Trail(share), []
    for _ in range(40):
        x += torch.randn(3, 2, dtype=torch.float64)
        trail.add_step([x])
        seen.append(x.clone())
    torch.testing.assert_close(trail.means[0], written_out(seen, share), rtol=1e-12, atol=1e-12)
    if share == 1.0:
        torch.testing.assert_close(trail.means[0], torch.stack(seen).mean(0), rtol=1e-12, atol=1e-12)


def test_a_mean_of_narrow_numbers_is_wide() -> None:
    x = torch.ones(100_000, dtype=torch.bfloat16)  # more than a chunk
    trail = Trail(1.0)
    for number in range(1, 513):
        x.fill_(1 if number % 2 else 1 + 2**-7)
        trail.add_step([x])
    torch.testing.assert_close(trail.means[0], torch.full((100_000,), 1 + 2**-8), rtol=1e-4, atol=0)


def test_in_a_long_run_it_still_moves_and_not_every_step_is_looked_at() -> None:
    share, x, steps = 0.1, torch.ones(1), 1_000_000
    trail = Trail(share)
    trail.load_state_dict({"steps": steps, "looked_at": steps, "means": [x.clone()]}, [x])
    x.fill_(1.001)
    moved = 0
    for _ in range(2000):
        before = trail.means[0].item()
        trail.add_step([x])
        moved += trail.means[0].item() != before
    assert 3 <= moved <= 8, "a step in 390"
    expected = 1 + 0.001 * (1 - (1 - 1 / (share * steps)) ** 2000)
    assert trail.means[0].item() == pytest.approx(expected, abs=0.25 * (expected - 1))


@pytest.mark.parametrize("steps", [5000, 6000, 7600, 11_900])
def test_it_does_not_beat_with_averages_that_come_every_few_steps(steps: int) -> None:
    x, trail = torch.zeros(1), Trail(0.1)
    for step in range(steps):
        x.fill_(step % 8)
        trail.add_step([x])
    assert trail.means[0].item() == pytest.approx(3.5, abs=0.1)


def test_where_only_the_clock_runs_one_more_average_of_the_model_is_charged() -> None:
    def sent(spec: str) -> int:
        cluster = Cluster(layout=Layout.even(16, 16))
        found = run(make_strategy(spec), cluster, NoModel(16), [3] * 16, seed=0, nbytes=1_000_000)
        return sum(status.bytes_sent for status in found.statuses)

    averages = sent("local_sgd:every=1") - sent("none")  # three
    assert sent("none:trail=0.1") - sent("none") == pytest.approx(averages / 3, rel=0.01)


def test_what_is_infinite_stays_so() -> None:
    mask = torch.tensor([0.0, -torch.inf])
    trail = Trail(0.5)
    for _ in range(4):
        trail.add_step([mask])
    assert torch.equal(trail.means[0], mask)


@pytest.mark.parametrize("spec", [row.spec for row in ROWS])
def test_it_changes_nothing_in_the_training_and_its_mean_is_handed_in(spec: str) -> None:
    learners, seen = virtual(with_trail(spec), ends=(ends := {}))
    plain, same = virtual(spec)
    assert all(
        torch.equal(a, b) for one, other in zip(seen, same, strict=True) for a, b in zip(one, other, strict=True)
    )
    expected = torch.stack([written_out(seen[rank], SHARE) for rank in at_the_end(ends)]).mean(0)
    for rank in range(WORKERS):
        torch.testing.assert_close(learners.x(rank), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(learners.x(0), plain.x(0), atol=1e-3), "x itself is something else"


UNEVEN = [STEPS, 0, STEPS - 2, 3]


def at_the_end(ends: dict[int, float]) -> list[int]:
    """The ranks whose last step was within a trail of the last of all."""
    return [rank for rank, seconds in sorted(ends.items()) if seconds >= (1 - SHARE) * max(ends.values())]


@pytest.mark.parametrize("steps", [[STEPS] * WORKERS, UNEVEN], ids=["even", "uneven"])
def test_both_worlds_hand_in_the_same(steps: list[int]) -> None:
    """With the longest trail all that made a step hand in, whatever the time that it took."""
    specs = [with_trail(spec, 1.0) for spec in SAME_IN_BOTH_WORLDS]
    ends = run_workers(attached, WORKERS, specs, steps)
    for index, spec in enumerate(specs):
        for end in ends:
            assert torch.equal(end[index], ends[0][index]), f"{spec}: ranks differ"
        torch.testing.assert_close(ends[0][index], virtual(spec, steps)[0].x(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", [row.spec for row in ROWS])
def test_only_those_hand_in_who_trained_to_the_end(spec: str) -> None:
    learners, seen = virtual(with_trail(spec), UNEVEN, ends := {})
    assert list(map(len, seen)) == UNEVEN
    assert 0 in at_the_end(ends), "the slowest"
    assert not {1, 3} & {*at_the_end(ends)}, "they had little to do"
    expected = torch.stack([written_out(seen[rank], SHARE) for rank in at_the_end(ends)]).mean(0)
    for rank in range(WORKERS):
        torch.testing.assert_close(learners.x(rank), expected, rtol=1e-12, atol=1e-12)


def scheduled() -> tuple[Tensor, Tensor]:
    """In a real worker of `ddp` with uneven ends and a rate that falls: what is handed in, and what it should be."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo")
    model, seen = Pull(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    with offbeat.attach(model, optimizer, "ddp:trail=0.3", layout=Layout.even(3, 1)):
        for number in range([2, 60, 3][rank]):
            optimizer.zero_grad()
            model(rank, number).backward()
            optimizer.step()
            scheduler.step()
            time.sleep(0.01)
            seen.append(model.x.detach().clone())
    torch.distributed.destroy_process_group()
    return model.x.detach().clone(), written_out(seen, 0.3)


def test_what_a_follower_does_at_a_rate_that_stood_still_is_not_handed_in() -> None:
    ends = run_workers(scheduled, 3)
    for handed_in, _ in ends:
        torch.testing.assert_close(handed_in, ends[1][1], rtol=1e-12, atol=1e-12)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.norm(self.inner(x)))


def test_weights_have_all_the_names_of_the_model() -> None:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with offbeat.attach(model, optimizer, "none:trail=1") as run:
        for _ in range(5):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            seen.append(copy.deepcopy(model.state_dict()))
        weights = run.weights()
        floats = [name for name, x in model.state_dict().items() if x.is_floating_point()]
        assert sorted(weights) == sorted(floats)
        for name in floats:
            torch.testing.assert_close(weights[name], torch.stack([state[name] for state in seen]).mean(0))
        inputs = torch.randn(3, 4)
        of_the_mean = torch.func.functional_call(model.eval(), weights, (inputs,))
        kept = flat_of(model, weights)
    torch.testing.assert_close(model(inputs), of_the_mean)
    assert torch.equal(flat_of(model), kept), "what is handed in was the snapshot's, too"


@pytest.mark.parametrize("spec", ["none", "diloco:every=2", "diloco:every=3,delay=1"])
def test_it_goes_on_after_a_restart(spec: str) -> None:
    """Saved after the block, when the model holds the mean; compared with training that never had a trail."""

    def train(trail: str, steps: range, state: dict[str, Any] | None, x: Tensor) -> tuple[dict[str, Any], Tensor]:
        model = Pull()
        model.x.data.copy_(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(model, optimizer, f"{spec}{',' if ':' in spec else ':'}trail={trail}") as run:
            if state is not None:
                run.load_state_dict(state)
            for number in steps:
                optimizer.zero_grad()
                model(0, number).backward()
                optimizer.step()
                seen.append(model.x.detach().clone())
        return copy.deepcopy(run.state_dict()), model.x.detach().clone()

    seen: list[Tensor] = []
    state, mean = train("0.4", range(5), None, start())
    train("0.4", range(5, 11), state, state["trained"]["x"])
    followed, seen = seen, []
    plain, x = train("0", range(5), None, start())
    assert plain["trained"] == {}
    train("0", range(5, 11), plain, x)
    assert all(torch.equal(a, b) for a, b in zip(followed, seen, strict=True)), "the training is the same, to the bit"
    _, resumed = train("0.4", range(5, 11), state, state["trained"]["x"])
    torch.testing.assert_close(resumed, written_out(followed, 0.4), rtol=1e-12, atol=1e-12)
    with pytest.raises(BadInput, match=r"x of the model is not as it was trained, .* model.load_state_dict\(state\["):
        train("0.4", range(5, 11), state, mean)
    with pytest.raises(BadInput, match="has no trail and was saved with one: resume with the same options"):
        train("0", range(5, 11), state, state["trained"]["x"])
    with pytest.raises(
        BadInput, match=r"a trail of \[3\] numbers does not fit x, which is \[32\]: resume with the model"
    ):
        train(
            "0.4",
            range(5, 11),
            {**state, "trail": {**state["trail"], "means": [torch.zeros(3)]}},
            state["trained"]["x"],
        )
    train("0.4", range(5, 11), {name: plain[name] for name in ("step", "strategy")}, x)  # of before there were trails


def test_weights_are_copies_of_the_models_own_kind() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with offbeat.attach(model, optimizer, "none:trail=1") as run:
        for _ in range(3):
            model(torch.randn(8, 4, dtype=torch.bfloat16)).square().mean().backward()
            optimizer.step()
        before = run.weights()
        torch.func.functional_call(model, run.weights(), (torch.randn(8, 4, dtype=torch.bfloat16),))  # BatchNorm writes
        for name, x in run.weights().items():
            assert torch.equal(x, before[name])
            assert x.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("share", "words"), [("1.5", "it is a share of the steps, so use 0 to 1"), ("-0.1", "trail must be at least 0")]
)
def test_a_share_is_between_0_and_1(share: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"trail={share} does not fit: {words}"):
        make_strategy(f"lasgd:trail={share}")


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_a_curve_in_virtual_time_is_of_what_would_be_handed_in(slow: float) -> None:
    task = load_task("digits", seed=0)
    shards = [Shard(samples=len(task.train), rank=rank, workers=2, batch=16, seed=0) for rank in range(2)]

    def last_point(spec: str) -> tuple[float, OneByOne]:
        learners = OneByOne(task, shards, 0)
        curve = Curve(task, learners, [12, 12], shards, seed=0)
        cluster = Cluster(layout=Layout.even(2, 2), stragglers={0: slow})
        run(make_strategy(spec), cluster, learners, [12, 12], seed=0, watch=curve.watch)
        loss = curve.points[-1].test_loss
        assert loss is not None
        return loss, learners

    loss, learners = last_point("none:trail=0.5")
    assert loss == pytest.approx(evaluate(learners.mean_model(), task)[1], rel=1e-5)
    assert loss != pytest.approx(last_point("none")[0], rel=1e-3)


def test_rivals_have_it_too() -> None:
    rival = run_path(str(Path(__file__).parent.parent / "benchmarks" / "rivals" / "rival.py"))["rival"]

    @rival
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, _setup: object, *, every: int = 1) -> object:
        assert every == 2
        yield model, optimizer

    model, setup = Pull(), SimpleNamespace(hands_in=[])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    seen = []
    with train(every="2", trail="0.5")(model, optimizer, setup) as (module, stepper):
        for number in range(6):
            stepper.zero_grad()
            module(0, number).backward()
            stepper.step()
            model.x.data = model.x.data.clone()  # as some rivals do
            seen.append(model.x.detach().clone())
    handed_in = setup.hands_in[0]()
    torch.testing.assert_close(handed_in["x"], written_out(seen, 0.5))
    x = flat_of(model)
    load_flat(model, flat_of(model, handed_in))
    assert not torch.equal(flat_of(model), x)
    with pytest.raises(ValueError, match="no setting 'trial': choose among every, trail"):
        train(trial="1")
    torch.testing.assert_close(seen[0], start() + delta(0, 0, start()))
    with pytest.raises(BadInput, match="trail=-1"), train(every="2", trail="-1")(model, optimizer, setup):
        pass


def test_a_lap_looks_at_what_would_be_handed_in() -> None:
    """With a fixed delay two laps train alike, so that without a trail all points would be the same."""
    specs = ("lasgd:delay=2", "lasgd:delay=2,trail=1")
    contest = Contest(strategies=specs, links=(None,), workers=(2,), steps=24, snapshots=3)
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    laps = {outcome.entry.strategy: outcome.lap for outcome in outcomes}
    losses = [[point.loss for point in lap.curve] for spec in specs if (lap := laps[spec]) is not None]
    assert min(map(len, losses)) >= 3
    assert all(abs(one - other) > 1e-3 for one in losses[0] for other in losses[1])
