"""visits_when_quiet: each of many steps has its turns when the CPU is quiet; the next ones are prepared meanwhile."""

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from .cpu_step import Prepared
from .gauge import Gauge
from .real_step import RealStep
from .visits import Visit

MOST_PREPARED = 6  # steps that wait
MOST_HELD = 0.2  # of the memory, by them
PATIENCE_SECONDS = 20.0  # of a step; then the CPU is its own as it is
PAUSE_SECONDS = 0.1  # between two looks at a CPU that is disturbed

Key = TypeVar("Key")


def visits_when_quiet(
    steps: Iterable[tuple[Key, RealStep]],
    gauge: Gauge,
    *,
    turns: int = 1,
    patience_seconds: float = PATIENCE_SECONDS,
    until: float = math.inf,
) -> Iterator[tuple[Key, Visit]]:
    """By their keys. After `until` (of `time.monotonic`) no step but the first is begun, and nothing waits."""
    source, waiting = iter(steps), deque[tuple[Key, Prepared]]()
    most_held = MOST_HELD * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    some_left, before = True, gauge.look()
    while some_left or waiting:
        now = time.monotonic()
        patient = bool(waiting) and now < until and now - waiting[0][1].since < patience_seconds
        if waiting and (gauge.is_quiet(before) or not patient):
            key, own = waiting[0]
            before = own.take_turn(before, gauge)
            if own.has_enough:
                waiting.popleft()
                some_left = some_left and time.monotonic() < until
                yield key, own.visit()
            continue
        if some_left and len(waiting) < MOST_PREPARED and sum(own.held_nbytes for _, own in waiting) < most_held:
            following = next(source, None)
            some_left = following is not None
            if following is not None:
                waiting.append((following[0], Prepared(following[1], turns=turns)))
        elif patient:
            time.sleep(PAUSE_SECONDS)
        before = gauge.look()
