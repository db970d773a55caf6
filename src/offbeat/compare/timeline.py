"""Timeline: what every worker of a lap did and when, as bars on one clock, few enough to draw.

Of a strategy of ours: steps, the waits within and between them, and what travelled meanwhile. Of a rival: its steps.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from ..layout import Ranks
from ..report.table import human_bytes
from ..trace import SAME_INSTANT, Event
from .lap import Lap
from .worker import Report

What = Literal["compute", "wait", "communicate", "step"]  # step: of a rival, who does not tell what it did in it
WHATS: tuple[What, ...] = ("compute", "wait", "communicate", "step")
TOO_SHORT = 0.002  # of a step: a wait that nobody would see
PART, TOGETHER = 0.25, 0.02  # of a step: what begins as closely together, or follows and is as short, is one exchange
MOST_TRACKS = 4


@dataclass(frozen=True)
class Bar:
    what: What
    name: str
    start: float  # seconds since the first worker began
    seconds: float
    nbytes: int = 0
    peers: Ranks = ()
    parts: int = 1
    track: int = 0  # those in flight at once lie beside each other

    @property
    def end(self) -> float:
        return self.start + self.seconds

    def words(self, rank: int) -> str:
        others = [str(peer) for peer in self.peers if peer != rank]
        sent = f": {human_bytes(self.nbytes)}" if self.nbytes else ""
        return (
            self.name
            + (f" with {', '.join(others)}" if others else "")
            + sent
            + (f" in {self.parts} parts" if self.parts > 1 else "")
        )


def timeline(lap: Lap, most: int) -> list[list[Bar]]:
    """The bars of every worker: of the whole lap, or of its end, where that would be more than `most` of one worker."""
    zero = min(report.began_at for report in lap.reports)
    workers = [_bars(report, zero) for report in lap.reports]
    since = max(bars[max(0, len(bars) - most)].start for bars in workers)
    since = min(since, *(bars[-1].start for bars in workers))  # a fast worker may have ended before that
    return [[bar for bar in bars if bar.end > since + SAME_INSTANT][-most:] for bars in workers]


def step_seconds(workers: Sequence[Sequence[Bar]]) -> float:
    """From the start of one step to that of the next, in the middle of all."""
    gaps = []
    for bars in workers:
        starts = list({bar.name: bar.start for bar in reversed(bars) if bar.what in ("compute", "step")}.values())[::-1]
        gaps += [after - before for before, after in pairwise(starts)]
    return statistics.median(gaps) if gaps else max((bar.end for bars in workers for bar in bars), default=1.0)


def _bars(report: Report, zero: float) -> list[Bar]:
    """Sorted by their start; at least one, as a worker makes at least one step."""
    events = sorted((Event.from_dict(record) for record in report.events), key=lambda event: event.start)
    computing = [event for event in events if event.kind == "compute"]
    if not computing:
        moments = [report.began_at, *report.step_ends]
        pairs = pairwise(moments)
        return [
            Bar("step", f"step {k}", before - zero, after - before) for k, (before, after) in enumerate(pairs, start=1)
        ]
    step = statistics.median(event.seconds for event in computing)
    waits = [event for event in events if event.kind == "wait" and event.seconds > TOO_SHORT * step]
    bars = [
        *_steps(computing, waits, len(report.step_ends)),
        *(Bar("wait", f"waits for {_article(event.name)}", event.start, event.seconds) for event in waits),
        *_exchanges([event for event in events if event.kind == "communicate"], step),
    ]
    shift = _shift(report, computing) - zero
    moved = (replace(bar, start=bar.start + shift) for bar in bars)
    return sorted((bar for bar in moved if bar.end > 0), key=lambda bar: bar.start)


def _shift(report: Report, computing: Sequence[Event]) -> float:
    """From the clock of the events, which began with the strategy, to that of the report: a step begins where the one
    before it ended."""
    ends = [report.began_at, *report.step_ends][-len(computing) - 1 : -1]
    pairs = list(zip(ends, computing[-len(ends) :], strict=True))
    return statistics.median(end - event.start for end, event in pairs[1:] or pairs)


def _steps(computing: Sequence[Event], waits: Sequence[Event], steps: int) -> Iterator[Bar]:
    """A step's own seconds leave out those in which it waited for gradients, wherever in it that was."""
    left = list(reversed(waits))
    for number, event in enumerate(computing, start=max(0, steps - len(computing)) + 1):
        at, end, name = event.start, event.start + event.seconds, f"step {number}"
        while left and left[-1].start < end - SAME_INSTANT:
            wait = left.pop()
            if wait.start >= at:
                yield Bar("compute", name, at, wait.start - at)
                at, end = wait.start + wait.seconds, end + wait.seconds
        yield Bar("compute", name, at, end - at)


def _exchanges(events: Sequence[Event], step: float) -> list[Bar]:
    """The parts of one exchange as one bar."""
    found: list[Bar] = []
    latest: dict[tuple[str, Ranks], int] = {}  # where in `found`
    for event in events:
        what = (event.name, event.peers)
        bar = found[latest[what]] if what in latest else None
        short = event.seconds < PART * step
        if bar is not None and event.start <= (bar.end if short else bar.start) + TOGETHER * step:
            end = max(bar.end, event.start + event.seconds)
            nbytes = bar.nbytes + event.nbytes
            found[latest[what]] = replace(bar, seconds=end - bar.start, nbytes=nbytes, parts=bar.parts + 1)
        else:
            latest[what] = len(found)
            found.append(Bar("communicate", event.name, event.start, event.seconds, event.nbytes, event.peers))
    return list(_on_tracks(found))


def _on_tracks(bars: Sequence[Bar]) -> Iterator[Bar]:
    busy_until = [-math.inf] * MOST_TRACKS
    for bar in bars:
        free = (track for track, until in enumerate(busy_until) if until <= bar.start + SAME_INSTANT)
        track = next(free, MOST_TRACKS - 1)
        busy_until[track] = bar.end
        yield replace(bar, track=track)


def tracks(workers: Sequence[Sequence[Bar]]) -> int:
    return 1 + max((bar.track for bars in workers for bar in bars), default=0)


def _article(name: str) -> str:
    return name if name.endswith("s") else f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"
