"""Sweeps: what a plan would say if one thing were different: batch, FLOP/s, memory, link, cluster; strong scaling."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ..errors import BadInput
from ..strategies import make_strategy
from .device_profile import DeviceProfile
from .pace import closed_form, pace
from .plan import Answer, Question, work_of
from .predict import Prediction, predict
from .roofline import MATRIX_KINDS, Device

TIMES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
PLAYED_UP_TO = 64  # workers in a sweep, of strategies without a closed form
STRONG_TIMES = 8  # the batch of strong scaling, against that of a worker


@dataclass(frozen=True)
class Knob:
    """One thing that is turned."""

    name: str
    values: tuple[float, ...]  # in `unit`
    unit: str
    speeds: tuple[float, ...]  # samples per second of all workers; NaN: does not fit the memory
    now: float  # the value of the plan itself


def sweeps(answer: Answer, strategy: str = "ddp") -> list[Knob]:
    """The five knobs, each turned alone."""
    question = answer.question
    device = question.profile.device
    ops = [op for op in answer.prediction.trace.ops if op.kind in MATRIX_KINDS] or answer.prediction.trace.ops
    flops = device.flops_rate(max(ops, key=lambda op: op.flops).kernel)

    def turned(make: Callable[[float], Question]) -> tuple[float, ...]:
        return tuple(_speed(make(times), strategy) for times in TIMES)

    def knob(name: str, now: float, unit: str, make: Callable[[float], Question]) -> Knob:
        return Knob(name, tuple(now * times for times in TIMES), unit, turned(make), now)

    return [
        _batch_knob(question, strategy),
        knob("FLOP/s of a worker", flops / 1e12, "TFLOP/s", lambda x: _with_device(question, _faster(device, x))),
        knob("memory bandwidth", device.bytes_per_second / 1e9, "GB/s",
             lambda x: _with_device(question, replace(device, bytes_per_second=device.bytes_per_second * x))),
        knob("bandwidth of the link", question.wires.link.bytes_per_second * 8 / 1e9, "Gbit/s",
             lambda x: _with_link(question, x)),
        _cluster_knob(question, strategy),
    ]  # fmt: skip


@dataclass(frozen=True)
class Strong:
    """One batch, divided among more and more workers."""

    batch: int  # of all workers
    workers: tuple[int, ...]
    speeds: dict[str, tuple[float, ...]]  # by strategy
    alone: tuple[float, ...]  # workers that need not talk: smaller batches use a device less well


def strong_scaling(answer: Answer) -> Strong:
    """Of the largest batch, up to 8 times that of the plan, that one worker can hold."""
    question = answer.question
    batch = _strong_batch(question)
    sizes = [workers for workers in question.sizes if batch % workers == 0]
    speeds: dict[str, list[float]] = {name: [] for name in question.strategies}
    alone = []
    for workers in sizes:
        divided = replace(question, batch=batch // workers)
        alone.append(batch / _prediction(divided).time.seconds)
        for name in question.strategies:
            speeds[name].append(_speed(divided, name, workers))
    return Strong(batch, tuple(sizes), {name: tuple(each) for name, each in speeds.items()}, tuple(alone))


def _strong_batch(question: Question) -> int:
    for times in range(int(math.log2(STRONG_TIMES)), 0, -1):
        larger = replace(question, batch=question.batch << times)
        with suppress(BadInput):
            return larger.step.batch
    return question.batch


def _speed(question: Question, name: str, workers: int | None = None) -> float:
    """Samples per second of all workers; NaN where it does not fit, or would have to be played out for long."""
    workers = question.workers if workers is None else workers
    strategy = make_strategy(name)
    machines = question.machines(workers)
    if workers > PLAYED_UP_TO and (closed_form(strategy) is None or not machines.alike):
        return math.nan
    try:
        work = work_of(_prediction(question))
    except BadInput:
        return math.nan
    return workers * question.batch / pace(strategy, work, machines, seed=question.seed).step_seconds


def _prediction(question: Question) -> Prediction:
    return predict(question.step, question.profile)


def _batch_knob(question: Question, strategy: str) -> Knob:
    batches = sorted({max(1, round(question.batch * times)) for times in TIMES})
    speeds = tuple(_speed(replace(question, batch=batch), strategy) for batch in batches)
    return Knob("batch of a worker", tuple(map(float, batches)), "samples", speeds, float(question.batch))


def _cluster_knob(question: Question, strategy: str) -> Knob:
    sizes = list(_cluster_sizes(question))
    per_node, stragglers = question.workers_per_node, question.stragglers.items()
    left = [{rank: factor for rank, factor in stragglers if rank < nodes * per_node} for nodes in sizes]
    clusters = [replace(question, nodes=nodes, stragglers=own) for nodes, own in zip(sizes, left, strict=True)]
    speeds = tuple(_speed(cluster, strategy) for cluster in clusters)
    workers = tuple(float(nodes * question.workers_per_node) for nodes in sizes)
    return Knob("workers", workers, "", speeds, float(question.workers))


def _cluster_sizes(question: Question) -> Iterator[int]:
    nodes = 1
    while nodes < 4 * question.nodes:
        yield nodes
        nodes *= 2
    yield 4 * question.nodes


def _faster(device: Device, times: float) -> Device:
    return replace(
        device,
        flops_per_second={dtype: rate * times for dtype, rate in device.flops_per_second.items()},
        tf32_flops_per_second=None if device.tf32_flops_per_second is None else device.tf32_flops_per_second * times,
        vector_flops_per_second=None
        if device.vector_flops_per_second is None
        else device.vector_flops_per_second * times,
    )


def _with_device(question: Question, device: Device) -> Question:
    profile: DeviceProfile = replace(question.profile, device=device)
    return replace(question, profile=profile)


def _with_link(question: Question, times: float) -> Question:
    link = replace(question.wires.link, bytes_per_second=question.wires.link.bytes_per_second * times)
    return replace(question, wires=replace(question.wires, link=link))
