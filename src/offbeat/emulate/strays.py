"""Which processes and folders belong to which run, and those whose run was killed.

The kernel ends what a run started itself, but not what that started in turn, and no folder. Processes carry the run's
name in their environment and folders in their own name; it tells the process that owns the run.
"""

import itertools
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "OFFBEAT_EMULATED"
NAME = re.compile(r"(?P<pid>\d+)-(?P<start>\d+)-\d+")
FOLDER = re.compile(rf"offbeat-[a-z]+-(?P<space>\d+)-(?P<run>{NAME.pattern})-.*")
PROC = Path("/proc")
RAM = Path("/dev/shm")
KILL_SECONDS = 5.0  # how long killed processes may take to be gone
POLL_SECONDS = 0.01

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


def name_of(pid: int) -> str | None:
    """The run that a process belongs to; None also for one that has ended, or lives where process ids mean others."""
    prefix = f"{MARK}=".encode()
    with suppress(OSError):
        for entry in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            if entry.startswith(prefix) and os.path.samefile(f"/proc/{pid}/ns/pid", "/proc/self/ns/pid"):
                return entry.removeprefix(prefix).decode(errors="replace")
    return None


def members(wanted: Callable[[str], bool]) -> Iterator[int]:
    """Handles (pidfd) of the processes whose run's name is wanted, good until the next one is asked for."""
    if not PROC.is_dir():
        return
    for pid in [int(each.name) for each in PROC.iterdir() if each.name.isdigit()]:
        if pid == os.getpid() or name_of(pid) is None:
            continue
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                name = name_of(pid)  # asked again: the number may have gone to another process in between
                if name is not None and wanted(name):
                    yield handle
            finally:
                os.close(handle)


def tell(wanted: Callable[[str], bool], number: signal.Signals) -> int:
    """Send a signal to all such processes; how many they are."""
    count = 0
    for handle in members(wanted):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            count += 1
    return count


def kill_all(wanted: Callable[[str], bool]) -> None:
    """Until none is left, for they may be starting others."""
    until = time.monotonic() + KILL_SECONDS
    while tell(wanted, signal.SIGKILL) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)


def folder_of_run(kind: str, *, in_ram: bool = False) -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder; that a process which is being ended still writes there does no harm."""
    return tempfile.TemporaryDirectory(
        prefix=f"offbeat-{kind}-{_space()}-{new_name()}-", dir=RAM if in_ram and RAM.is_dir() else None,
        ignore_cleanup_errors=True,
    )  # fmt: skip


def folders() -> Iterator[tuple[Path, str]]:
    """With the names of their runs; not those of other containers, who may share memory and number processes anew."""
    for place in {RAM, Path(tempfile.gettempdir())}:
        for path in place.glob("offbeat-*"):
            found = FOLDER.fullmatch(path.name)
            if found is not None and found["space"] == _space():
                yield path, found["run"]


def _space() -> str:
    """In which process ids mean what they say."""
    with suppress(OSError):
        return str(os.stat("/proc/self/ns/pid").st_ino)
    return "0"


def sweep() -> None:
    """End and remove what runs whose owner is gone left behind. Their namespaces go with it."""
    kill_all(lambda name: not owner_lives(name))
    for path, name in folders():
        if not owner_lives(name):
            shutil.rmtree(path, ignore_errors=True)
