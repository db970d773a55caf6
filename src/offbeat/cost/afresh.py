"""visits_afresh: visits on a CPU, each few of them in a process of their own.

A process ages: where a hundred models were trained, the same step takes a tenth longer than in a new process, for what
it reads and writes lies scattered over the memory by then. Who trains a model has a new process.

    cases  ->  a few, pickled  ->  new process: gauge, steps, turns  ->  Visits  ->  the next few

Where there is a core to spare the next few are drawn and traced meanwhile: that is Python, and keeps to its own caches.
What is done with visits waits until a process is through: cores share memory.
"""

import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

from ..compiler import COMPILER
from ..errors import OffbeatError
from ..malloc import keep_freed_memory
from .failed import Failed
from .gauge import Gauge
from .real_step import RealStep, one_after_the_other
from .subject import Case
from .visits import Visit
from .when_quiet import PATIENCE_SECONDS, visits_when_quiet

VISITS = 8  # of a process
KILLED = Failed("the process that measured it ended in the middle, perhaps for want of memory")
CPU = torch.device("cpu")

Found = tuple[int, Visit | Failed, Sequence[float]]  # the number of its case, and what the gauge has seen by then


def visits_afresh(
    cases: Iterable[Case],
    until: float = math.inf,
    *,
    references: Sequence[Case],
    turns: int = 1,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Iterator[tuple[Case, Visit | Failed]]:
    """In any order; all of them, or those that were begun until then (of `time.monotonic`).

    Where a process is killed, the system's memory being full, those that it has not visited get one each: the one that
    is killed there has failed.
    """
    alone: deque[Case] = deque()
    looks: Sequence[float] = ()
    context, drawn = _context(), _Drawn(iter(cases))
    while few := [alone.popleft()] if alone else drawn.few():
        task = _Task(few, references, looks, turns, patience_seconds, until, torch.get_num_threads())
        meanwhile = drawn.draw if has_spare_core(task.threads) else None
        found, killed = _all_of(task, context, meanwhile)  # before what the caller does, which would disturb them
        for number, visit, _looks in found:
            yield few[number], visit
        looks = found[-1][-1] if found else looks
        numbers = {number for number, *_ in found}
        left = [case for number, case in enumerate(few) if number not in numbers]
        if killed and left and len(few) == 1:
            yield few[0], KILLED
        elif killed:
            alone += left
        if (left and not killed) or (alone and time.monotonic() >= until):
            break


class _Drawn:
    """Cases, a few at a time; the next few may be drawn before they are wanted."""

    def __init__(self, source: Iterator[Case]) -> None:
        self._source = source
        self._next: list[Case] | None = None
        self._error: Exception | None = None

    def draw(self) -> None:
        if self._next is None:
            try:
                self._next = list(islice(self._source, VISITS))
            except Exception as error:  # told when it is their turn
                self._error, self._next = error, []

    def few(self) -> list[Case]:
        self.draw()
        few, self._next = self._next or [], None
        if self._error is not None:
            raise self._error
        return few


def has_spare_core(threads: int) -> bool:
    """Beside those that compute."""
    return threads < (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@dataclass(frozen=True)
class _Task:
    """All that a process of visits needs."""

    cases: Sequence[Case]
    references: Sequence[Case]
    looks: Sequence[float]  # of the gauge, so far
    turns: int
    patience_seconds: float
    until: float
    threads: int


def _all_of(task: _Task, context: Any, meanwhile: Callable[[], None] | None) -> tuple[list[Found], bool]:
    """What was found, and whether the process was killed then."""
    found: list[Found] = []
    with _process(context, task) as received:
        if meanwhile is not None:
            meanwhile()
        while (each := received.get()) is not None:
            if isinstance(each, Exception):
                raise OffbeatError(f"no step can be measured: {each}") from each
            if each is KILLED:
                return found, True
            found.append(each)
    return found, False


@contextmanager
def _process(context: Any, task: _Task) -> Iterator[SimpleQueue[Any]]:
    """What it sends, None when it is through, `KILLED` if it never is; it is gone afterwards. A thread takes what
    comes, or the process would wait until somebody has time for it."""
    results, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_visit_all, args=(pickle.dumps(task), theirs), daemon=True)
    received: SimpleQueue[Any] = SimpleQueue()
    reader = threading.Thread(target=_take, args=(results, received), name="offbeat visits", daemon=True)
    try:
        process.start()
        theirs.close()
        reader.start()
        yield received
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        if reader.ident is not None:
            reader.join()
        results.close()


def _take(results: Connection, received: SimpleQueue[Any]) -> None:
    try:
        while (each := results.recv()) is not None:
            received.put(each)
        received.put(None)
    except (EOFError, OSError):  # its end; in the middle of a message it is the second
        received.put(KILLED)
    except Exception as error:
        received.put(error)


def _context() -> Any:
    """One that has torch ready but has not computed anything, where processes can be forked off it safely."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # An optimizer loads the compiler, as in a script of one's own: once, not in every process.
    context.set_forkserver_preload(["__main__", __name__, COMPILER])
    return context


def _visit_all(task: bytes, results: Connection) -> None:
    """In the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    with suppress(BrokenPipeError):  # it is gone
        try:
            for found in _visits(pickle.loads(task)):  # of the parent
                results.send(found)
            results.send(None)
        except Exception as error:
            results.send(error if isinstance(error, OffbeatError) else OffbeatError(repr(error)))


def _visits(task: _Task) -> Iterator[Found]:
    torch.set_num_threads(task.threads)
    keep_freed_memory()
    gauge = Gauge(one_after_the_other(task.references, CPU), task.looks)
    steps = ((number, partial(RealStep, subject, batch, CPU)) for number, (subject, batch) in enumerate(task.cases))
    visits = visits_when_quiet(steps, gauge, turns=task.turns, patience_seconds=task.patience_seconds, until=task.until)
    for number, found in visits:
        yield number, found, gauge.looks
