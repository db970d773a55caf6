"""Course: where the workers of a lap run. Namespaces with shaped links, or loopback, which has no limit to speak of."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Protocol, Self

from ..emulate.children import dying_with_us
from ..emulate.runs import new_name
from ..emulate.strays import MARK, kill_all, sweep
from ..train.launch import LOOPBACK, loopback_interface


class Course(Protocol):
    nodes: int
    interface: str

    @property
    def bytes_per_second(self) -> Sequence[float]:
        """Of each node's link, each way; empty: no limit."""
        ...

    def address(self, node: int) -> str: ...

    def run(
        self, node: int, argv: Sequence[str], *, env: Mapping[str, str], stdout: IO[Any], stderr: IO[Any]
    ) -> subprocess.Popen[Any]: ...

    def bytes_sent(self, node: int) -> int: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, story: TracebackType | None
    ) -> None: ...


class Loopback:
    """All on this machine, unshaped; what is sent is not counted."""

    bytes_per_second: Sequence[float] = ()

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.interface = loopback_interface()
        self._name = new_name()  # by which the next run finds what this one left
        self._processes: list[subprocess.Popen[Any]] = []

    def address(self, node: int) -> str:
        return LOOPBACK

    def run(
        self, node: int, argv: Sequence[str], *, env: Mapping[str, str], stdout: IO[Any], stderr: IO[Any]
    ) -> subprocess.Popen[Any]:
        process = subprocess.Popen(
            dying_with_us(argv), env={**os.environ, **env, MARK: self._name}, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def bytes_sent(self, node: int) -> int:
        return 0

    def __enter__(self) -> "Loopback":
        sweep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, story: TracebackType | None
    ) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its session, and whatever it started there
            process.wait()
        kill_all(lambda name: name == self._name)  # also who has left that session


def make_course(nodes: int, link: str | None, *, delay: float = 0.0) -> Course:
    """link None: loopback."""
    if link is None:
        return Loopback(nodes)
    from ..emulate import Cluster  # needs an extra

    return Cluster(nodes, link, delay=delay)


PYTHON = sys.executable
