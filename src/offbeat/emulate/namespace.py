"""Network namespaces held by a file descriptor, and the one thread that goes into them.

A namespace without a name is gone as soon as no process is in it and nobody holds its descriptor, however they ended.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from .support import needing

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
NO_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
BY_LOSS = ("cubic", "reno")  # not bbr, by which swaps of 128 KiB took 11 ms or 17; only reno is there everywhere

T = TypeVar("T")


class Visitor:
    """A thread that does things inside namespaces and is at home in between.

    Processes are started by it, too: the kernel ends them with the thread that started them, which therefore must last
    as long as the cluster.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offbeat-emulate")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._home = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
        self._created: list[int] = []

    def close(self) -> None:
        self._thread.shutdown()
        for namespace in (*self._created, self._home):
            os.close(namespace)

    def at_home(self, function: Callable[[], T]) -> T:
        return self._thread.submit(function).result()

    def inside(self, namespace: int, function: Callable[[], T]) -> T:
        """`function()`, called inside the namespace of this descriptor."""

        def visit() -> T:
            self._call(self._libc.setns, namespace, CLONE_NEWNET)
            try:
                return function()
            finally:
                self._call(self._libc.setns, self._home, CLONE_NEWNET)

        return self.at_home(visit)

    def create(self) -> int:
        """The descriptor of a new namespace, which lasts until we are closed or the last process in it is gone."""

        def leave_home() -> int:
            with needing("network namespaces"):
                self._call(self._libc.unshare, CLONE_NEWNET)
            try:
                _set(NO_IPV6, "1")  # only noise on the wire
                _set(CONGESTION, *BY_LOSS)
                self._created.append(os.open(OWN, os.O_RDONLY | os.O_CLOEXEC))
                return self._created[-1]
            finally:
                self._call(self._libc.setns, self._home, CLONE_NEWNET)

        return self.at_home(leave_home)

    def _call(self, function: Callable[..., int], *arguments: int) -> None:
        if function(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _set(setting: Path, *values: str) -> None:
    """To the first that is allowed; to none where there is no such setting, or /proc/sys cannot be written."""
    for value in values:
        with suppress(OSError):
            setting.write_text(value)
            return
