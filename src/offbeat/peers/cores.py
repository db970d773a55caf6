"""Which core this thread runs on, and how to leave it to a peer's thread.

Two threads that exchange doorbells were seen to share one core while the other idled: each sleeps while the other
works, so there seems nothing to balance. Then they take turns where they could work side by side.
"""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_getcpu = getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None
NOWHERE = 0


def here() -> int:
    """A number for the core on which this thread runs, from 1; `NOWHERE` if the system does not tell."""
    return int(_getcpu()) + 1 if _getcpu is not None else NOWHERE


def step_aside() -> None:
    """Move this thread to another core that it may use, if one seems idle; the kernel may move it on from there."""
    with suppress(OSError, ValueError, IndexError):
        allowed = os.sched_getaffinity(0)
        others = allowed - {here() - 1}
        if others and _runnable() <= (os.cpu_count() or 1):  # to wait in line elsewhere would be worse
            os.sched_setaffinity(0, others)
            os.sched_setaffinity(0, allowed)


def _runnable() -> int:
    """How many threads of all processes run or could run at this moment."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
