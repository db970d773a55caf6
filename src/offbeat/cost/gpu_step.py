"""visit_on_gpu: how long a real step takes on a GPU, and the device's own time of each of its operations in place.

Whole steps are made back to back, as training does: the host issues the next one while the device is still at work.
Then single ones, to see how long the host takes. In others every call is marked, and torch's profiler says which
kernels ran for it, and how long.

A shared host is not always as fast, and may be half as fast again a second later. So a visit is made of short turns,
each between two steps that are always the same and that wait for the host alone: their time tells how fast it was just
then. What the device does takes as long as ever.

All on one core: backward has a thread of its own, and where the two wander over the cores of a machine a step in which
the device waits for them takes up to a quarter longer, and never twice the same.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from ..errors import OffbeatError
from .real_step import RealStep
from .visits import Calls, CallTimes, EachCall, Visit, medians, slower_host

MARK = "offbeat call "
WARM = 3  # steps before any is timed
TURNS, FEWEST_TURNS, TURNS_SECONDS = 8, 3, 2.0  # after so many seconds there are no more than the fewest
CLEARLY = 0.6  # of a step's time at most is the host's: the device is waited for, also by a host somewhat slower
SET_SECONDS, FEWEST, MOST = 0.03, 3, 100  # of the steps that a turn makes back to back: how long, how many
ALONE = 3  # steps of a turn in which the host has the device to itself
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


Phases = tuple[float, float, float]


@dataclass(frozen=True)
class Turn:
    """Seconds."""

    reference: float  # what the host took for a step of the reference, before and after
    whole: float  # of a step, back to back
    phases: Phases  # of the host, in a step that has the device to itself


def visit_on_gpu(step: RealStep, reference: Callable[[], None], *, turns: int = TURNS) -> Visit:
    with on_one_core():
        return _visit(step, reference, turns)


def _visit(step: RealStep, reference: Callable[[], None], turns: int) -> Visit:
    gap = launch_gap(step.device)
    for _ in range(WARM):
        reference()
        step()
    recorder = Calls(step.model)
    with recorder:
        step()
    count = max(FEWEST, min(MOST, round(SET_SECONDS / _back_to_back(step, FEWEST))))
    made, began = list[Turn](), time.perf_counter()
    while len(made) < _enough(made, turns, time.perf_counter() - began):
        made.append(_turn(step, reference, count))
    calls = [CallTimes(own) for own in recorder.places]
    for split in SPLIT_IN_TURN:
        marked = Marked(split=split)
        events = _profiled(lambda marked=marked: _inside(marked, step), step.device)  # type: ignore[misc]
        for call, seconds in zip(calls, marked.by_call(marked.seconds(events, gap)), strict=True):
            call.add(seconds)
    ops = tuple(seconds for call in calls for seconds in call.ops())
    if sum(seconds > 0 for seconds in ops) < FEWEST_SEEN * len(ops):
        raise OffbeatError("torch's profiler missed kernels of a step: is another profiler at work on this GPU?")
    usual = at_one_speed(made, sum(ops))
    return Visit(usual.whole, usual.phases, tuple(recorder.kernels), ops, usual.reference, on_gpu=True)


def _enough(made: Sequence[Turn], turns: int, seconds: float) -> int:
    """How many of these turns tell how long the step takes, after so many seconds of them."""
    if made and all(sum(turn.phases) < CLEARLY * turn.whole for turn in made):
        return 1
    return turns if seconds < TURNS_SECONDS else min(turns, FEWEST_TURNS)


def at_one_speed(turns: Sequence[Turn], device_seconds: float) -> Turn:
    """Medians, as if the host had been in every turn as fast as in the median one."""
    usual = statistics.median(turn.reference for turn in turns)
    shares = [usual / turn.reference for turn in turns]
    phases = [_slower(turn.phases, share) for turn, share in zip(turns, shares, strict=True)]
    whole = [
        slower_host(turn.whole, sum(turn.phases), device_seconds, share)
        for turn, share in zip(turns, shares, strict=True)
    ]
    return Turn(usual, statistics.median(whole), medians(phases))


def _slower(phases: Phases, times: float) -> Phases:
    forward, backward, optimizer = phases
    return forward * times, backward * times, optimizer * times


def _turn(step: RealStep, reference: Callable[[], None], count: int) -> Turn:
    before = _seconds_of_the_host(reference, step.device)
    whole, phases = _back_to_back(step, count), _alone(step)
    return Turn((before + _seconds_of_the_host(reference, step.device)) / 2, whole, phases)


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


def _back_to_back(step: RealStep, count: int) -> float:
    torch.cuda.synchronize(step.device)
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize(step.device)
    return (time.perf_counter() - start) / count


def _alone(step: RealStep) -> Phases:
    """The device has nothing left to do when the host begins, so that it never waits."""
    found = []
    for _ in range(ALONE):
        torch.cuda.synchronize(step.device)
        found.append(step.by_phase())
    return medians(found)


def _seconds_of_the_host(reference: Callable[[], None], device: torch.device) -> float:
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    reference()
    return time.perf_counter() - began


def _inside(marked: Marked, step: RealStep) -> None:
    with marked:
        step()


def _profiled(call: Callable[[], None], device: torch.device) -> list[FunctionEvent]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        call()
        torch.cuda.synchronize(device)
    return list(seen.events() or ())
