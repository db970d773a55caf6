"""Job: what to train and how, the same for `train` and `simulate`."""

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BadInput, LostPeer, OffbeatError
from ..layout import Layout
from ..strategy import Plan, Strategy
from .shards import Shard
from .task import Task
from .tasks import load_task


@dataclass(frozen=True, kw_only=True)
class Job:
    strategy: Strategy
    task: str = "digits"
    model: str | None = None  # None: the task's own, here and below
    data: Path | None = None
    learning_rate: float | None = None
    workers: int = 4
    nodes: int | None = None  # None: two workers a node
    epochs: int | None = None
    steps: int | None = None  # per worker, instead of epochs
    batch: int | None = None
    seed: int = 0
    step_seconds: float | None = None  # emulated compute: how long a step of `train` takes at least
    out: Path | None = None
    json: Path | Literal["-"] | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "nodes", "epochs", "steps", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"--{name} {value} does not fit: it must be at least 1")
        if not 0 <= self.seed < 1 << 63:
            raise BadInput(f"--seed {self.seed} does not fit: it must be at least 0 and below 2**63")
        if self.step_seconds is not None and not 0 <= self.step_seconds < math.inf:
            raise BadInput(f"--step-seconds {self.step_seconds} does not fit: it must be at least 0, such as 0.1")
        if self.epochs is not None and self.steps is not None:
            raise BadInput(f"--epochs {self.epochs} and --steps {self.steps} contradict each other: give one of them")
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise BadInput(f"--out {self.out} is a file: give the name of a folder")
        _ = self.layout

    @property
    def compute(self) -> str:
        """Which compute `train` does."""
        return "real" if self.step_seconds is None else f"emulated, {self.step_seconds:g} s a step"

    @property
    def layout(self) -> Layout:
        return Layout.even(self.workers, math.ceil(self.workers / 2) if self.nodes is None else self.nodes)

    def load_task(self) -> Task:
        return load_task(self.task, data=self.data, model=self.model, learning_rate=self.learning_rate, seed=self.seed)

    def shard(self, task: Task, rank: int, workers: int) -> Shard:
        batch = self.batch or task.batch
        return Shard(samples=len(task.train), rank=rank, workers=workers, batch=batch, seed=self.seed)

    def plan(self, task: Task) -> Plan:
        """As the first rank has it."""
        shard = self.shard(task, 0, self.workers)
        return Plan(self.steps_of(task, shard), shard.steps_per_epoch)

    def steps_of(self, task: Task, shard: Shard) -> int:
        return self.steps or shard.steps_per_epoch * (self.epochs or task.epochs)


@contextmanager
def blaming_own_task(name: str, where: str) -> Iterator[None]:
    """What goes wrong inside the user's own task is the user's to mend: say where, in one sentence.

    What torch.distributed raises outside the task means that another worker is gone.
    """
    try:
        yield
    except OffbeatError:
        raise
    except Exception as error:
        file, _, _ = name.rpartition(":")
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if file and Path(frame.filename) == Path(file).resolve()]
        story = " ".join(f"{type(error).__name__}: {error}".split())
        if not own and any("torch/distributed/" in Path(frame.filename).as_posix() for frame in frames):
            raise LostPeer(None, story) from error
        if not file:
            raise
        line = f"line {own[-1].lineno} of {file}" if own else file
        raise BadInput(f"task {name} failed {where}: {line} raised {story}; correct that file") from error
