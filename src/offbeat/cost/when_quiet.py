"""visits_when_quiet: each of many steps has its turns when the CPU is quiet; the next ones are prepared meanwhile."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .cpu_step import Prepared
from .failed import Failed
from .gauge import Gauge
from .real_step import RealStep
from .visits import Visit

MOST_PREPARED = 6  # steps that wait
MOST_HELD = 0.2  # of the memory, by them
PATIENCE_SECONDS = 20.0  # of a step; then the CPU is its own as it is
PAUSE_SECONDS = 0.1  # between two looks at a CPU that is disturbed

Key = TypeVar("Key")


def visits_when_quiet(
    steps: Iterable[tuple[Key, Callable[[], RealStep]]],
    gauge: Gauge,
    *,
    turns: int = 1,
    patience_seconds: float = PATIENCE_SECONDS,
    until: float = math.inf,
) -> Iterator[tuple[Key, Visit | Failed]]:
    """By their keys, also those that fail. After `until` (of `time.monotonic`) no step but the first is begun, and
    nothing waits."""
    source, waiting = iter(steps), deque[tuple[Key, Prepared]]()
    most_held = MOST_HELD * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    some_left, before = True, gauge.look()
    while some_left or waiting:
        now = time.monotonic()
        patient = bool(waiting) and now < until and now - waiting[0][1].since < patience_seconds
        if waiting and (gauge.is_quiet(before) or not patient):
            key, own = waiting[0]
            found: Visit | Failed | None = None
            try:
                before = own.take_turn(before, gauge)
                found = own.visit() if own.has_enough else None
            except Exception as error:
                found = Failed.of(error)
            if found is not None:
                waiting.popleft()
                some_left = some_left and time.monotonic() < until
                yield key, found
            continue
        if some_left and len(waiting) < MOST_PREPARED and sum(own.held_nbytes for _, own in waiting) < most_held:
            following = next(source, None)
            some_left = following is not None
            if following is not None:
                key, prepared = following[0], _prepared(following[1], turns)
                if isinstance(prepared, Failed):
                    some_left = time.monotonic() < until
                    yield key, prepared
                else:
                    waiting.append((key, prepared))
        elif patient:
            time.sleep(PAUSE_SECONDS)
        before = gauge.look()


def _prepared(make: Callable[[], RealStep], turns: int) -> Prepared | Failed:
    try:
        return Prepared(make(), turns=turns)
    except Exception as error:
        return Failed.of(error)
