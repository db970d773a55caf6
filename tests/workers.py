"""Real worker processes for the tests, with torchrun's environment.

    def train(start, seed):                                # at module level: the workers import it by name
        model = ...                                        # RANK, WORLD_SIZE, MASTER_PORT, ... are set, torch is loaded
        return parameters                                  # whatever pickles, tensors too

    first, second = run_workers(train, 2, start, seed=7)   # what each rank returned, in order of rank

Loading torch takes seconds, so the processes are kept and run one function after another, each with a MASTER_PORT of
its own; warnings are errors there, as in the tests. If one rank raises or the time is up, all are killed,
`WorkersFailed` carries the tracebacks, and the next call starts new ones.

`run_to_exit` has processes of its own, for tests of how a process ends.
"""

import atexit
import faulthandler
import gc
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

GRACE_SECONDS = 2.0  # after the first failure, for the other ranks to say what they saw


class WorkersFailed(AssertionError):
    """A worker raised, died or took too long."""


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit status, when (as time.monotonic counts), and what it wrote."""

    status: int
    at_seconds: float
    stderr: str


def run_workers(
    function: Callable[..., Any], workers: int, *args: Any, timeout_seconds: float = 60.0, **kwargs: Any
) -> list[Any]:
    """`function(*args, **kwargs)` on every one of so many ranks at once; what each returned."""
    while len(_idle) < workers:
        _idle.append(Worker())
    team, port = _idle[:workers], free_port()
    for rank, worker in enumerate(team):
        worker.begin(environment(rank, workers, port), function, args, kwargs)
    deadline = time.monotonic() + timeout_seconds
    answers: dict[int, tuple[bool, Any]] = {}
    while len(answers) < workers:
        pending = {worker.connection: rank for rank, worker in enumerate(team) if rank not in answers}
        ready = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            answers[pending[connection]] = answer = team[pending[connection]].answer()
            if not answer[0]:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    if len(answers) == workers and all(fine for fine, _ in answers.values()):
        return [answers[rank][1] for rank in range(workers)]
    stories = [story for rank in range(workers) for story in _story(rank, team[rank], answers.get(rank))]
    close()
    raise WorkersFailed(f"{function.__name__} on {workers} workers:\n" + "\n".join(stories))


def run_to_exit(
    function: Callable[..., Any], workers: int, *args: Any, timeout_seconds: float = 60.0, **kwargs: Any
) -> list[Exit]:
    """`function(*args, **kwargs)` as the whole program of so many processes; how each of them ended.

    What is still running after `timeout_seconds` is killed: its status is then negative.
    """
    port, started = free_port(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder, "task")
        task.write_bytes(pickle.dumps((function, args, kwargs)))
        errors = [Path(folder, f"stderr{rank}") for rank in range(workers)]
        processes: list[subprocess.Popen[bytes]] = []
        ends: dict[int, float] = {}
        try:
            for rank, error in enumerate(errors):
                with error.open("wb") as stderr:
                    processes.append(_start(["--once", str(task)], environment(rank, workers, port), stderr=stderr))
            while len(ends) < workers and time.monotonic() - started < timeout_seconds:
                time.sleep(0.02)
                for rank, process in enumerate(processes):
                    if process.poll() is not None:
                        ends.setdefault(rank, time.monotonic())
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [
            Exit(process.returncode, ends.get(rank, math.inf), errors[rank].read_text(errors="replace"))
            for rank, process in enumerate(processes)
        ]


def environment(rank: int, workers: int, port: int) -> dict[str, str]:
    """What torchrun would set, on one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Worker:
    """A process that runs one function after another."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            self.process = _start(["--serve", str(fd)], {"OMP_NUM_THREADS": "1"}, pass_fds=[fd])

    def begin(self, env: dict[str, str], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.connection.recv_bytes()  # it has loaded torch: from here on the time counts
        self.connection.send_bytes(pickle.dumps((env, function, args, kwargs)))

    def answer(self) -> tuple[bool, Any]:
        try:
            fine, value = pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return False, f"died with status {self.process.wait()}"
        return fine, value

    def kill(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()


def close() -> None:
    """End the processes that were kept."""
    while _idle:
        _idle.pop().kill()


_idle: list[Worker] = []
atexit.register(close)


def _start(
    args: Sequence[str], env: dict[str, str], pass_fds: Sequence[int] = (), stderr: Any = None
) -> "subprocess.Popen[bytes]":
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, __file__, *args]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, **env}, pass_fds=pass_fds, stderr=stderr)


def _story(rank: int, worker: Worker, answer: tuple[bool, Any] | None) -> list[str]:
    if answer is None:
        worker.process.send_signal(signal.SIGUSR1)  # prints its threads' stacks, which pytest shows
        time.sleep(0.2)
        return [f"rank {rank} was still running"]
    return [] if answer[0] else [f"rank {rank}: {answer[1]}"]


def _serve(connection: Connection) -> None:
    import torch
    import torch._dynamo  # which DistributedDataParallel loads when it is first used

    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    gc.collect()
    gc.freeze()  # torch stays: at the end of each `attach` it would be looked through for half a second
    while True:
        connection.send_bytes(b"ready")
        try:
            env, function, args, kwargs = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        os.environ.update(env)
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                answer = (True, function(*args, **kwargs))
        except BaseException:
            answer = (False, traceback.format_exc())
        connection.send_bytes(pickle.dumps(answer))


def _run_once(task: Path) -> None:
    import torch

    torch.set_num_threads(1)
    function, args, kwargs = pickle.loads(task.read_bytes())
    function(*args, **kwargs)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(Connection(int(sys.argv[2])))
    else:
        _run_once(Path(sys.argv[2]))
