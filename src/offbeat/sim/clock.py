"""Clock: virtual time, as a heap of events.

Events are ordered by (time, priority, counter): at one time the lower priority number goes first, and among
equals the one that was scheduled first. Nothing else decides, so a replay is exact.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

Action = Callable[[], object]


class Event:
    """Something that will happen at `time`; `action` is None once it has happened or was cancelled."""

    __slots__ = ("action", "time")

    def __init__(self, time: float, action: Action) -> None:
        self.time = time
        self.action: Action | None = action


class Clock:
    """`now` stands still while an action runs, and jumps to the time of the next one."""

    __slots__ = ("_cancelled", "_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, Event]] = []
        self._count = 0
        self._cancelled = 0  # how many entries of the heap are cancelled events

    def at(self, time: float, action: Action, priority: int = 0) -> Event:
        """Run `action` at `time` (seconds), which may be now but not in the past."""
        if not self.now <= time < inf:
            raise ValueError(f"an event at {time} s cannot happen: it is {self.now} s now, give a later time")
        event = Event(time, action)
        self._count = count = self._count + 1
        heappush(self._heap, (time, priority, count, event))
        return event

    def after(self, seconds: float, action: Action, priority: int = 0) -> Event:
        """Run `action` when `seconds` have passed."""
        return self.at(self.now + seconds, action, priority)

    def cancel(self, event: Event) -> None:
        """Make sure that `event` does not happen any more; one that has happened stays as it is."""
        if event.action is None:
            return
        event.action = None
        self._cancelled += 1
        heap = self._heap
        # Cancelled entries leave the heap when they reach its top; where they are most of it, all at once.
        if self._cancelled > 256 and 2 * self._cancelled > len(heap):
            heap[:] = [entry for entry in heap if entry[3].action is not None]
            heapify(heap)
            self._cancelled = 0

    @property
    def pending(self) -> int:
        """How many events are still to come."""
        return len(self._heap) - self._cancelled

    @property
    def upcoming(self) -> float:
        """The time of the next event, infinity if there is none."""
        heap = self._heap
        while heap and heap[0][3].action is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else inf

    def step(self) -> bool:
        """Run the next event; False if there was none."""
        if self.upcoming == inf:
            return False
        time, _, _, event = heappop(self._heap)
        action, event.action = event.action, None
        assert action is not None
        self.now = time
        action()
        return True

    def run(self) -> None:
        """Run events, also those that they schedule, until none is left."""
        heap = self._heap  # the loop of `step`, written out: it runs a million times a second
        while heap:
            time, _, _, event = heappop(heap)
            action = event.action
            if action is None:
                self._cancelled -= 1
                continue
            event.action = None
            self.now = time
            action()
