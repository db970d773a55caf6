"""Launch: local workers through torch's elastic launcher, all of them gone when one fails or on Ctrl-C."""

import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..errors import BadInput, OffbeatError

LOOPBACK = "127.0.0.1"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where the elastic launcher looks for the story of a failure
LAUNCHED_HERE = "OFFBEAT_LAUNCHED"  # set for our own workers, whose errors the launcher prints
SHOW_CURSOR = "\x1b[?25h"


class Interrupted(Exception):
    """A signal ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def launch(arguments: Sequence[str], workers: int, port: int | None = None) -> None:
    """Run `python -m offbeat ARGUMENTS` as so many workers on this machine, and wait for the end."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    os.environ[LAUNCHED_HERE] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    with tempfile.TemporaryDirectory(prefix="offbeat-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=f"offbeat-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{LOOPBACK}:{free_port(port)}",
            local_addr=LOOPBACK,
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "offbeat", *arguments)
        except ChildFailedError as error:
            raise failure_of(error) from None
        except SignalException as error:
            raise Interrupted(error.sigval) from None
        except KeyboardInterrupt:
            raise Interrupted(signal.SIGINT) from None
        finally:
            if sys.stderr.isatty():  # a worker that was killed could not give the terminal back
                sys.stderr.write(SHOW_CURSOR)


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


def tell_launcher(error: OffbeatError) -> bool:
    """Leave the story of this worker's failure where the launcher finds it; False where there is none."""
    path = os.environ.get(ERROR_FILE)
    if path is None:
        return False
    story = {"message": {"message": str(error), "extraInfo": {"bad_input": isinstance(error, BadInput)}}}
    Path(path).write_text(json.dumps(story), encoding="utf-8")
    return True


def failure_of(error: ChildFailedError) -> Exception:
    """The first worker's own sentence, if it left one."""
    rank, failure = error.get_first_failure()
    data = failure.error_file_data.get("message", "") if isinstance(failure.error_file_data, dict) else ""
    if isinstance(data, dict) and "bad_input" in data.get("extraInfo", {}):
        return (BadInput if data["extraInfo"]["bad_input"] else OffbeatError)(data["message"])
    how = (
        f"was ended by {signal.Signals(-failure.exitcode).name}"
        if failure.exitcode < 0
        else f"failed with exit status {failure.exitcode}"
    )
    return OffbeatError(f"worker {rank} {how}, so the run was ended; what it printed is above")
