"""Work in the real world: completed by the endpoint's thread, awaited by any other."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import OffbeatError, Stopped

T = TypeVar("T")


class Closed(Stopped):
    """The endpoint was closed while the work was under way."""


class Pending(Generic[T]):
    """A `Work`: poll `done`, block in `wait`, or be called back; then `result` gives the value or raises."""

    def __init__(self, story: str) -> None:
        self._story = story
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._value: T | None = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        state = "under way" if not self.done else "done" if self._error is None else repr(self._error)
        return f"<{self._story}: {state}>"

    @property
    def done(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until done; False if that took longer than `timeout_seconds`. Never raises what went wrong."""
        return self._event.wait(timeout_seconds)

    def result(self) -> T:
        if not self.done:
            raise OffbeatError(f"{self._story} is not done: wait() for it before you ask for its result")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # done without an error: the value is set

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back once: now if done, else from the endpoint's thread, so be brief and never wait there."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def resolve(self, value: T) -> None:
        self._finish(value, None)

    def fail(self, error: Exception) -> None:
        self._finish(None, error)

    def _finish(self, value: T | None, error: Exception | None) -> None:
        with self._lock:
            if self.done:
                return
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
            self._event.set()
        for callback in callbacks:
            callback()


class Pairing(Pending[int]):
    """A search for a partner, which can be called off."""

    def __init__(self, story: str, stop: Callable[["Pairing"], None]) -> None:
        super().__init__(story)
        self._stop = stop

    def stop(self) -> None:
        """Withdraw. A question under way decides first: a yes gives that peer, which then expects our swap;
        otherwise the work raises `Stopped`. Once the work is done this does nothing."""
        if not self.done:
            self._stop(self)
