"""One worker of a real run: the training loop, around which nothing is special but `attach`."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import nn

from ..attach import Attachment, attach
from ..compiler import leave_compiler_unloaded
from ..connect import join_process_group
from ..gather import collect_json
from ..layout import Layout
from ..malloc import keep_freed_memory
from ..report.history import History
from ..report.meter import Meter
from ..report.metrics import MetricsFile
from ..report.progress import Progress
from ..report.status import Status
from ..strategy import Plan
from ..trace import Event
from .board import Board
from .ending import finish_run, fresh_metrics
from .job import Job, blaming_own_task
from .seed import worker_seed
from .task import Task

STATUS_SECONDS = 0.2  # between two statuses of a worker, or
STATUSES = 50  # in a run too short for that
EVENTS = 200_000  # of all workers, in trace.json
TIMEOUT_SECONDS = 1800.0


def work(job: Job, layout: Layout | None, device: torch.device) -> None:
    """Train to the end as the rank that the environment names; rank 0 shows, evaluates and writes."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    keep_freed_memory()
    leave_compiler_unloaded()
    with blaming_own_task(job.task, f"on rank {rank}"):
        task = job.load_task()
        steps = job.steps_of(task, job.shard(task, rank, workers))
        join_process_group(device, TIMEOUT_SECONDS)
        history = History(workers)
        with watched(job, task, rank, workers, history) as board:
            torch.manual_seed(job.seed)
            model = task.model().to(device)
            torch.manual_seed(worker_seed(job.seed, rank))
            optimizer = task.optimizer(model.parameters())
            job.strategy.prepare(Plan(steps, job.shard(task, rank, workers).steps_per_epoch))
            with attach(model, optimizer, job.strategy, layout=layout, seed=job.seed) as run:
                meter = Meter(rank, steps, run.trace, run.strategy)
                train(job, task, model, optimizer, run, meter, board, steps)
            last = meter.status(run.seconds)
            board.post(last)
        events = list(run.trace.events)[-EVENTS // workers :] if job.out is not None else []
        endings = collect_json({"status": last.as_dict(), "events": [event.as_dict() for event in events]})
        if rank == 0:
            finish_run(
                job,
                task,
                model,
                run.layout,
                last=[Status.from_dict(ending["status"]) for ending in endings],
                history=history.statuses,
                events=[Event.from_dict(event) for ending in endings for event in ending["events"]],
                world="real",
                compute=job.compute,
            )
        dist.destroy_process_group()


def train(
    job: Job,
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Attachment,
    meter: Meter,
    board: Board,
    steps: int,
) -> None:
    shard = job.shard(task, run.rank, run.layout.workers)
    device = next(model.parameters()).device
    post_every, posted_at = max(1, steps // STATUSES), 0.0
    for step in range(steps):
        began = time.monotonic()
        inputs, targets = task.train.batch(shard.indices(step))
        optimizer.zero_grad()
        loss = task.loss(model(inputs.to(device)), targets.to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        if job.step_seconds is not None:  # as a host waits while its device computes
            time.sleep(max(0.0, began + job.step_seconds - time.monotonic()))
        run.observe(loss)
        optimizer.step()
        now = run.comm.now()
        meter.step(loss.detach(), now)
        if now - posted_at > STATUS_SECONDS or (step + 1) % post_every == 0:
            board.post(meter.status(now))
            posted_at = now


@contextmanager
def watched(job: Job, task: Task, rank: int, workers: int, history: History) -> Iterator[Board]:
    """A board; on rank 0 what is posted there goes to `history`, the display and metrics.jsonl."""
    with ExitStack() as stack:
        title = f"{job.strategy.name} on {task.name}"
        progress = stack.enter_context(Progress(title, quiet=job.quiet or rank > 0))
        metrics = None
        if job.out is not None and rank == 0:
            metrics = stack.enter_context(MetricsFile(fresh_metrics(job.out)))

        def show(statuses: Iterable[Status]) -> None:
            statuses = list(statuses)
            for status in statuses:
                history.add(status)
            progress.update(statuses)
            if metrics is not None:
                for status in statuses:
                    metrics.write(status)

        yield stack.enter_context(Board(rank, workers, show))
