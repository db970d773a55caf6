"""Launch: local workers through torch's elastic launcher, all of them gone when one fails or on Ctrl-C."""

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..errors import BadInput, OffbeatError

LOOPBACK = "127.0.0.1"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where the elastic launcher looks for the story of a failure
RUN_ID = "TORCHELASTIC_RUN_ID"  # set for the workers of any elastic launcher; ours puts its process id there
OURS = "offbeat-launcher-"
SHOW_CURSOR = "\x1b[?25h"
PR_SET_PDEATHSIG = 1


def launch(arguments: Sequence[str], workers: int, port: int | None = None) -> None:
    """Run `python -m offbeat ARGUMENTS` as so many workers on this machine, and wait for the end."""
    endpoint = f"{LOOPBACK}:{free_port(port)}"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    with tempfile.TemporaryDirectory(prefix="offbeat-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=f"{OURS}{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint=endpoint,
            local_addr=LOOPBACK,
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            # SIGINT and SIGTERM stay with the command line: torch would pass SIGINT on, and a worker that still
            # imports would answer with a traceback. Any other way out ends the workers by SIGTERM.
            signals_to_handle="SIGQUIT",
        )
        try:
            elastic_launch(config, sys.executable)("-m", "offbeat", *arguments)
        except BaseException as error:
            if sys.stderr.isatty():  # a worker that was ended could not give the terminal back
                sys.stderr.write(SHOW_CURSOR + "\n")
            if isinstance(error, ChildFailedError):
                raise failure_of(error) from None
            raise


def free_port(port: int | None) -> int:
    """The port asked for, if nobody has it; 0 lets the system choose."""
    if port is None:
        return 0
    if not 1 <= port <= 65535:
        raise BadInput(f"--port {port} does not fit: ports go from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be had ({error.strerror}): choose another with --port, or leave it out"
            ) from None
    return port


def loopback_interface() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def own_launcher() -> int | None:
    """The process id of our own launcher, where that started this worker; it prints its workers' errors for them."""
    _, ours, number = os.environ.get(RUN_ID, "").partition(OURS)
    return int(number) if ours and number.isdigit() else None


def tell_launcher(error: OffbeatError) -> bool:
    """Leave the story of this worker's failure where the launcher finds it; False where there is none."""
    path = os.environ.get(ERROR_FILE)
    if path is None:
        return False
    about = {"bad_input": isinstance(error, BadInput), "timestamp": str(int(time.time()))}  # torch wants the time
    story = {"message": {"message": str(error), "extraInfo": about}}
    Path(path).write_text(json.dumps(story), encoding="utf-8")
    return True


def end_with_launcher() -> None:
    """A worker of our own launcher dies when that does, however that happens (Linux)."""
    launcher = own_launcher()
    if launcher is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it was gone before we asked
        os._exit(1)


def failure_of(error: ChildFailedError) -> OffbeatError:
    """The worker's own sentence, if one left any: bad input before all else; then who failed, not who was ended."""
    stories = []
    for failure in error.failures.values():
        data = failure.error_file_data.get("message", "") if isinstance(failure.error_file_data, dict) else ""
        if isinstance(data, dict) and "bad_input" in data.get("extraInfo", {}):
            stories.append((BadInput if data["extraInfo"]["bad_input"] else OffbeatError)(data["message"]))
    for story in stories:
        if isinstance(story, BadInput):
            return story
    first = [f for f in error.failures.items() if f[1].exitcode != -signal.SIGTERM] or [*error.failures.items()]
    killed = [f for f in first if f[1].exitcode < 0]
    if stories and not killed:
        return stories[0]
    rank, failure = (killed or first)[0]
    if failure.exitcode < 0:
        return OffbeatError(
            f"worker {rank} was ended by {signal.Signals(-failure.exitcode).name}, so the run was ended"
        )
    return OffbeatError(
        f"worker {rank} failed with exit status {failure.exitcode}, so the run was ended; what it printed is above"
    )
