"""Gauge: whether a shared CPU is quiet just now, told by steps that are always the same.

A neighbour on the other half of a core makes everything slower, by a third and for seconds; but not every kernel by as
much. So what is timed then cannot simply be scaled: better to wait until it is over.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

NEAR = 1.08  # times the least is undisturbed
LOOKS, REMEMBERED = 20, 400  # of the gauge: before it can tell, and after which it forgets
LEAST = 0.1  # the quantile that stands for the least of many looks, since one may be luck


class Gauge:
    """Made of steps; to call it is to make them once. `looks`: of a gauge of the same steps, before."""

    def __init__(self, steps: Callable[[], None], looks: Sequence[float] = ()) -> None:
        self._steps = steps
        self._seen = deque(looks, maxlen=REMEMBERED)

    def __call__(self) -> None:
        self._steps()

    @property
    def looks(self) -> tuple[float, ...]:
        """The latest ones, in seconds."""
        return tuple(self._seen)

    def look(self) -> float:
        """The seconds that the steps take now, with their own data in the caches."""
        self._steps()
        seconds = seconds_of(self._steps)
        self._seen.append(seconds)
        return seconds

    @property
    def least(self) -> float:
        """The seconds of a look while the CPU is quiet."""
        while len(self._seen) < LOOKS:
            self.look()
        return sorted(self._seen)[int(LEAST * len(self._seen))]

    def is_quiet(self, seconds: float) -> bool:
        """Whether a look of so many seconds was undisturbed."""
        return seconds <= NEAR * self.least


def seconds_of(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
