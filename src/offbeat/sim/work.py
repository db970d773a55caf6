"""Work and processes in virtual time: a generator runs until it yields work that is not done, and is resumed then.

Nobody is ever resumed from inside another generator's call: works are completed by events of the clock alone, so
code between two yields is atomic.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from ..comm import Steps
from ..errors import OffbeatError, Stopped
from ..trace import Trace
from .clock import Clock

T = TypeVar("T")


class SimWork(Generic[T]):
    """Done when `complete` or `fail` is called; `name` says what it is, in traces and in stories of deadlock."""

    __slots__ = ("_error", "_then", "_value", "done", "found_idle", "name", "on_stop")

    def __init__(self, name: str, on_stop: Callable[["SimWork[T]"], None] | None = None) -> None:
        self.name = name
        self.done = False
        self.found_idle = False  # told of averages
        self.on_stop = on_stop  # given for work that a stop interrupts
        self._value: T | None = None
        self._error: OffbeatError | None = None
        self._then: Callable[[], None] | None = None

    def complete(self, value: T) -> None:
        self.done, self._value = True, value
        self._wake()

    def fail(self, error: OffbeatError) -> None:
        self.done, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()

    def then(self, action: Callable[[], None]) -> None:
        """The one process that waits for it."""
        assert self._then is None, f"two processes wait for the same {self.name}"
        self._then = action

    def result(self) -> T:
        if not self.done:
            raise OffbeatError(f"{self.name} is not done: wait() for it before you ask for its result")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # done: T itself, which may be None


class SimProcess(SimWork[None]):
    """Runs a generator; what it waits for is written to `trace` if given."""

    __slots__ = ("_clock", "_started", "_steps", "_stopping", "_trace", "waits_for")

    def __init__(self, name: str, steps: Steps, clock: Clock, trace: Trace | None = None) -> None:
        super().__init__(name)
        self._clock, self._steps, self._trace = clock, steps, trace
        self._stopping = False
        self._started = 0.0
        self.waits_for: SimWork[Any] | None = None
        clock.after(0.0, self._begin)

    def stop(self) -> None:
        self._stopping = True
        if self.waits_for is not None and self.waits_for.on_stop is not None:
            self.waits_for.on_stop(self.waits_for)

    def _begin(self) -> None:
        self._advance(None, None)

    def _resume(self) -> None:
        work, self.waits_for = self.waits_for, None
        assert work is not None
        if self._trace is not None:
            seconds = self._clock.now - self._started
            if work.name == "compute":
                self._trace.add("compute", "step", self._started, seconds)
            elif seconds > 0:
                self._trace.add("wait", work.name, self._started, seconds)
        try:
            value = work.result()
        except OffbeatError as error:
            self._advance(None, error)
        else:
            self._advance(value, None)

    def _advance(self, value: Any, error: OffbeatError | None) -> None:
        while True:
            try:
                work = cast("SimWork[Any]", self._steps.send(value) if error is None else self._steps.throw(error))
            except (StopIteration, Stopped):
                self.complete(None)
                return
            if self._stopping and work.on_stop is not None:
                work.on_stop(work)
            if not work.done:
                self._started = self._clock.now
                self.waits_for = work
                work.then(self._resume)
                return
            try:
                value, error = work.result(), None
            except OffbeatError as failure:
                value, error = None, failure


def stopped(clock: Clock) -> Callable[[SimWork[Any]], None]:
    """What a stop does to work that may be interrupted: it fails with `Stopped`, through the clock if not over yet."""

    def on_stop(work: SimWork[Any]) -> None:
        def interrupt() -> None:
            work.fail(Stopped("asked to stop"))

        if work.done:
            interrupt()
        else:
            clock.after(0.0, interrupt)

    return on_stop
