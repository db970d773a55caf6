"""DiLoCo: the outer optimizer is torch's, what it equals, what it costs, and how it is resumed."""

import copy
from typing import Any

import pytest
import references
import torch
from quadratic import ELEMENTS, Quadratic, delta, start
from test_strategies import STEPS, UNEVEN, WORKERS, virtual
from torch import Tensor, nn

from offbeat.comm import Steps
from offbeat.driver import Finished
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.replica import Replica, consensus_distance, flatten
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE, Cluster
from offbeat.sim.comm import SimComm, World
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link, Network
from offbeat.sim.run import run
from offbeat.sim.work import SimProcess
from offbeat.strategies import make_strategy
from offbeat.strategies.diloco import DiLoCo, Outer


class Alone:
    """A comm of one rank."""

    def average(self, x: Tensor, ranks: tuple[int, ...], out: Tensor | None = None) -> Any:
        assert out is x, "what travels needs no second buffer"
        return Finished(x)


@pytest.mark.parametrize("wire_dtype", [None, "float32"])
@pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.5), (0.3, 0.0), (2.0, 0.9)])
def test_the_outer_optimizer_is_nesterov_sgd(lr: float, momentum: float, wire_dtype: str | None) -> None:
    x, noise = start(), torch.Generator().manual_seed(1)
    outer = Outer(x, lr, momentum, wire_dtype)
    old = nn.Parameter(start())
    optimizer = torch.optim.SGD([old], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for _ in range(10):
        x += torch.randn(ELEMENTS, generator=noise, dtype=x.dtype)
        old.grad = old.detach() - x
        optimizer.step()
        outer.send(Alone(), (0,))  # type: ignore[arg-type]
        outer.receive(0.0)
        tolerance = 1e-12 if wire_dtype is None else 1e-4
        torch.testing.assert_close(x, old.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("steps", [[STEPS] * WORKERS, UNEVEN, [0, 9, 4]], ids=["even", "uneven", "one without data"])
@pytest.mark.parametrize("every", [1, 4, 50])
def test_plain_averaging_outside_is_local_sgd(every: int, steps: list[int]) -> None:
    diloco, _ = virtual(f"diloco:every={every},outer_lr=1,outer_momentum=0", steps, jitter=0.2)
    local_sgd, _ = virtual(f"local_sgd:every={every}", steps, jitter=0.2)
    torch.testing.assert_close(diloco.x(0), local_sgd.x(0), rtol=1e-12, atol=1e-12)


def test_fragments_that_share_a_turn_are_the_whole() -> None:
    """With more fragments than steps several have their turn at once; with every=1 all of them."""
    whole, _ = virtual("diloco:every=1", [STEPS] * WORKERS)
    parts, _ = virtual("diloco:every=1,fragments=7", [STEPS] * WORKERS)
    assert torch.equal(whole.x(0), parts.x(0))


@pytest.mark.parametrize("spec", ["diloco:every=3", "diloco:every=5,fragments=3,delay=4"])
def test_one_worker_alone_has_the_outer_optimizer(spec: str) -> None:
    learners, _ = virtual(spec, [STEPS])
    options = make_strategy(spec)
    assert isinstance(options, DiLoCo)
    expected = references.diloco(options.every, fragments=options.fragments or 1, delay=options.delay)
    torch.testing.assert_close(learners.x(0), expected(start(), delta, 1, STEPS), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("steps", [[7, 0, 30], [0, 0], [1, 40, 3, 2, 9]], ids=str)
@pytest.mark.parametrize("spec", ["diloco:every=4", "diloco:every=9,fragments=4,delay=8", "diloco:every=50,delay=3"])
def test_any_ends_come_together(spec: str, steps: list[int]) -> None:
    learners, _ = virtual(spec, steps, jitter=0.3)
    assert consensus_distance(learners.replicas) < 1e-12
    assert learners.x(0).isfinite().all()


def ends(strategies: list[DiLoCo], learners: Quadratic, runs: list[range], states: list[dict[str, Any]]) -> Tensor:
    """x of rank 0 after these runs of steps, with a `finish` after each; before the first, `states` are loaded."""
    clock, layout = Clock(), Layout.even(len(strategies), 1)
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))

    def train(rank: int, strategy: DiLoCo) -> Steps:
        yield from strategy.start(learners.replicas[rank], SimComm(rank, world, 0))
        if states:
            strategy.load_state_dict(states[rank])
        for numbers in runs:
            for number in numbers:
                learners.begin(rank, number, alone=True)
                learners.end(rank)
                yield from strategy.after_step(number + 1)
            yield from strategy.finish()

    for rank, strategy in enumerate(strategies):
        SimProcess(f"rank {rank}", train(rank, strategy), clock)
    clock.run()
    return learners.x(0)


@pytest.mark.parametrize("spec", ["diloco:every=4", "diloco:every=6,fragments=4,delay=2,wire_dtype=float32"])
def test_resumes_where_it_was_saved(spec: str) -> None:
    def make() -> list[Any]:
        return [make_strategy(spec) for _ in range(3)]

    expected = ends(make(), Quadratic(3), [range(10), range(10, 25)], [])
    learners, strategies = Quadratic(3), make()
    ends(strategies, learners, [range(10)], [])
    states = [copy.deepcopy(strategy.state_dict()) for strategy in strategies]
    assert torch.equal(ends(make(), learners, [range(10, 25)], states), expected)
    anew = ends(make(), learners, [range(10, 25)], [])
    assert not torch.allclose(anew, expected)


def test_a_state_of_another_cut_is_refused() -> None:
    whole, halves = DiLoCo(every=4), DiLoCo(every=4, fragments=2)
    ends([whole], Quadratic(1), [range(4)], [])
    with pytest.raises(BadInput, match=r"a state of 32 numbers in 2 pieces does not fit x, which is 32 in 3: resume"):
        ends([halves], Quadratic(1), [range(4)], [whole.state_dict()])


def test_buffers_are_averaged_and_never_extrapolated() -> None:
    """The variance falls so fast that Nesterov would take it below zero."""
    models = [nn.Sequential(nn.Linear(3, 20), nn.BatchNorm1d(20)) for _ in range(2)]
    replicas = [flatten(model) for model in models]
    assert [len(part) for part in replicas[0].parameters] == [4 * 16 + 3 * 32]  # each tensor begins on its own line
    assert [len(part) for part in replicas[0].buffers] == [2 * 32]
    clock, layout = Clock(), Layout.even(2, 1)
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))

    def train(rank: int) -> Steps:
        strategy, norm = DiLoCo(every=1, fragments=3, outer_lr=1.0), models[rank][1]
        assert isinstance(norm.running_var, Tensor)
        yield from strategy.start(replicas[rank], SimComm(rank, world, 0))
        for step, variance in enumerate([0.1, 0.01, 0.001], start=1):
            norm.running_var.fill_(variance * (1 + rank))
            yield from strategy.after_step(step)
            torch.testing.assert_close(norm.running_var, torch.full((20,), 1.5 * variance))
        yield from strategy.finish()

    processes = [SimProcess(f"rank {rank}", train(rank), clock) for rank in range(2)]
    clock.run()
    assert all(process.done for process in processes)


@pytest.mark.parametrize(
    ("spec", "times"),
    [
        ("diloco", 2.0),
        ("diloco:fragments=4,delay=3", 2.0),
        ("diloco:fragments=4,delay=3,wire_dtype=bfloat16", 2.5),
    ],
)
def test_memory_beside_the_model(spec: str, times: float) -> None:
    replica = Replica((torch.zeros(1024),))
    strategy = make_strategy(spec)
    assert isinstance(strategy, DiLoCo)
    clock, layout = Clock(), Layout.even(1)
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))
    SimProcess("rank 0", strategy.start(replica, SimComm(0, world, 0)), clock)
    clock.run()
    held = {t.data_ptr(): t.nbytes for outer in strategy._outers() for t in vars(outer).values() if t is not outer._x
            and isinstance(t, Tensor)}  # fmt: skip
    assert sum(held.values()) == times * replica.nbytes


def test_streaming_computes_while_the_average_is_in_flight() -> None:
    """On a wire that takes 4.5 steps for x the blocking form waits for it; a quarter of x is there after 2 steps."""
    slow = Link(bytes_per_second=1e6, seconds=1e-4)
    cluster = Cluster(layout=Layout.even(4, 4), step_seconds=0.1, link=slow)
    waits = {}
    for spec in ("diloco:every=8", "diloco:every=8,fragments=4,delay=2"):
        done = run(make_strategy(spec), cluster, NoModel(4), [96] * 4, seed=0, nbytes=300_000)
        waited = [event for event in done.traces[0].events if event.kind == "wait" and event.start > 0.6]
        waits[spec] = sum(event.seconds for event in waited if event.start < done.seconds - 1.0)
        assert done.statuses[0].averages == 12
        assert done.statuses[0].delay == make_strategy(spec).delay  # type: ignore[attr-defined]
    blocking, streaming = waits.values()
    assert blocking > 10 * 0.45
    assert streaming == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0 does not fit: every must be at least 1"),
        ({"outer_lr": 0.0}, "outer_lr=0.0 does not fit: outer_lr must be above 0"),
        ({"outer_momentum": 1.0}, "outer_momentum=1.0 does not fit: from 1 on nothing is ever forgotten"),
        ({"outer_momentum": -0.1}, "outer_momentum=-0.1 does not fit"),
        ({"delay": 16}, "delay=16 does not fit every=16: an average must be merged before the next"),
        ({"delay": -1}, "delay=-1 does not fit"),
        ({"delay": 2, "merge_weight": 1.5}, "merge_weight=1.5 does not fit: it is a share, so use 0 to 1"),
        ({"delay": 2, "merge_weight": -0.5}, "merge_weight=-0.5 does not fit"),
        ({"merge_weight": 0.5}, "merge_weight=0.5 has no meaning with delay=0"),
        ({"fragments": 0}, "fragments=0 does not fit"),
        ({"wire_dtype": "int8"}, "there is no wire_dtype 'int8'"),
    ],
    ids=str,
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        DiLoCo(**options)


def test_more_fragments_than_numbers() -> None:
    with pytest.raises(BadInput, match="fragments=33 does not fit: x has 32 numbers, so use that or fewer"):
        virtual("diloco:fragments=33", [3, 3])
