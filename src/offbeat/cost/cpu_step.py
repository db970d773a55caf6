"""Prepared: how long a real step takes on a CPU, and each of its operations in place.

A shared CPU is not always as fast: its neighbours take cycles and bandwidth, for seconds or minutes. So it is timed in
turns, each between two looks at a gauge that tells how fast the CPU is; the quietest ones count.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .gauge import Gauge, seconds_of
from .real_step import RealStep
from .visits import Calls, CallTimes, EachCall, Visit, medians

TURN_SECONDS, MOST_PAIRS = 0.25, 3  # looks at the gauge take longer than a short step, which is repeated in a turn
WARM_SECONDS, MOST_WARM = 0.02, 5  # steps before those that are timed: after a look the first takes half as long again,
# the second a tenth, and from the fifth on they are as in training
LONG_SECONDS = 0.4  # of a step: would take the time of many others, and outlast the quiet; the caches hold little of it
MOST_TURNS = 4  # for each that is wanted: then the quietest have to do


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


@dataclass
class Turn:
    """Steps between two looks at the gauge."""

    before: float  # of the gauge, seconds
    after: float = 0.0
    phases: list[tuple[float, float, float]] = field(default_factory=list)  # of each step
    calls: list[list[tuple[float, ...]]] = field(default_factory=list)  # of each step whose operations were timed

    @property
    def slower_look(self) -> float:
        return max(self.before, self.after)


class Prepared:
    """A step that is warm, and the turns that it has had."""

    def __init__(self, step: RealStep, *, turns: int = 1) -> None:
        self._step, self._wanted = step, turns
        self._made: list[Turn] = []
        self._quiet = 0
        self.since = time.monotonic()
        step()  # makes the optimizer's state
        self._recorder = Calls(step.model)
        with self._recorder:
            step()
        seconds = seconds_of(step)
        self._is_long = seconds >= LONG_SECONDS
        if not self._is_long:
            _timed(step, split=True)  # has kernels of its own, which are made when they are first called
        self._pairs = max(1, min(MOST_PAIRS, int(TURN_SECONDS / (4 * seconds))))
        self._warm = 0 if self._is_long else max(1, min(MOST_WARM, int(WARM_SECONDS / seconds)))

    @property
    def held_nbytes(self) -> int:
        """While it waits."""
        return self._step.held_nbytes

    @property
    def has_enough(self) -> bool:
        return self._quiet >= self._wanted or len(self._made) >= self._wanted * (1 if self._is_long else MOST_TURNS)

    def take_turn(self, before: float, gauge: Gauge) -> float:
        """After a look at the gauge; returns what the next one says."""
        turn = _turn(self._step, before, self._pairs, warm=self._warm)
        turn.after = gauge.look()
        self._made.append(turn)
        self._quiet += gauge.is_quiet(turn.slower_look)
        return turn.after

    def visit(self) -> Visit:
        """What the quietest turns have found."""
        kept = sorted(self._made, key=lambda turn: turn.slower_look)[: self._wanted]
        looks = [look for turn in kept for look in (turn.before, turn.after)]
        calls = [CallTimes(own) for own in self._recorder.places]
        for times in (times for turn in kept for times in turn.calls):
            for call, seconds in zip(calls, times, strict=True):
                call.add(seconds)
        phases = [each for turn in kept for each in turn.phases]
        return Visit(
            statistics.median(map(sum, phases)),
            medians(phases),
            tuple(self._recorder.kernels),
            tuple(seconds for call in calls for seconds in call.ops()),
            statistics.mean(looks),
            quiet=self._quiet >= self._wanted,
        )


def _turn(step: RealStep, before: float, pairs: int, *, warm: int) -> Turn:
    """Pairs of steps whose operations are timed, each beside one by phase; neither is always the first."""
    turn = Turn(before)
    for _ in range(warm):
        step()  # so that what is timed finds the caches as a step leaves them
    for _ in range(pairs):
        turn.phases.append(step.by_phase())
        turn.calls.append(_timed(step, split=True))
        turn.calls.append(_timed(step, split=False))
        turn.phases.append(step.by_phase())
    return turn


def _timed(step: RealStep, *, split: bool) -> list[tuple[float, ...]]:
    timed = Timed(split=split)
    with timed:
        step()
    return timed.by_call(timed.seconds)
