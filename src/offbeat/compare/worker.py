"""One worker of one run: the same loop around every contestant.

    python -m offbeat.compare.worker CONFIG.json       with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun has

What it saw goes to RANK.json in the folder of the run, its weights along the way to snapshots/.
"""

import copy
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..compiler import leave_compiler_unloaded
from ..connect import join_process_group
from ..layout import Layout
from ..leave import leave
from ..malloc import keep_freed_memory
from ..trace import Event
from ..train.augment import augmented
from ..train.schedule import CONSTANT, rate_factor
from ..train.seed import worker_seed
from ..train.shards import Shard
from ..train.tasks import load_task
from .config import Config
from .contestant import Setup, find_contestant
from .cpu import cpu_seconds
from .failures import noting_failure
from .odometer import odometer
from .snapshots import Album

FAILURE = 1
TIMED_STEPS = 5  # of the copy whose pace a slow worker goes by


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a worker saw. Moments are of the machine's monotonic clock, the same for all its processes."""

    rank: int
    began_at: float
    step_ends: list[float]
    losses: list[float]
    ended_at: float  # with the final average
    cpu_seconds: float  # user and system, of this process and those it started, while it trained
    waiting_share: float | None = None  # of the time of its steps; None: a rival does not tell
    strategy: dict[str, float] = field(default_factory=dict)  # what it reports of itself
    events: list[dict[str, Any]] = field(default_factory=list)


def take_own_cores(rank: int, workers: int) -> None:
    """A host of its own has cores of its own: an equal share, where there are enough. On a GPU a step is issued by two
    threads; where they wander it takes longer, and never twice the same."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // workers
    if share:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


Forward = Callable[[Callable[..., Any], int], Tensor]  # the loss of a model at a step, from 0


def warm_up(forward: Forward, model: nn.Module, steps: int = 1) -> float:
    """Go forward and backward with a copy of the model, before the clock runs: a GPU loads its kernels in the first
    step, for most of a second. Seconds of a step, to the end of what a GPU was asked for."""
    scratch = copy.deepcopy(model)
    began = time.monotonic()
    for step in range(steps):
        scratch.zero_grad()
        forward(scratch, step).backward()  # type: ignore[no-untyped-call]
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return (time.monotonic() - began) / steps


def least_seconds(config: Config, rank: int, own_seconds: Callable[[], float]) -> float:
    """How long forward and backward take at least. Emulated compute: as given. Real compute of a slow worker: by its
    own seconds, which have no communication in them. All compute while they are measured, as they do in the race."""
    slower = config.slower.get(str(rank), 1.0)
    if config.step_seconds is not None:
        return config.step_seconds * slower
    if not config.slower:
        return 0.0
    dist.barrier()
    seconds = own_seconds()
    return seconds * slower if slower > 1 else 0.0


def handed_in(setup: Setup) -> Mapping[str, Tensor]:
    """In place of weights of the model."""
    return setup.hands_in[0]() if setup.hands_in else {}


def set_rates(optimizer: Optimizer, rates: Iterable[float], factor: float) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def work(config: Config, rank: int) -> Report:
    """Train to the end."""
    take_own_cores(rank, len(config.node_of))
    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if config.device == "cuda" else torch.device("cpu")
    layout = Layout(config.node_of)
    task = load_task(
        config.task,
        data=Path(config.data) if config.data else None,
        model=config.model,
        learning_rate=config.learning_rate,
        seed=config.seed,
    )
    shard = Shard(
        samples=len(task.train), rank=rank, workers=layout.workers, batch=config.batch or task.batch, seed=config.seed
    )
    folder = Path(config.folder) / "snapshots"
    keep_freed_memory()  # as offbeat train does; rivals have it too
    leave_compiler_unloaded()
    join_process_group(device, config.limit_seconds)
    torch.manual_seed(config.seed)
    model = task.model().to(device)
    train = task.train.to(device)
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=config.bf16)
    if device.type == "cuda":  # the order of weights, and so of what is made with them, that is fastest there
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(module: Callable[..., Any], step: int) -> Tensor:
        inputs, targets = train.batch(shard.indices(step).to(device, non_blocking=True))
        if config.augment:
            inputs = augmented(inputs)
        with autocast():
            return task.loss(module(inputs), targets)

    warm_up(forward, model)
    least = least_seconds(config, rank, partial(warm_up, forward, model, TIMED_STEPS))
    torch.manual_seed(worker_seed(config.seed, rank))
    optimizer = task.optimizer(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    setup = Setup(rank, layout, config.steps, shard.steps_per_epoch, config.seed, config.limit_seconds, [], [])
    every = max(1, config.steps // config.snapshots) if config.snapshots else config.steps + 1
    ends: list[float] = []
    losses: list[torch.Tensor] = []
    made = odometer(Path(config.folder))
    album = Album(folder, rank, layout.workers)
    contestant = find_contestant(config.contestant)(model, optimizer, setup)
    with contestant as (module, stepper), noting_failure(Path(config.folder), rank):
        attachment = setup.attachment[0] if setup.attachment else None
        cpu = cpu_seconds()
        dist.barrier()
        began = time.monotonic()
        waited_before = attachment.trace.seconds["wait"] if attachment is not None else 0.0
        for step in range(1, config.steps + 1):
            since = time.monotonic()
            if config.schedule != CONSTANT:
                set_rates(optimizer, rates, rate_factor(config.schedule, step, config.steps))
            stepper.zero_grad()
            loss = forward(module, step - 1)
            loss.backward()  # type: ignore[no-untyped-call]
            sleep_until(since + least)
            if attachment is not None:
                attachment.observe(loss)
            stepper.step()
            losses.append(loss.detach())
            ends.append(time.monotonic())
            made[rank] = step
            if step % every == 0:
                album.take(model, seconds=ends[-1] - began, step=step, instead=handed_in(setup))
        cpu = cpu_seconds() - cpu
        waited = attachment.trace.seconds["wait"] - waited_before if attachment is not None else None
    ended = time.monotonic()
    if config.snapshots:
        album.take(model, seconds=ended - began, step=config.steps, instead=handed_in(setup))
        album.write()
    report = Report(
        rank=rank,
        began_at=began,
        step_ends=ends,
        losses=[float(loss) for loss in losses],
        ended_at=ended,
        cpu_seconds=cpu,
        waiting_share=None if waited is None else min(1.0, waited / (ends[-1] - began)),
        strategy={} if attachment is None else attachment.strategy.report(),
        events=[] if attachment is None else [event.as_dict() for event in last_events(attachment.trace.events)],
    )
    dist.barrier()
    return report


EVENTS = 2000  # of the trace, for the timeline


def last_events(events: Iterable[Event]) -> list[Event]:
    """Up to the end of the last step: what goes on for the sake of others would leave no room for it."""
    kept = list(events)
    steps = [index for index, event in enumerate(kept) if event.kind == "compute"]
    return kept[: steps[-1] + 1][-EVENTS:] if steps else []


def sleep_until(moment: float) -> None:
    """Until a step has taken its time; not at all where it did already, because it computed or waited for so long."""
    time.sleep(max(0.0, moment - time.monotonic()))


def main() -> None:
    """Whatever happens, go at once: the interpreter would first wait for what is in flight, for as long as a lap may
    last, and the others for this worker."""
    config, rank = Config.read(Path(sys.argv[1])), int(os.environ["RANK"])
    folder, status = Path(config.folder), FAILURE
    try:
        with noting_failure(folder, rank):
            report = work(config, rank)
            temporary = folder / f"{rank}.json.part"
            temporary.write_text(json.dumps(asdict(report)), encoding="utf-8")
            temporary.replace(folder / f"{rank}.json")
        status = 0
    except SystemExit as wanted:  # a rival's own end
        status = status_of(wanted)
    except BaseException:
        traceback.print_exc()
    finally:  # also where nothing can be printed
        leave(status)


def status_of(wanted: SystemExit) -> int:
    """As the interpreter has it, which prints a text; but a multiple of 256 is no 0, for which the kernel takes it."""
    if wanted.code is None:
        return 0
    if isinstance(wanted.code, int):
        return wanted.code % 256 or (FAILURE if wanted.code else 0)
    print(wanted.code, file=sys.stderr)
    return FAILURE


if __name__ == "__main__":
    main()
