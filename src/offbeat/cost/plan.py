"""plan: what training would be like on clusters of many sizes, for many strategies.

Efficiency is the throughput over that of as many workers that need not talk. Its band: at the low end the workers
compute as fast as the prediction allows, and the wire is as slow, so that less of it is hidden; at the high end the
other way round.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import BadInput
from ..layout import Layout
from ..strategies import make_strategy
from ..strategy import Strategy
from .device_profile import DeviceProfile
from .memory import largest_batch
from .pace import LONG_RUN, Machines, Pace, Work, pace
from .predict import Prediction, predict
from .step import synchronous
from .subject import Subject
from .trace import TracedStep
from .wires import Wires

USABLE_MEMORY = 0.95  # the library's workspaces and the allocator take the rest
BANDS_PLAYED_UP_TO = 128  # workers; beyond, a band that would be played out is as wide as that of fewer workers
HIDDEN = 0.005  # of a step: less of it exposed is not worth a second look

Progress = Callable[[int, int], None]  # rows done, rows wanted


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strategy on so many workers."""

    strategy: str
    workers: int
    nodes: int
    batch: int  # per worker
    step_seconds: float
    samples_per_second: float  # of all workers
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    compute_seconds: float  # of a step, alone
    exposed_seconds: float  # of a step: waiting for the wire or for others
    bottleneck: str  # compute, memory, latency, intra-node, inter-node or stragglers
    averages_per_step: float
    delay_steps: float | None
    by: str  # closed form or virtual world

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is planned."""

    subject: Subject
    profile: DeviceProfile
    wires: Wires
    nodes: int
    workers_per_node: int
    batch: int  # per worker
    strategies: tuple[str, ...]
    stragglers: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("nodes", "workers_per_node", "batch"):
            value = getattr(self, name)
            if value < 1:
                raise BadInput(f"--{name.replace('_', '-')} {value} does not fit: it must be at least 1")
        for rank in self.stragglers:
            if not 0 <= rank < self.workers:
                raise BadInput(f"straggler {rank} is not a rank: ranks go from 0 to {self.workers - 1}")

    @property
    def workers(self) -> int:
        return self.nodes * self.workers_per_node

    @property
    def sizes(self) -> list[int]:
        """Powers of two, and all workers."""
        return [*(1 << power for power in range((self.workers - 1).bit_length())), self.workers]

    def layout(self, workers: int) -> Layout:
        """Nodes are filled before another one is rented."""
        return Layout.even(workers, math.ceil(workers / self.workers_per_node))

    @property
    def step(self) -> TracedStep:
        """At this batch, if it fits the memory, with what every strategy keeps there."""
        layout = self.layout(self.workers)
        copies = max((copies_of(make_strategy(spec), layout) for spec in self.strategies), default=0.0)
        return fitting_step(self.subject, self.profile, self.batch, self.workers_per_node, copies)

    def machines(self, workers: int) -> Machines:
        """So many of them, stragglers among them."""
        return Machines(
            layout=self.layout(workers),
            wires=self.wires,
            stragglers={rank: factor for rank, factor in self.stragglers.items() if rank < workers},
            jitter=self.jitter,
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The rows, and what they are made of."""

    question: Question
    prediction: Prediction
    rows: tuple[Row, ...]

    def of(self, strategy: str) -> list[Row]:
        return [row for row in self.rows if row.strategy == strategy]


def plan(question: Question, progress: Progress | None = None) -> Answer:
    """Every strategy on every size."""
    strategies = {spec: make_strategy(spec) for spec in question.strategies}
    prediction = predict(question.step, question.profile)
    wanted = len(strategies) * len(question.sizes)
    rows: list[Row] = []
    for spec, strategy in strategies.items():
        row: Row | None = None
        for workers in question.sizes:
            row = plan_row(question, prediction, spec, strategy, workers, smaller=row)
            rows.append(row)
            if progress is not None:
                progress(len(rows), wanted)
    return Answer(question=question, prediction=prediction, rows=tuple(rows))


def copies_of(strategy: Strategy, layout: Layout) -> float:
    """Of the weights, beside them: what the strategy keeps, and the buckets of gradients that are averaged."""
    return strategy.copies + float(len(strategy.gradient_ranks(layout, 0)) > 1)


def fitting_step(
    subject: Subject, profile: DeviceProfile, batch: int, workers_per_node: int, copies: float = 0.0
) -> TracedStep:
    """The step at this batch, if it fits the device's memory beside so many copies of the weights; workers on the CPU
    of a node share theirs."""
    step = subject.at(batch)
    sharing = workers_per_node if profile.platform == "cpu" else 1
    room = int(profile.device.memory_bytes * USABLE_MEMORY) // sharing
    kept = int(copies * (step.memory.weights + step.memory.buffers))
    if step.memory.peak + kept > room:
        constant, peak = step.memory.constant + kept, step.memory.peak + kept
        guess = max(1, batch * max(0, room - constant) // max(1, peak - constant))
        most = largest_batch(lambda size: subject.at(size).memory.peak + kept, room, first=guess, at_most=batch)
        remedy = (
            f"the largest batch that fits is {most}" if most else "not even one sample fits, so choose another device"
        )
        raise BadInput(
            f"{subject.name} at batch {batch} needs {(step.memory.peak + kept) / 1e9:.3g} GB"
            f"{f', {kept / 1e9:.3g} GB of them to synchronise,' if kept else ''} and {profile.device.name} has "
            f"{room / 1e9:.3g} GB for {'it' if sharing == 1 else f'each of {sharing} workers'}: {remedy}"
        )
    return step


def work_of(prediction: Prediction) -> Work:
    memory = prediction.trace.memory
    return Work(time=prediction.time, model_bytes=memory.weights + memory.buffers, bucketed=prediction.bucketed)


def plan_row(
    question: Question, prediction: Prediction, spec: str, strategy: Strategy, workers: int, smaller: Row | None = None
) -> Row:
    """The pace, and its band where there is anything to be unsure of; `smaller`: the row of fewer workers."""
    machines = question.machines(workers)
    layout = machines.layout
    work = work_of(prediction)
    strategy.check(layout, LONG_RUN)
    middle = pace(strategy, work, machines, seed=question.seed)
    alone = work.time.seconds
    if smaller is not None and middle.by == "virtual world" and workers > BANDS_PLAYED_UP_TO:
        now = min(1.0, alone / middle.step_seconds)
        low, high = (now * end / smaller.efficiency for end in (smaller.efficiency_low, smaller.efficiency_high))
        high = min(1.0, high)
    else:
        low, high = _efficiency_band(strategy, work, machines, prediction, question, middle)
    return Row(
        strategy=spec,
        workers=workers,
        nodes=layout.nodes,
        batch=question.batch,
        step_seconds=middle.step_seconds,
        samples_per_second=workers * question.batch / middle.step_seconds,
        efficiency=min(1.0, alone / middle.step_seconds),
        efficiency_low=low,
        efficiency_high=high,
        compute_seconds=alone,
        exposed_seconds=max(0.0, middle.step_seconds - alone),
        bottleneck=_bottleneck(strategy, work, machines, prediction, middle),
        averages_per_step=middle.averages_per_step,
        delay_steps=middle.delay_steps,
        by=middle.by,
    )


def _efficiency_band(
    strategy: Strategy, work: Work, machines: Machines, prediction: Prediction, question: Question, middle: Pace
) -> tuple[float, float]:
    now = min(1.0, work.time.seconds / middle.step_seconds)
    if machines.layout.workers == 1:
        return now, now
    ends = []
    for compute, wire in zip(prediction.band, reversed(question.wires.band), strict=True):
        if middle.step_seconds <= work.time.seconds and compute > 1:
            ends.append(1.0)  # nothing is exposed, and at this end even less
            continue
        own = work.scaled(compute)
        slowed = replace(machines, wires=replace(machines.wires, slower=wire))
        ends.append(min(1.0, own.time.seconds / pace(strategy, own, slowed, seed=question.seed).step_seconds))
    return min(*ends, now), max(*ends, now)


def _bottleneck(strategy: Strategy, work: Work, machines: Machines, prediction: Prediction, middle: Pace) -> str:
    """What takes the largest part of the step's critical path: what bounds compute, or what the worker waits for."""
    waiting = middle.wire_seconds if middle.wire_seconds > HIDDEN * middle.step_seconds else 0.0
    computing = (middle.step_seconds - waiting) / work.time.seconds
    parts: dict[str, float] = {name: seconds * computing for name, seconds in prediction.seconds_by_bound.items()}
    for name, seconds in _waits(strategy, work, machines, waiting).items():
        parts[name] = parts.get(name, 0.0) + seconds
    return max(parts, key=lambda name: parts[name])


def _waits(strategy: Strategy, work: Work, machines: Machines, waiting: float) -> dict[str, float]:
    """Seconds by cause: first what slow workers cost all, the rest by what an average is spent on."""
    if not waiting:
        return {}
    layout, wires = machines.layout, machines.wires
    found: dict[str, float] = {}
    if not machines.alike:
        even = pace(strategy, work, replace(machines, stragglers={}, jitter=0.0)).step_seconds - work.time.seconds
        found["stragglers"] = max(0.0, waiting - even)
        waiting -= found["stragglers"]
    cost = wires.all_reduce(work.model_bytes, layout.ranks, layout)
    if cost.seconds > 0:
        found[wires.where(layout.ranks, layout)] = waiting * cost.transfer_seconds / cost.seconds
        found["latency"] = waiting * cost.latency_seconds / cost.seconds
    return found


def exposed_by_bucket(prediction: Prediction, question: Question, workers: int) -> Sequence[tuple[float, float]]:
    """When each bucket of synchronous SGD is on the wire."""
    layout = question.layout(workers)
    wires = question.wires
    return synchronous(prediction.bucketed, lambda nbytes: wires.all_reduce(nbytes, layout.ranks, layout).seconds).busy


def strategies_of(specs: Iterable[str]) -> tuple[str, ...]:
    """Each once, each checked."""
    found = tuple(dict.fromkeys(specs))
    for spec in found:
        make_strategy(spec)
    return found
