"""MPS: one GPU for the workers of a lap, whose kernels run beside each other as on GPUs of their own.

Without it they take turns: while one computes the others wait, and a copy to the host that would take a millisecond
waits with them. NVIDIA's service needs no rights and no settings; it serves who is told where it listens.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..emulate.folders import folder_of_run
from ..emulate.runs import new_name
from ..emulate.signals import leaving_in_order
from ..emulate.strays import MARK, kill_all, sweep
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
    sweep()  # a service whose run was killed
    name = new_name()  # by which the next run finds this one
    with leaving_in_order(), folder_of_run("mps", in_ram=True) as folder:  # a path to a socket must be short
        place = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipes", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/logs"}
        for each in place.values():
            Path(each).mkdir()
        env = {**os.environ, **place, MARK: name}
        service = subprocess.Popen(
            [PROGRAM, "-f"], env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait_for(Path(place["CUDA_MPS_PIPE_DIRECTORY"], "control"), service)
            yield place
            _quit(env, service)
        finally:
            service.kill()
            kill_all(lambda found: found == name)
            service.wait()


def _wait_for(path: Path, service: subprocess.Popen[bytes]) -> None:
    """Who comes before it listens is not served, and not told so."""
    until = time.monotonic() + START_SECONDS
    while not path.exists():
        if service.poll() is not None or time.monotonic() > until:
            raise OffbeatError(f"{PROGRAM} does not start: run it by hand to see why, or take it off PATH")
        time.sleep(0.01)


def _quit(env: Mapping[str, str], service: subprocess.Popen[bytes]) -> None:
    """In good order; where it does not, it is ended."""
    with suppress(subprocess.TimeoutExpired):
        asking = subprocess.Popen([PROGRAM], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            asking.communicate(b"quit\n", QUIT_SECONDS)
            service.wait(QUIT_SECONDS)
        finally:
            asking.kill()
            asking.wait()
