"""visit: how long a real step takes on a CPU, and each of its operations in place.

A shared CPU is not always as fast: its neighbours take cycles and bandwidth, for seconds or minutes. So every visit
also makes steps of models that are always the same, in turns with its own: their time tells how fast the CPU was.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from .real_step import RealStep
from .visits import Calls, CallTimes, EachCall, Visit, medians

WARM, FEWEST, MOST, SECONDS = 1, 4, 16, 0.3  # turns of a visit: many kernels tell more than one that is timed often
SHORT_SECONDS, MOST_REPEATS = 0.02, 5  # the references take longer than a short step, which is repeated in a turn
LONG_SECONDS = 0.1  # of a step: those before the first turn have warmed all that there is
LONGEST_SECONDS, FEWEST_OF_THEM = 0.4, 2  # would take the time of many others; of these the caches hold little


class Timed(EachCall):  # type: ignore[no-untyped-call]
    """Only looks at the clock. What it takes to call the operation from Python is counted, a microsecond or two; `Host`
    makes up for it."""

    def __init__(self, *, split: bool) -> None:
        super().__init__(split=split)
        self.seconds: list[float] = []

    def timed(self, number: int, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        self.seconds.append(time.perf_counter() - start)
        return result


def visit(
    step: RealStep,
    reference: Callable[[], None],
    *,
    fewest: int | None = None,
    most: int = MOST,
    at_most_seconds: float = SECONDS,
) -> Visit:
    """The step, the step with its operations timed, and the reference, in turns; `fewest` of them, or as many as its
    length asks for."""
    step()  # makes the optimizer's state
    recorder = Calls(step.model)
    with recorder:
        step()
    whole, beside = list[tuple[float, float, float]](), list[float]()
    calls = [CallTimes(own) for own in recorder.places]
    first = _seconds_of(step)
    longest = first >= LONGEST_SECONDS
    if fewest is None:
        fewest = FEWEST_OF_THEM if longest else FEWEST
    if not longest:
        with Timed(split=True):  # has kernels of its own, which are made when they are first called
            step()
    repeats = max(1, min(MOST_REPEATS, int(SHORT_SECONDS / first)))
    began = time.perf_counter()
    for turn in range(-WARM if first < LONG_SECONDS else 0, most):
        reference()
        reference_taken = _seconds_of(reference)
        for number in range(turn * repeats, (turn + 1) * repeats):
            timed = Timed(split=number % 2 == 0)
            if not longest:
                step()  # so that what is timed finds the caches as a step leaves them
            if number % 4 < 2:  # neither is always the first, where there are more than two
                taken = step.by_phase()
            with timed:
                step()
            if number % 4 >= 2:
                taken = step.by_phase()
            if turn >= 0:
                whole.append(taken)
                for call, seconds in zip(calls, timed.by_call(timed.seconds), strict=True):
                    call.add(seconds)
        if turn >= 0:
            beside.append(reference_taken)
        if turn + 1 >= fewest and time.perf_counter() - began > at_most_seconds:
            break
    ops = tuple(seconds for call in calls for seconds in call.ops())
    total = statistics.median(map(sum, whole))
    return Visit(total, medians(whole), tuple(recorder.kernels), ops, statistics.median(beside))


def _seconds_of(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
