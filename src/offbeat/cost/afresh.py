"""visits_afresh: visits on a CPU, each few of them in a process of their own.

A process ages: where a hundred models were trained, the same step takes a tenth longer than in a new process, for what
it reads and writes lies scattered over the memory by then. Who trains a model has a new process.

    cases  ->  a few, pickled  ->  new process: gauge, steps, turns  ->  Visits  ->  the next few

Nothing else is done while a process of visits is at work: two cores share caches and memory.
"""

import math
import multiprocessing
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch

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
    source = iter(cases)
    alone: deque[Case] = deque()
    looks: Sequence[float] = ()
    context = _context()
    while few := [alone.popleft()] if alone else list(islice(source, VISITS)):
        task = _Task(few, references, looks, turns, patience_seconds, until, torch.get_num_threads())
        found, killed = _all_of(task, context)  # before anything is done with them, which would disturb the others
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


def _all_of(task: _Task, context: Any) -> tuple[list[Found], bool]:
    """What was found, and whether the process was killed then."""
    found: list[Found] = []
    with _process(context, task) as results:
        try:
            while (each := results.recv()) is not None:
                if isinstance(each, Exception):
                    raise OffbeatError(f"no step can be measured: {each}") from each
                found.append(each)
        except EOFError:
            return found, True
    return found, False


@contextmanager
def _process(context: Any, task: _Task) -> Iterator[Connection]:
    """What it sends; it is gone afterwards."""
    results, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_visit_all, args=(pickle.dumps(task), theirs), daemon=True)
    try:
        process.start()
        theirs.close()
        yield results
    finally:
        results.close()
        if process.pid is not None:
            process.kill()
            process.join()


def _context() -> Any:
    """One that has torch ready but has not computed anything, where processes can be forked off it safely."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
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
