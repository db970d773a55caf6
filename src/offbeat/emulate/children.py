"""The processes of one cluster: how they start, and that none of them stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ..errors import BadInput
from .namespace import Visitor
from .runs import new_name
from .strays import MARK, POLL_SECONDS, kill_all, tell

GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL
ENTER = str(Path(__file__).with_name("enter.py"))

Stream = int | IO[Any] | None


def dying_with_us(argv: Sequence[str], namespace: int | None = None) -> list[str]:
    """The same command, inside the namespace if there is one, that ends when the thread that starts it does."""
    if sys.platform != "linux":
        return list(argv)
    return [sys.executable, "-I", "-S", ENTER, str(os.getpid()), "-" if namespace is None else str(namespace), *argv]


class Children:
    """Each in a session of its own, so that Ctrl-C reaches the owner alone, and that ends them in good order."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._name = new_name()
        self._processes: list[subprocess.Popen[Any]] = []

    def start(
        self,
        namespace: int,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[Any]:
        if not argv or isinstance(argv, str):
            raise BadInput(f"{argv!r} is no command: give a list of a program and its arguments")

        def popen() -> subprocess.Popen[Any]:
            self._processes.append(
                subprocess.Popen(
                    dying_with_us(argv, namespace),
                    env={**os.environ, **(env or {}), MARK: self._name},
                    cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=text,
                    pass_fds=(namespace, *pass_fds), start_new_session=True,
                )
            )  # fmt: skip
            return self._processes[-1]

        return self._visitor.at_home(popen)

    def end(self) -> None:
        """SIGTERM, then SIGKILL, to what was started here and to whatever that started."""
        self._visitor.at_home(lambda: None)  # one that is being started while Ctrl-C comes is started first
        try:
            tell(self._ours, signal.SIGTERM)
            until = time.monotonic() + GRACE_SECONDS
            while any(process.poll() is None for process in self._processes) and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        finally:
            for process in self._processes:
                process.kill()  # also one that has overwritten its environment
            kill_all(self._ours)
            for process in self._processes:
                process.wait()

    def _ours(self, name: str) -> bool:
        return name == self._name
