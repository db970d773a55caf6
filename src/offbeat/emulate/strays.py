"""What runs that were killed left behind: processes, which carry the run's name in their environment, and folders.

The kernel ends what a run started itself, but not what that started in turn, and no folder.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from .folders import folders
from .runs import PROC, owner_lives

MARK = "OFFBEAT_EMULATED"
KILL_SECONDS = 5.0  # how long killed processes may take to be gone
POLL_SECONDS = 0.01


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


def sweep() -> None:
    """End and remove what runs whose owner is gone left behind. Their namespaces go with it."""
    kill_all(lambda name: not owner_lives(name))
    for path, name in folders():
        if not owner_lives(name):
            shutil.rmtree(path, ignore_errors=True)
