"""afresh: visits on a CPU, each few of them in a process of their own.

A process ages: where a hundred models were trained, the same step takes a tenth longer than in a new process, for what
it reads and writes lies scattered over the memory by then. Who trains a model has a new process.

    cases  ->  a few, pickled  ->  new process: gauge, steps, turns  ->  Visits  ->  the next few

Nothing else is done while a process of visits is at work: two cores share caches and memory.
"""

import multiprocessing
import pickle
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

import torch

from ..errors import OffbeatError
from ..malloc import keep_freed_memory
from .cpu_step import PATIENCE_SECONDS, visits_when_quiet
from .gauge import Gauge
from .real_step import RealStep, one_after_the_other
from .subject import Case
from .visits import Visit

VISITS = 8  # of a process
Found = tuple[int, Visit, Sequence[float]]  # the number of its case, and what the gauge has seen by then
CPU = torch.device("cpu")


def visits_afresh(
    cases: Iterable[Case],
    *,
    references: Sequence[Case],
    turns: int = 1,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Iterator[tuple[Case, Visit]]:
    """In any order, all of them."""
    source = iter(cases)
    looks: Sequence[float] = ()
    context = _context()
    while few := list(islice(source, VISITS)):
        task = _Task(few, references, looks, turns, patience_seconds, torch.get_num_threads())
        found, failure = _all_of(task, context)  # before anything is done with them, which would disturb the others
        for number, visit, _looks in found:
            yield few[number], visit
        if failure is not None:
            raise failure
        looks = found[-1][-1]


def _all_of(task: "_Task", context: Any) -> tuple[list[Found], OffbeatError | None]:
    """What was found, if need be until something failed."""
    found: list[Found] = []
    with _process(context, task) as results:
        try:
            while len(found) < len(task.cases):
                found.append(_received(results))
        except OffbeatError as failure:
            return found, failure
    return found, None


class _Task:
    """All that a process of visits needs, as it goes to it: without traces."""

    def __init__(
        self,
        cases: Sequence[Case],
        references: Sequence[Case],
        looks: Sequence[float],
        turns: int,
        patience_seconds: float,
        threads: int,
    ) -> None:
        self.cases, self.references = _bare(cases), _bare(references)
        self.looks, self.turns, self.patience_seconds, self.threads = looks, turns, patience_seconds, threads


def _bare(cases: Sequence[Case]) -> list[Case]:
    return [(replace(subject, _traced={}), batch) for subject, batch in cases]


def _visit_all(task: bytes, results: Connection) -> None:
    """In the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this one
    with suppress(BrokenPipeError):  # it is gone
        try:
            for found in _visits(pickle.loads(task)):  # of the parent
                results.send(found)
        except Exception as error:
            results.send(error if isinstance(error, OffbeatError) else OffbeatError(f"a step failed: {error!r}"))


def _visits(task: _Task) -> Iterator[Found]:
    torch.set_num_threads(task.threads)
    keep_freed_memory()
    gauge = Gauge(one_after_the_other(task.references, CPU), task.looks)
    steps = ((number, RealStep(subject, batch, CPU)) for number, (subject, batch) in enumerate(task.cases))
    for number, found in visits_when_quiet(steps, gauge, turns=task.turns, patience_seconds=task.patience_seconds):
        yield number, found, gauge.looks


def _received(results: Connection) -> Found:
    try:
        found = results.recv()
    except EOFError:
        raise OffbeatError("a process that measured steps ended in the middle: was there too little memory?") from None
    if isinstance(found, OffbeatError):
        raise found
    number, visit, looks = found
    return number, visit, looks


def _context() -> Any:
    """One that has torch ready but has not computed anything, where processes can be forked off it."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


@contextmanager
def _process(context: Any, task: _Task) -> Iterator[Connection]:
    """What it sends; it is gone afterwards."""
    results, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_visit_all, args=(pickle.dumps(task), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield results
    finally:
        results.close()
        process.kill()
        process.join()
