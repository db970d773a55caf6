"""The driver: runs a strategy's generators in real time under the two rules.

It holds the worker's lock while strategy code runs and releases it while it waits, so a background process and the
step hooks never interleave between two yields.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from .comm import Steps, Work
from .errors import OffbeatError, Stopped
from .trace import Trace

T_co = TypeVar("T_co", covariant=True)


class RealWork(Work[T_co], Protocol[T_co]):
    """Work in real time. Where it has a `stop` too, a stop of its process interrupts it."""

    def wait(self) -> object:
        """Block until done, without using the processor; never raises what went wrong."""
        ...


class Turns:
    """A lock that is handed on in the order of asking, so that a busy background process starves nobody."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def take(self) -> bool:
        """Acquire if that needs no waiting."""
        with self._mutex:
            if self._held:
                return False
            self._held = True
            return True

    def acquire(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            ticket = threading.Lock()
            ticket.acquire()
            self._waiting.append(ticket)
        try:
            ticket.acquire()  # until it is handed to us
        except BaseException:  # Ctrl-C: leave the queue as we found it
            with self._mutex:
                handed = ticket not in self._waiting
                if not handed:
                    self._waiting.remove(ticket)
            if handed:
                self.release()
            raise

    def release(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False

    def give_way(self) -> None:
        """Let those go first who wait."""
        if self._waiting:
            self.release()
            self.acquire()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *story: object) -> None:
        self.release()


class Driver:
    """One per worker. `clock` gives seconds since the run began."""

    def __init__(self, clock: Callable[[], float], trace: Trace) -> None:
        self._clock, self._trace = clock, trace
        self._turns = Turns()
        self._processes: list[RealProcess] = []

    def run(self, steps: Steps) -> None:
        """Run to the end, in this thread; waits are traced."""
        for process in self._processes:
            process.raise_failure()
        if not self._turns.take():
            asked = self._clock()
            self._turns.acquire()
            self._trace.add("wait", "lock", asked, self._clock() - asked)
        try:
            self._advance(steps, self._wait_traced)
        finally:
            self._turns.release()

    def spawn(self, steps: Steps) -> "RealProcess":
        """Run in a thread of its own. What it raises is raised again by the next `run`."""
        process = RealProcess(steps, self)
        self._processes = [p for p in self._processes if not p.done or p.failed] + [process]
        process.begin()
        return process

    def _advance(self, steps: Steps, wait: Callable[[RealWork[Any]], None]) -> None:
        value, error = None, None
        while True:
            try:
                work = cast("RealWork[Any]", steps.send(value) if error is None else steps.throw(error))
            except StopIteration:
                return
            wait(work)
            try:
                value, error = work.result(), None
            except OffbeatError as failure:
                value, error = None, failure

    def _wait_traced(self, work: RealWork[Any]) -> None:
        if work.done:
            self._turns.give_way()
            return
        start = self._clock()
        self._wait(work)
        self._trace.add("wait", getattr(work, "name", "wait"), start, self._clock() - start)

    def _wait(self, work: RealWork[Any]) -> None:
        self._turns.release()
        try:
            work.wait()
        finally:
            self._turns.acquire()


class RealProcess:
    """A generator in a thread of its own."""

    name = "process"

    def __init__(self, steps: Steps, driver: Driver) -> None:
        self._steps, self._driver = steps, driver
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._stopping = False
        self._waits_for: RealWork[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="offbeat process", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def wait(self) -> None:
        self._ended.wait()

    def result(self) -> None:
        _check_done(self)
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Call it from strategy code, that is, with the worker's lock held."""
        self._stopping = True
        _interrupt(self._waits_for)

    def _run(self) -> None:
        try:
            with self._driver._turns:
                self._driver._advance(self._steps, self._wait)
        except Stopped:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _wait(self, work: RealWork[Any]) -> None:
        if work.done:
            self._driver._turns.give_way()
        if self._stopping:
            _interrupt(work)  # also what is over: else a loop of short sleeps would never hear of it
        if not work.done:
            self._waits_for = work
            self._driver._wait(work)
            self._waits_for = None


def _interrupt(work: RealWork[Any] | None) -> None:
    stop = getattr(work, "stop", None)
    if stop is not None:
        stop()


def _check_done(work: RealWork[Any]) -> None:
    if not work.done:
        name = getattr(work, "name", "work")
        raise OffbeatError(f"{name} is not done: wait() for it before you ask for its result")


class Finished:
    """Work that was done before it began."""

    done = True
    found_idle = False
    name = "nothing"

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> None:
        pass

    def result(self) -> Any:
        return self._value


class Sleep:
    """Done when so many seconds have passed; a stop ends it with `Stopped`."""

    name = "sleep"

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock, self._until = clock, clock() + seconds
        self._stopped = threading.Event()

    @property
    def done(self) -> bool:
        return self._stopped.is_set() or self._clock() >= self._until

    def wait(self) -> None:
        while not self.done:  # a wait may end a moment early
            self._stopped.wait(max(0.0, self._until - self._clock()))

    def stop(self) -> None:
        self._stopped.set()

    def result(self) -> None:
        _check_done(self)
        if self._stopped.is_set():
            raise Stopped("asked to stop")
