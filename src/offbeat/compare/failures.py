"""Failures: which worker failed first, and what it said. The others fail because of it, often before it has ended."""

import math
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import OffbeatError

GRACE_SECONDS = 5.0  # for who is failing to say why, and to end
POLL_SECONDS = 0.02
NOTHING = "it said nothing"
STORY_LINES = 3  # of a worker's last words, where it fails


class LapFailed(OffbeatError):
    """A contestant that cannot run is listed with the reason."""


@contextmanager
def noting_failure(folder: Path, rank: int) -> Iterator[None]:
    """In a worker: when what is inside failed. The innermost counts: on the way out others may hear of it."""
    try:
        yield
    except BaseException:
        path = _note(folder, rank)
        if not path.exists():
            with suppress(OSError):  # the failure itself is what matters
                temporary = path.with_suffix(".part")
                temporary.write_text(repr(time.monotonic()), encoding="utf-8")
                temporary.replace(path)
        raise


def check_workers(processes: Sequence[subprocess.Popen[Any]], folder: Path) -> None:
    """Whoever has ended must have done so in good order, and have left its report; nobody may be about to fail."""
    if not _failed(processes, folder):
        return
    until = time.monotonic() + GRACE_SECONDS
    while any(process.poll() is None for process in _noted(processes, folder)) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    first = min(_failed(processes, folder), key=lambda rank: _failed_at(folder, rank, processes[rank].poll()))
    status = processes[first].poll()
    how = f"failed and was not gone after {GRACE_SECONDS:g} s" if status is None else f"ended with status {status}"
    before = " before its report" if status == 0 else ""
    aborted = "".join(
        f"; worker {rank} aborted: {_last_words(folder, rank) or NOTHING}"  # perhaps it is the cause, and nobody knows
        for rank in _failed(processes, folder)
        if rank != first and _aborted(folder, rank, processes[rank].poll())
    )
    raise LapFailed(f"worker {first} {how}{before}: {_last_words(folder, first) or NOTHING}{aborted}")


def any_story(folder: Path) -> str:
    """Of the first worker that said anything."""
    ranks = range(len(list(folder.glob("*.log"))))
    return next((f"worker {rank}: {story}" for rank in ranks if (story := _last_words(folder, rank))), NOTHING)


def _failed(processes: Sequence[subprocess.Popen[Any]], folder: Path) -> list[int]:
    """The ranks that did, or are about to end so."""
    statuses = {rank: process.poll() for rank, process in enumerate(processes)}
    return [
        rank
        for rank, status in statuses.items()
        if status or _note(folder, rank).exists() or (status == 0 and not (folder / f"{rank}.json").exists())
    ]


def _noted(processes: Sequence[subprocess.Popen[Any]], folder: Path) -> Iterator[subprocess.Popen[Any]]:
    return (process for rank, process in enumerate(processes) if _note(folder, rank).exists())


def _failed_at(folder: Path, rank: int, status: int | None) -> float:
    """Whoever has no note was ended from outside, as by a signal: that is nobody's consequence, and so comes first.
    But a library that aborts, as when a peer is lost, comes last."""
    path = _note(folder, rank)
    if path.exists():
        return float(path.read_text(encoding="utf-8"))
    return math.inf if _aborted(folder, rank, status) else 0.0


def _aborted(folder: Path, rank: int, status: int | None) -> bool:
    """Ended by a library, without a note."""
    return status == -signal.SIGABRT and not _note(folder, rank).exists()


def _note(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.failed"


def _last_words(folder: Path, rank: int) -> str:
    lines = (folder / f"{rank}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in lines[-STORY_LINES:])
