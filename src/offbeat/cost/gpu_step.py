"""visit_on_gpu: how long a real step takes on a GPU, and the device's own time of each of its operations in place.

Whole steps are made back to back, as training does: the host issues the next one while the device is still at work.
Then single ones, to see how long the host takes. In others every call is marked, and torch's profiler says which
kernels ran for it, and how long.

A shared host is not always as fast, so every visit also makes steps that are always the same and that wait for the host
alone: their time tells how fast it was. What the device does takes as long as ever.

All on one core: backward has a thread of its own, and where the two wander over the cores of a machine a step in which
the device waits for them takes up to a quarter longer, and never twice the same.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from ..errors import OffbeatError
from .real_step import RealStep
from .visits import Calls, CallTimes, EachCall, Visit, medians

MARK = "offbeat call "
WARM, SETS, SET_SECONDS, FEWEST, MOST = 3, 5, 0.04, 3, 100  # of steps back to back
ALONE, ALONE_SECONDS = 16, 0.15  # steps of the host, at most
BESIDE = 3  # steps of the reference before, between and after
SPLIT_IN_TURN = (True, False)  # of the profiled steps
FEWEST_SEEN = 0.8  # of a step's operations: a few stay on the host
COVER_CYCLES, TINY_KERNELS = 5_000_000, 300  # a pause of about 3 ms, while the host queues tiny kernels behind it


class Marked(EachCall):  # type: ignore[no-untyped-call]
    def timed(self, number: int, call: Callable[[], Any]) -> Any:
        with record_function(f"{MARK}{number}"):
            return call()

    def seconds(self, events: Iterable[FunctionEvent], gap: float) -> list[float]:
        """The device's time for each number: its kernels, and what lies between two."""
        found = [0.0] * self._count
        for event in events:
            if not event.kernels:
                continue
            mark: FunctionEvent | None = event
            while mark is not None and not mark.name.startswith(MARK):
                mark = mark.cpu_parent
            if mark is not None:
                found[int(mark.name.removeprefix(MARK))] += sum(1e-6 * each.duration + gap for each in event.kernels)
        return found


def visit_on_gpu(step: RealStep, reference: Callable[[], None], *, sets: int = SETS) -> Visit:
    with on_one_core():
        return _visit(step, reference, sets)


def _visit(step: RealStep, reference: Callable[[], None], sets: int) -> Visit:
    gap = launch_gap(step.device)
    for _ in range(WARM):
        reference()
        step()
    recorder = Calls(step.model)
    with recorder:
        step()
    beside = _seconds_of_the_host(reference, step.device)
    whole = _back_to_back(step, sets)
    beside += _seconds_of_the_host(reference, step.device)
    phases = _alone(step)
    beside += _seconds_of_the_host(reference, step.device)
    calls = [CallTimes(own) for own in recorder.places]
    for split in SPLIT_IN_TURN:
        marked = Marked(split=split)
        events = _profiled(lambda marked=marked: _inside(marked, step), step.device)  # type: ignore[misc]
        for call, seconds in zip(calls, marked.by_call(marked.seconds(events, gap)), strict=True):
            call.add(seconds)
    ops = tuple(seconds for call in calls for seconds in call.ops())
    if sum(seconds > 0 for seconds in ops) < FEWEST_SEEN * len(ops):
        raise OffbeatError("torch's profiler missed kernels of a step: is another profiler at work on this GPU?")
    return Visit(whole, phases, tuple(recorder.kernels), ops, statistics.median(beside), on_gpu=True)


@contextmanager
def on_one_core() -> Iterator[None]:
    """All threads of this process, and those that it makes meanwhile."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    try:
        _run_on({max(cores)})
        yield
    finally:
        _run_on(cores)


def _run_on(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has just ended
            os.sched_setaffinity(int(thread), cores)


@cache
def launch_gap(device: torch.device) -> float:
    """The seconds from the end of a kernel to the start of the next that is queued behind it."""
    numbers = torch.zeros(1024, device=device)

    def tiny() -> None:
        for _ in range(TINY_KERNELS):
            numbers.add_(1.0)

    tiny()
    periods = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        torch.cuda._sleep(COVER_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        tiny()
        end.record()
        torch.cuda.synchronize(device)
        periods.append(1e-3 * begin.elapsed_time(end) / TINY_KERNELS)
    kernels = [each.duration for event in _profiled(tiny, device) for each in event.kernels]
    return max(0.0, statistics.median(periods) - 1e-6 * statistics.median(kernels)) if kernels else 0.0


def _back_to_back(step: RealStep, sets: int) -> float:
    def seconds_of(count: int) -> float:
        torch.cuda.synchronize(step.device)
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize(step.device)
        return (time.perf_counter() - start) / count

    count = max(FEWEST, min(MOST, round(SET_SECONDS / seconds_of(FEWEST))))
    return statistics.median(seconds_of(count) for _ in range(sets))


def _alone(step: RealStep) -> tuple[float, float, float]:
    """The device has nothing left to do when the host begins, so that it never waits."""
    found, began = list[tuple[float, float, float]](), time.perf_counter()
    while len(found) < FEWEST or (len(found) < ALONE and time.perf_counter() - began < ALONE_SECONDS):
        torch.cuda.synchronize(step.device)
        found.append(step.by_phase())
    return medians(found)


def _seconds_of_the_host(reference: Callable[[], None], device: torch.device) -> list[float]:
    taken = []
    for _ in range(BESIDE):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        reference()
        taken.append(time.perf_counter() - began)
    torch.cuda.synchronize(device)
    return taken


def _inside(marked: Marked, step: RealStep) -> None:
    with marked:
        step()


def _profiled(call: Callable[[], None], device: torch.device) -> list[FunctionEvent]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize(device)
    return list(seen.events() or ())
