"""The mean over steps: what it is, that it changes nothing in the training, and that it is what is handed in."""

import copy
import os
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch
from quadratic import RATE, Pull, Quadratic, delta, start
from table import ROWS
from torch import Tensor, nn
from workers import run_workers

import offbeat
from offbeat.compare.snapshots import flat_of, load_flat
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.report.meter import Meter
from offbeat.sim.cluster import Cluster
from offbeat.sim.curve import Curve
from offbeat.sim.learners import OneByOne
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


def virtual(spec: str) -> tuple[Quadratic, list[list[Tensor]]]:
    """The learners at the end, and every worker's x at each of its boundaries."""
    learners, seen = Quadratic(WORKERS), [list[Tensor]() for _ in range(WORKERS)]

    def watch(meter: Meter, _now: float) -> None:
        seen[meter.rank].append(learners.x(meter.rank))

    cluster = Cluster(layout=Layout.even(WORKERS, 2), stragglers={0: 1.5})
    run(make_strategy(spec), cluster, learners, [STEPS] * WORKERS, seed=0, watch=watch)
    return learners, seen


def attached(specs: list[str]) -> list[Tensor]:
    """In a real worker: x at the end with each strategy."""
    rank, ends = int(os.environ["RANK"]), []
    torch.distributed.init_process_group("gloo")
    for spec in specs:
        model = Pull()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(model, optimizer, spec, layout=Layout.even(WORKERS, 2)):
            for number in range(STEPS):
                optimizer.zero_grad()
                model(rank, number).backward()
                optimizer.step()
        ends.append(model.x.detach().clone())
    torch.distributed.destroy_process_group()
    return ends


@pytest.mark.parametrize("share", [1.0, 0.5, 0.07])
def test_it_is_the_mean_over_the_latest_share_of_the_steps(share: float) -> None:
    x = torch.zeros(3, 2, dtype=torch.float64)
    trail, seen = Trail([x], share), []
    for _ in range(40):
        x += torch.randn(3, 2, dtype=torch.float64)
        trail.follow()
        seen.append(x.clone())
    torch.testing.assert_close(trail.means[0], written_out(seen, share), rtol=1e-12, atol=1e-12)
    if share == 1.0:
        torch.testing.assert_close(trail.means[0], torch.stack(seen).mean(0), rtol=1e-12, atol=1e-12)


def test_a_mean_of_narrow_numbers_is_wide() -> None:
    x = torch.ones(100_000, dtype=torch.bfloat16)  # more than a chunk
    trail = Trail([x], 1.0)
    for number in range(1, 513):
        x.fill_(1 if number % 2 else 1 + 2**-7)
        trail.follow()
    torch.testing.assert_close(trail.means[0], torch.full((100_000,), 1 + 2**-8), rtol=1e-4, atol=0)


@pytest.mark.parametrize("spec", [row.spec for row in ROWS])
def test_it_changes_nothing_in_the_training_and_its_mean_is_handed_in(spec: str) -> None:
    learners, seen = virtual(with_trail(spec))
    plain, same = virtual(spec)
    assert all(
        torch.equal(a, b) for one, other in zip(seen, same, strict=True) for a, b in zip(one, other, strict=True)
    )
    expected = torch.stack([written_out(xs, SHARE) for xs in seen]).mean(0)
    for rank in range(WORKERS):
        torch.testing.assert_close(learners.x(rank), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(learners.x(0), plain.x(0), atol=1e-3), "x itself is something else"


def test_both_worlds_hand_in_the_same() -> None:
    specs = [with_trail(spec) for spec in SAME_IN_BOTH_WORLDS]
    ends = run_workers(attached, WORKERS, specs)
    for index, spec in enumerate(specs):
        for end in ends:
            assert torch.equal(end[index], ends[0][index]), f"{spec}: ranks differ"
        torch.testing.assert_close(ends[0][index], virtual(spec)[0].x(0), rtol=1e-10, atol=1e-10)


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


def test_it_goes_on_after_a_restart() -> None:
    def train(steps: range, state: dict[str, object] | None, x: Tensor) -> tuple[dict[str, object], Tensor, Tensor]:
        model = Pull()
        model.x.data.copy_(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with offbeat.attach(model, optimizer, "none:trail=0.4") as run:
            if state is not None:
                run.load_state_dict(state)
            for number in steps:
                optimizer.zero_grad()
                model(0, number).backward()
                optimizer.step()
            kept = copy.deepcopy(run.state_dict())
            x = model.x.detach().clone()
        return kept, x, model.x.detach().clone()

    _, _, whole = train(range(9), None, start())
    state, x, _ = train(range(4), None, start())
    _, _, resumed = train(range(4, 9), state, x)
    assert torch.equal(resumed, whole)
    with pytest.raises(BadInput, match="was saved without one: resume with the same options"):
        train(range(4, 9), {**state, "trail": {}}, x)
    with pytest.raises(BadInput, match=r"a trail of .* does not fit x, which is .*: resume with the model"):
        train(range(4, 9), {**state, "trail": {"steps": 1, "means": [torch.zeros(3)]}}, x)


@pytest.mark.parametrize(
    ("share", "words"), [("1.5", "it is a share of the steps, so use 0 to 1"), ("-0.1", "trail must be at least 0")]
)
def test_a_share_is_between_0_and_1(share: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"trail={share} does not fit: {words}"):
        make_strategy(f"lasgd:trail={share}")


def test_a_curve_in_virtual_time_is_of_what_would_be_handed_in() -> None:
    task = load_task("digits", seed=0)
    shards = [Shard(samples=len(task.train), rank=rank, workers=2, batch=16, seed=0) for rank in range(2)]

    def last_point(spec: str) -> tuple[float, OneByOne]:
        learners = OneByOne(task, shards, 0)
        curve = Curve(task, learners, [12, 12], shards, seed=0)
        run(make_strategy(spec), Cluster(layout=Layout.even(2, 2)), learners, [12, 12], seed=0, watch=curve.watch)
        loss = curve.points[-1].test_loss
        assert loss is not None
        return loss, learners

    loss, learners = last_point("ddp:trail=0.5")
    assert loss == pytest.approx(evaluate(learners.mean_model(), task)[1], rel=1e-5)
    assert loss != pytest.approx(last_point("ddp")[0], rel=1e-3)


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
            seen.append(model.x.detach().clone())
    handed_in = setup.hands_in[0]()
    torch.testing.assert_close(handed_in["x"], written_out(seen, 0.5))
    x = flat_of(model)
    load_flat(model, flat_of(model, handed_in))
    assert not torch.equal(flat_of(model), x)
    with pytest.raises(TypeError, match="no setting trial: choose among every, trail"):
        train(trial="1")
    torch.testing.assert_close(seen[0], start() + delta(0, 0, start()))
