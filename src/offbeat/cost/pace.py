"""Pace: how fast a strategy trains on a cluster, in closed form where that is exact, else in the virtual world.

Closed forms: `none` and `ddp`; `local_sgd` and `diloco` where they average all of x at once and wait for it,

    step = compute + t_allreduce(x) / every

All else, and everything as soon as workers differ (stragglers, jitter), is played out, timing only.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ..layout import Layout
from ..report.meter import Meter
from ..sim.cluster import Cluster
from ..sim.learners import NoModel
from ..sim.run import run
from ..strategies.ddp import DDP
from ..strategies.diloco import DiLoCo
from ..strategies.local_sgd import LocalSGD
from ..strategy import Plan, Strategy
from .step import StepTime, synchronous
from .wires import Wires

WARM_STEPS = 6  # lasgd chooses its parts after 4 steps, and daso's shortest warm-up is as long
TIMED_STEPS = {64: 32, 256: 16}  # up to so many workers; of more, the mean over all is the same in fewer:
FEWEST_STEPS = 6
LONG_RUN = Plan(steps=100_000, steps_per_epoch=1)  # phases at the ends of a run are no part of its pace


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a worker does in a step, and what it sends."""

    time: StepTime
    model_bytes: int  # of x: parameters and buffers
    bucketed: StepTime | None = None  # where gradients are averaged in backward; None: as without

    def time_of(self, strategy: Strategy, layout: Layout) -> StepTime:
        return self.bucketed if self.bucketed is not None and fills_buckets(strategy, layout) else self.time

    def scaled(self, times: float) -> "Work":
        bucketed = None if self.bucketed is None else self.bucketed.scaled(times)
        return replace(self, time=self.time.scaled(times), bucketed=bucketed)


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The workers and what is between them."""

    layout: Layout
    wires: Wires
    stragglers: Mapping[int, float] = field(default_factory=dict)  # rank -> its steps take so many times longer
    jitter: float = 0.0

    @property
    def alike(self) -> bool:
        return not self.jitter and all(factor == 1 for factor in self.stragglers.values())


@dataclass(frozen=True, kw_only=True)
class Pace:
    """A strategy at work, in the mean over workers and steps."""

    step_seconds: float
    averages_per_step: float  # of all of x (gradients count), or exchanges
    delay_steps: float | None  # from the snapshot to the merge of an average
    by: str  # closed form, or virtual world
    wire_seconds: float  # of the step's critical path: what the wire takes when workers wait for it


def pace(strategy: Strategy, work: Work, machines: Machines, *, seed: int = 0) -> Pace:
    """How long a step takes, communication included."""
    form = closed_form(strategy) if machines.alike else None
    if form is not None:
        return form(strategy, work, machines)
    return played_out(strategy, work, machines, seed=seed)


ClosedForm = Callable[[Strategy, Work, Machines], Pace]


def closed_form(strategy: Strategy) -> ClosedForm | None:
    """Of a strategy with these options, if there is one."""
    match strategy:
        case DDP():
            return _ddp
        case LocalSGD(warmup_steps=0) | DiLoCo(delay=0, fragments=None | 1, wire_dtype=None):
            return _every_so_often
    return _alone if type(strategy) is Strategy else None


def _alone(_strategy: Strategy, work: Work, _machines: Machines) -> Pace:
    return Pace(
        step_seconds=work.time.seconds, averages_per_step=0.0, delay_steps=None, by="closed form", wire_seconds=0.0
    )


def _ddp(strategy: Strategy, work: Work, machines: Machines) -> Pace:
    layout, wires = machines.layout, machines.wires
    step = synchronous(
        work.time_of(strategy, layout), lambda nbytes: wires.all_reduce(nbytes, layout.ranks, layout).seconds
    )
    return Pace(
        step_seconds=step.seconds,
        averages_per_step=1.0,
        delay_steps=0.0,
        by="closed form",
        wire_seconds=step.critical_wire_seconds,
    )


def _every_so_often(strategy: Strategy, work: Work, machines: Machines) -> Pace:
    assert isinstance(strategy, (LocalSGD, DiLoCo))
    layout = machines.layout
    average = machines.wires.all_reduce(work.model_bytes, layout.ranks, layout).seconds
    return Pace(
        step_seconds=work.time.seconds + average / strategy.every,
        averages_per_step=1 / strategy.every,
        delay_steps=0.0,
        by="closed form",
        wire_seconds=average / strategy.every,
    )


def fills_buckets(strategy: Strategy, layout: Layout) -> bool:
    """Whether gradients are averaged in every step, among all or some workers."""
    return len(strategy.gradient_ranks(layout, 0)) > 1 and strategy.averages_gradients(LONG_RUN.steps)


def _averages_all(strategy: Strategy, layout: Layout) -> bool:
    """Whether the gradients of all workers are averaged in every step."""
    return fills_buckets(strategy, layout) and strategy.gradient_ranks(layout, 0) == layout.ranks


def _averages(strategy: Strategy, work: Work, machines: Machines, step_seconds: float, counted: float) -> float:
    """Per step, as they were counted; where one takes longer than was played out, as many as the wire carries."""
    layout = machines.layout
    if _averages_all(strategy, layout):
        return 1.0
    if counted or layout.workers == 1 or type(strategy) is Strategy:
        return counted
    return min(1.0, step_seconds / machines.wires.all_reduce(work.model_bytes, layout.ranks, layout).seconds)


class _Enough(Exception):
    """All workers have made the steps that are timed."""


def played_out(strategy: Strategy, work: Work, machines: Machines, *, seed: int = 0) -> Pace:
    """In the virtual world, from a worker's step `WARM_STEPS` on, for whole intervals of the strategy."""
    layout, wires = machines.layout, machines.wires
    every = max(1, int(getattr(strategy, "every", 1)), int(getattr(strategy, "b_max", 1)))
    warm = -(-WARM_STEPS // every) * every
    timed = next((steps for workers, steps in TIMED_STEPS.items() if layout.workers <= workers), FEWEST_STEPS)
    last = warm + -(-timed // every) * every
    link, local = wires.as_links()
    time = work.time_of(strategy, layout)
    cluster = Cluster(
        layout=layout,
        step_seconds=time.seconds,
        shape=time.shape(),
        link=link,
        local=local,
        swaps=wires.swaps(),
        stragglers=machines.stragglers,
        jitter=machines.jitter,
    )
    began: dict[Meter, tuple[float, int]] = {}  # when, and the averages by then
    rates: dict[Meter, float] = {}  # steps per second
    averages, delays = list[float](), list[float]()

    def watch(meter: Meter, now: float) -> None:
        if meter.steps_done == warm:
            began[meter] = now, meter.peek(now).averages
        elif meter.steps_done == last:
            status = meter.peek(now)
            since, before = began[meter]
            rates[meter] = (last - warm) / (now - since)
            averages.append((status.averages - before) / (last - warm))
            if status.delay is not None:
                delays.append(status.delay)
            if len(rates) == layout.workers:
                raise _Enough

    with suppress(_Enough):
        run(
            strategy,
            cluster,
            NoModel(layout.workers),
            [last + 1] * layout.workers,
            seed=seed,
            nbytes=work.model_bytes,
            plan=LONG_RUN,
            watch=watch,
        )
    seconds = layout.workers / sum(rates.values())
    return Pace(
        step_seconds=seconds,
        averages_per_step=_averages(strategy, work, machines, seconds, sum(averages) / layout.workers),
        delay_steps=sum(delays) / len(delays) if delays else None,
        by="virtual world",
        wire_seconds=max(0.0, seconds - time.seconds),
    )
