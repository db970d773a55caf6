"""CPU seconds of a process with all that it started, and that these started in turn: rivals work in child processes."""

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")  # where there is none, children count once they have ended


class Process(NamedTuple):
    parent: int
    seconds: float  # user and system; also of children of its own that have ended


def cpu_seconds() -> float:
    """Of this process, of its children that have ended, and of its descendants that run."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + descendants_seconds(processes(), os.getpid())


def descendants_seconds(known: Mapping[int, Process], ancestor: int) -> float:
    children = [pid for pid, process in known.items() if process.parent == ancestor]
    return sum(known[pid].seconds + descendants_seconds(known, pid) for pid in children)


def processes() -> dict[int, Process]:
    """All that run now, by their number."""
    return dict(_processes(os.sysconf("SC_CLK_TCK"))) if PROC.is_dir() else {}


def _processes(ticks_per_second: int) -> Iterator[tuple[int, Process]]:
    for folder in PROC.iterdir():
        with suppress(OSError):  # it has just ended
            if folder.name.isdigit():
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
                yield int(folder.name), Process(int(fields[1]), sum(map(int, fields[11:15])) / ticks_per_second)
