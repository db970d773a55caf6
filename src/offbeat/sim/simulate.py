"""`offbeat simulate`: the same job as `train`, in virtual time."""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import torch

from ..errors import BadInput
from ..replica import flatten
from ..report.meter import Meter
from ..report.metrics import MetricsFile
from ..report.progress import Progress
from ..report.status import Result, Status
from ..strategy import Plan
from ..train.ending import check_outputs, finish_run, fresh_metrics
from ..train.job import Job
from ..train.shards import Shard
from ..train.task import Task
from ..train.tasks import RECIPES
from .cluster import Cluster
from .learners import Learners, NoModel, OneByOne, initial_model
from .run import run
from .together import make_learners

STATUSES_PER_WORKER, STATUSES = 100, 20_000  # in metrics and plots, at most about so many
SHOW_SECONDS = 0.5


def simulate(
    job: Job,
    cluster: Cluster,
    *,
    timing_only: bool = False,
    model_bytes: int | None = None,
    step_seconds_are: Literal["given", "measured", "predicted"] = "given",
) -> Result:
    """Train in virtual time, or only time it: then `model_bytes` travel, by default as many as the model has."""
    check_bytes(job, timing_only=timing_only, model_bytes=model_bytes, step_seconds_are=step_seconds_are)
    task, workers = load_what_is_needed(job, model_bytes), cluster.layout.workers
    check_outputs(job)
    history: list[Status] = []
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        title = f"{job.strategy.name} on {job.task if task is None else task.name}, virtual time"
        progress = stack.enter_context(Progress(title, world="virtual", quiet=job.quiet))
        metrics = stack.enter_context(MetricsFile(fresh_metrics(job.out))) if job.out is not None else None
        prepared = prepare(job, task, workers, timing_only=timing_only, model_bytes=model_bytes)
        steps, learners = prepared.steps, prepared.learners

        every = max(1, max(steps) // max(5, min(STATUSES_PER_WORKER, STATUSES // workers)))
        shown_at = time.monotonic()

        def watch(meter: Meter, now: float) -> None:
            nonlocal shown_at
            if meter.steps_done % every == 0:
                history.append(status := meter.status(now))
                if metrics is not None:
                    metrics.write(status)
            elif time.monotonic() - shown_at > SHOW_SECONDS:  # of slow steps too something is seen
                status = meter.peek(now)
            else:
                return
            progress.update([status])
            shown_at = time.monotonic()

        done = run(
            job.strategy,
            cluster,
            learners,
            steps,
            seed=job.seed,
            nbytes=prepared.nbytes,
            plan=prepared.plan,
            watch=watch,
        )
    return finish_run(
        job,
        task,
        None if timing_only else learners.mean_model(),
        cluster.layout,
        last=done.statuses,
        history=history,
        events=(event for trace in done.traces for event in trace.events),
        world="virtual",
        compute=f"{step_seconds_are}, {cluster.step_seconds:.3g} s a step",
    )


@dataclass(frozen=True)
class Prepared:
    """What `run` needs beside a strategy and a cluster."""

    learners: Learners
    steps: Sequence[int]  # of each worker
    shards: Sequence[Shard]  # of each worker; none where only the clock runs, for given steps
    nbytes: int | None  # on the wire; None: the learners' own

    @property
    def plan(self) -> Plan:
        """That of the first worker; where there are no data, all of the run is one epoch."""
        return Plan(self.steps[0], self.shards[0].steps_per_epoch if self.shards else self.steps[0])


def prepare(job: Job, task: Task | None, workers: int, *, timing_only: bool, model_bytes: int | None) -> Prepared:
    """Models are drawn here, so it belongs inside `torch.random.fork_rng`."""
    if timing_only and task is not None and model_bytes is None:
        model_bytes = flatten(initial_model(task, job.seed)).nbytes
    if task is None or (timing_only and job.steps is not None):
        assert job.steps is not None
        return Prepared(NoModel(workers), [job.steps] * workers, (), model_bytes)
    shards = [job.shard(task, rank, workers) for rank in range(workers)]
    steps = [job.steps_of(task, shard) for shard in shards]
    learners = NoModel(workers) if timing_only else make_learners(task, shards, job.seed)
    return Prepared(learners, steps, shards, model_bytes)


def load_what_is_needed(job: Job, model_bytes: int | None) -> Task | None:
    """The task; None where bytes and steps are given, so that neither model nor data are of use."""
    needs_data = model_bytes is None or job.steps is None or job.task not in RECIPES
    return job.load_task() if needs_data else None


def check_bytes(job: Job, *, timing_only: bool, model_bytes: int | None, step_seconds_are: str) -> None:
    """Whether `model_bytes` fit the rest."""
    if model_bytes is not None and not timing_only:
        raise BadInput("--model-bytes goes with --timing-only: otherwise the model's own bytes travel")
    if model_bytes is not None and model_bytes < 1:
        raise BadInput(f"--model-bytes {model_bytes} does not fit: it must be at least 1")
    if model_bytes is not None and step_seconds_are == "given":
        refuse_unused(job)


def refuse_unused(job: Job) -> None:
    """Where the bytes are given, no model is built; where the steps are given too, no data are read."""
    unused: dict[str, object] = {"--model": job.model, "--learning-rate": job.learning_rate}
    if job.steps is not None:
        unused |= {"--batch": job.batch, "--data": job.data}
    for flag, value in unused.items():
        if value is not None:
            raise BadInput(f"{flag} {value} would go unused beside --model-bytes: leave one of them out")


def measured_step_seconds(job: Job, steps: int = 12) -> float:
    """The median time of one step of one worker on this machine, alone."""
    task = job.load_task()
    seconds = []
    with torch.random.fork_rng(devices=[]):
        learner = OneByOne(task, [job.shard(task, 0, 1)], job.seed)
        for step in range(steps):
            start = time.perf_counter()
            learner.begin(0, step, alone=True)
            learner.end(0)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])  # the first warm up
