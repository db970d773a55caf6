"""Pool: runs of a sweep beside each other, in processes that end with this one, whatever ends it."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running

from ..compiler import leave_compiler_unloaded
from ..errors import BadInput, OffbeatError
from .finished import Finished
from .one import run_one
from .setting import Setting

PR_SET_PDEATHSIG = 1
DEADLY = {signal.SIGTERM, signal.SIGHUP}
GO_SECONDS = 5.0  # that a process which has nothing more to do may take to end


@dataclass(frozen=True)
class News:
    """Of the run of a setting: begun (share 0), under way, or finished."""

    setting: Setting
    share: float
    finished: Finished | None = None


@dataclass(frozen=True)
class Failure:
    """Why a run failed, in words: exceptions do not all travel."""

    story: str
    kind: type[Exception]


Tell = Callable[[News], None]


def run_all(settings: Sequence[Setting], processes: int, tell: Tell) -> None:
    """Run all of them, at most so many at a time; a single one at a time runs in this process."""
    if min(processes, len(settings)) > 1:
        with _servants(min(processes, len(settings))) as servants:
            _run_beside(settings, servants, tell)
        return
    for setting in settings:
        _run_here(setting, tell)


def _run_here(setting: Setting, tell: Tell) -> None:
    tell(News(setting, 0.0))
    tell(News(setting, 1.0, run_one(setting, lambda share: tell(News(setting, share)))))


def _run_beside(settings: Sequence[Setting], servants: Mapping[Connection, SpawnProcess], tell: Tell) -> None:
    waiting = list(reversed(settings))
    running: dict[Connection, Setting] = {}

    def give_work(connection: Connection) -> None:
        running[connection] = waiting.pop()
        connection.send(running[connection])
        tell(News(running[connection], 0.0))

    for connection in servants:
        give_work(connection)
    while running:
        for ready in wait(list(running)):
            connection = next(each for each in running if each is ready)
            setting = running[connection]
            match _receive(connection, servants[connection], setting):
                case Failure(story, kind):
                    raise kind(story)
                case float(share):
                    tell(News(setting, share))
                case Finished() as finished:
                    del running[connection]
                    tell(News(setting, 1.0, finished))
                    if waiting:
                        give_work(connection)


def _receive(connection: Connection, process: SpawnProcess, setting: Setting) -> object:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        process.join(GO_SECONDS)
        code = process.exitcode or 0
        how = (
            f"was ended by {signal.Signals(-code).name}: if memory is short, use fewer --processes"
            if code < 0
            else f"ended with exit status {code}: see what it printed; a script that sweeps must do so under "
            f"if __name__ == '__main__'"
        )
        raise OffbeatError(
            f"the process that simulated {setting.strategy} on {setting.workers} workers {how}"
        ) from None


@contextlib.contextmanager
def _servants(count: int) -> Iterator[dict[Connection, SpawnProcess]]:
    """So many processes that run what they are sent; gone when the block is over."""
    context = multiprocessing.get_context("spawn")
    servants: dict[Connection, SpawnProcess] = {}
    try:
        ensure_running()  # it unblocks signals, so it must not happen inside
        with _signals_blocked():
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
                process.start()
                theirs.close()
                servants[ours] = process
        yield servants
        for connection in servants:
            connection.close()
        for process in servants.values():
            process.join(GO_SECONDS)
    finally:
        for process in servants.values():
            process.kill()
        for connection, process in servants.items():
            process.join()
            process.close()
            connection.close()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """For this process until all others are known, so that none is left; they inherit it (see `_serve`)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *DEADLY})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, parent: int) -> None:
    """What one process does, until the other end is closed.

    SIGINT stays blocked: a terminal sends it to all processes, and this one ends when its parent says so.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEADLY)
    _end_with(parent)
    leave_compiler_unloaded()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            setting = connection.recv()
            try:
                answer: Finished | Failure = run_one(setting, connection.send)
            except BadInput as error:
                answer = Failure(str(error), BadInput)
            except OffbeatError as error:
                answer = Failure(str(error), OffbeatError)
            except Exception:
                answer = Failure(f"{setting} failed:\n{traceback.format_exc()}", RuntimeError)
            connection.send(answer)


def _end_with(parent: int) -> None:
    """Die when the parent does, however that happens (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)
