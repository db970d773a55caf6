"""What a profile knows of a simulated job: how long its steps take, and what its links carry."""

import math
from functools import lru_cache
from pathlib import Path

from ..sim.shape import StepShape
from ..train.job import Job
from ..train.tasks import load_task
from .buckets import in_buckets
from .device_profile import load_profile
from .pace import fills_buckets
from .plan import copies_of, fitting_step
from .predict import predict
from .subject import subject_of
from .wires import Wires, wires_of


def predicted_step(job: Job, device: str) -> tuple[float, StepShape]:
    """Seconds that a worker computes, and when in them its gradients are there."""
    buckets = fills_buckets(job.strategy, job.layout)
    sharing = math.ceil(job.layout.workers / job.layout.nodes)
    copies = copies_of(job.strategy, job.layout)
    return _predicted(job.task, job.model, job.data, job.seed, job.batch, device, sharing, buckets, copies)


@lru_cache(maxsize=64)
def wires_with(device: str, link: str, latency: float, local_link: str | None, local_latency: float | None) -> Wires:
    """As the device's profile has them, where none are given or `measured` is asked for."""
    return wires_of(load_profile(device), link, latency, local_link, local_latency)


@lru_cache(maxsize=64)
def _predicted(
    task: str,
    model: str | None,
    data: Path | None,
    seed: int,
    batch: int | None,
    device: str,
    workers_per_node: int,
    buckets: bool,
    copies: float,
) -> tuple[float, StepShape]:
    profile, loaded = load_profile(device), load_task(task, data=data, model=model, seed=seed)
    subject = subject_of(loaded, name=model or loaded.name, platform=profile.platform)
    step = fitting_step(subject, profile, subject.batch if batch is None else batch, workers_per_node, copies)
    time = predict(in_buckets(step) if buckets else step, profile).time
    return time.seconds, time.shape()
