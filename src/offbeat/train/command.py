"""What `offbeat train` does with its flags: launch local workers, or be one of several."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..errors import BadInput
from .ending import check_outputs
from .job import Job
from .launch import launch, own_launcher
from .worker import work


def train(job: Job, given: Mapping[str, Any], device: str | None, port: int | None, *, worker: bool) -> None:
    where = find_device(device)
    if not worker:
        check_before_launch(job)
        launch(sys.argv[1:] or ["train"], job.workers, port)
        return
    workers = int(os.environ["WORLD_SIZE"])
    if given["workers"] not in (None, workers):
        raise BadInput(f"--workers {given['workers']} contradicts the launcher, which started {workers}: leave it out")
    job = replace(job, workers=workers)
    spread = own_launcher() is not None or job.nodes is not None
    if own_launcher() is None and os.environ["RANK"] == "0":
        check_outputs(job)
    work(job, job.layout if spread else None, where)


def check_before_launch(job: Job) -> None:
    """What every worker would stumble over is said once, before any is started."""
    task = job.load_task()
    for rank in range(job.workers):
        job.shard(task, rank, job.workers)
    job.strategy.check(job.layout, job.plan(task))
    check_outputs(job)


def find_device(name: str | None) -> torch.device:
    """The device of this worker; several share the GPUs of a host in turn."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise BadInput(f"--device {name} does not fit: choose cpu or cuda")
    if name == "cuda":
        if not torch.cuda.is_available():
            raise BadInput("--device cuda does not fit: torch finds no GPU here; use --device cpu")
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")
