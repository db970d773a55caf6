"""MPS: one GPU for the workers of a lap, whose kernels run beside each other as on GPUs of their own.

Without it they take turns: while one computes the others wait, and a copy to the host that would take a millisecond
waits with them. NVIDIA's service needs no rights and no settings; it serves who is told where it listens.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..emulate.strays import MARK, kill_all, new_name
from ..errors import OffbeatError

PROGRAM = "nvidia-cuda-mps-control"
START_SECONDS, QUIT_SECONDS = 10.0, 20.0


def sharing(device: str) -> str | None:
    """How workers share their GPU."""
    if device != "cuda":
        return None
    return "turns" if shutil.which(PROGRAM) is None else "MPS"


@contextmanager
def mps(device: str) -> Iterator[Mapping[str, str]]:
    """The environment that makes a process one of those served; none where there is no service."""
    if sharing(device) != "MPS":
        yield {}
        return
    name = new_name()  # by which the next run finds it if this one is killed
    with tempfile.TemporaryDirectory(prefix="offbeat-mps-", ignore_cleanup_errors=True) as folder:
        pipes, logs = Path(folder, "pipes"), Path(folder, "logs")
        pipes.mkdir()
        logs.mkdir()
        place = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        env = {**os.environ, **place, MARK: name}
        service = subprocess.Popen(
            [PROGRAM, "-f"], env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_for(pipes / "control")  # who comes before it listens is not served, and not told so
            yield place
        finally:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [PROGRAM], env=env, input=b"quit\n", capture_output=True, timeout=QUIT_SECONDS, check=False
                )
                service.wait(QUIT_SECONDS)
            service.kill()
            kill_all(lambda found: found == name)
            service.wait()


def _wait_for(path: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise OffbeatError(
                f"{PROGRAM} did not listen after {START_SECONDS:.0f} s: run it by hand to see why, or take it off PATH"
            )
        time.sleep(0.01)
