"""Runs: the name by which what a run leaves behind is known, and whether its owner still lives."""

import itertools
import os
import re
from pathlib import Path

NAME = re.compile(r"(?P<pid>\d+)-(?P<start>\d+)-\d+")
PROC = Path("/proc")

_runs = itertools.count()


def new_name() -> str:
    """Of a run: its owner's process id, when that started, and a number."""
    return f"{os.getpid()}-{start_of(os.getpid())}-{next(_runs)}"


def owner_lives(name: str) -> bool:
    found = NAME.fullmatch(name)
    return found is None or start_of(int(found["pid"])) == int(found["start"])


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone."""
    try:
        _, _, fields = (PROC / str(pid) / "stat").read_text().rpartition(") ")
    except OSError:
        return None
    state, *numbers = fields.split()
    return None if state in "ZX" else int(numbers[18])
