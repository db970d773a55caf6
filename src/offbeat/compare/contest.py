"""Contest: strategies x links x workers, repeated; the laps interleaved, so that whatever the machine does meanwhile
falls on all contestants alike."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from ..emulate.check import check_nodes, link_delays, link_speeds
from ..errors import BadInput, unknown
from ..layout import Layout
from ..strategies import make_strategy
from ..train.augment import check_images
from ..train.schedule import CONSTANT, SCHEDULES
from ..train.shards import Shard
from ..train.task import Task
from ..train.tasks import load_task
from .config import LIMIT_SECONDS, Config
from .contestant import CannotLoad, find_contestant
from .course import make_course
from .failures import LapFailed
from .lap import Lap, Underway, run_lap
from .measures import Measures, measure

DEVICES = ("cpu", "cuda")
LONGEST_SECONDS = 7 * 86400.0
ALONE = "none"  # the contestant that all throughputs are shares of


@dataclass(frozen=True, kw_only=True)
class Contest:
    strategies: tuple[str, ...]
    links: tuple[str | None, ...] = ("100mbit",)  # None: loopback
    workers: tuple[int, ...] = (4,)
    nodes: int | None = None  # None: a node per worker
    delay: float = 0.0  # seconds, added to each link
    task: str = "digits"
    model: str | None = None
    data: Path | None = None
    learning_rate: float | None = None
    batch: int | None = None
    steps: int | None = None
    epochs: int | None = None
    step_seconds: float | None = None  # None: real compute
    slower: tuple[tuple[int, float], ...] = ()
    target_accuracy: float | None = None
    snapshots: int = 0
    repeats: int = 1
    seed: int = 0
    device: str = "cpu"
    bf16: bool = False
    augment: bool = False
    schedule: str = CONSTANT
    limit_seconds: float = LIMIT_SECONDS  # of a lap

    def __post_init__(self) -> None:
        for name in ("repeats", "steps", "epochs", "nodes", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"--{name} {value} does not fit: it must be at least 1")
        if self.steps is not None and self.epochs is not None:
            raise BadInput(f"--epochs {self.epochs} and --steps {self.steps} contradict each other: give one of them")
        if self.step_seconds is not None and not 0 <= self.step_seconds < math.inf:
            raise BadInput(f"--step-seconds {self.step_seconds} does not fit: it must be at least 0, such as 0.17")
        if self.step_seconds == 0 and self.slower:
            rank, factor = self.slower[0]
            raise BadInput(
                f"--straggler {rank}:{factor:g} would go unused beside --step-seconds 0, which any factor leaves at 0: "
                f"leave one of the two out"
            )
        if not 0 < self.limit_seconds <= LONGEST_SECONDS:
            raise BadInput(
                f"--limit-seconds {self.limit_seconds:g} does not fit: it must be above 0 and at most "
                f"{LONGEST_SECONDS:.0f}, a week"
            )
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        self._check_snapshots()
        if self.device not in DEVICES:
            raise unknown("device", self.device, DEVICES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise BadInput("--device cuda does not fit: torch finds no CUDA device here, so leave it out")
        for spec in self.strategies:
            with suppress(CannotLoad):  # listed with the reason, like all who cannot run
                find_contestant(spec)
        self._check_wires()
        for workers in self.workers:
            layout = self.layout(workers)
            if any(link is not None for link in self.links):
                check_nodes(layout.nodes)
            for spec in self.strategies:
                if ".py:" not in spec:
                    make_strategy(spec).check(layout, None)
            for rank, factor in self.slower:
                if not 0 <= rank < layout.workers or not 1 <= factor < math.inf:
                    raise BadInput(
                        f"--straggler {rank}:{factor:g} does not fit: name a rank below {layout.workers} and a factor "
                        f"of at least 1"
                    )

    def _check_snapshots(self) -> None:
        if self.snapshots < 0:
            raise BadInput(f"--snapshots {self.snapshots} does not fit: it must be at least 0")
        if self.target_accuracy is None:
            return
        if not 0 < self.target_accuracy <= 1:
            raise BadInput(
                f"--target-accuracy {self.target_accuracy} does not fit: it must be above 0 and at most 1, such as 0.9"
            )
        if self.snapshots == 0:
            raise BadInput(
                f"--snapshots 0 leaves no point at which --target-accuracy {self.target_accuracy} could be seen: "
                f"give at least 1, or leave one of the two out"
            )

    def _check_wires(self) -> None:
        link_delays(self.delay, 1)
        for link in self.links:
            if link is not None:
                link_speeds(link, 1)
            elif self.delay:
                raise BadInput(
                    f"--delay {self.delay:g} would go unused beside --loopback, where nothing is shaped: "
                    f"leave one of the two out"
                )

    @property
    def compute(self) -> str:
        return "real" if self.step_seconds is None else f"emulated, {self.step_seconds:g} s a step"

    def layout(self, workers: int) -> Layout:
        return Layout.even(workers, workers if self.nodes is None else self.nodes)

    def load_task(self) -> Task:
        return load_task(self.task, data=self.data, model=self.model, learning_rate=self.learning_rate, seed=self.seed)

    def shard(self, task: Task, workers: int) -> Shard:
        """Of the first of so many."""
        return Shard(samples=len(task.train), rank=0, workers=workers, batch=self.batch or task.batch, seed=self.seed)

    def entries(self) -> Iterator["Entry"]:
        """All laps, in the order in which they are run."""
        contestants = tuple(dict.fromkeys((ALONE, *self.strategies)))
        for repeat in range(self.repeats):
            for workers in self.workers:
                for link in self.links:
                    for spec in contestants:
                        yield Entry(spec, link, workers, repeat, self.seed + repeat)


@dataclass(frozen=True)
class Entry:
    strategy: str
    link: str | None
    workers: int
    repeat: int
    seed: int

    def __str__(self) -> str:
        return f"{self.strategy} on {self.workers} workers, {self.link or 'loopback'}, repeat {self.repeat}"


@dataclass(frozen=True)
class Outcome:
    """Of one entry: the lap and its measures, or why it could not be run."""

    entry: Entry
    lap: Lap | None
    measures: Measures | None
    throughput_share: float | None  # of the no-communication throughput in the same repeat
    failure: str | None = None


def run_contest(
    contest: Contest, *, watch: Callable[[Entry, Underway], None], ended: Callable[[Outcome], None]
) -> list[Outcome]:
    task = contest.load_task()
    if contest.augment:
        check_images(task.train.inputs)
    for workers in contest.workers:
        contest.shard(task, workers)  # refused now if it does not fit
    outcomes: list[Outcome] = []
    alone: dict[tuple[str | None, int, int], float] = {}
    for entry in contest.entries():
        place = (entry.link, entry.workers, entry.repeat)
        outcome = _run(contest, task, entry, alone.get(place), watch)
        if entry.strategy == ALONE and outcome.measures is not None:
            alone[place] = outcome.measures.steps_per_second
        outcomes.append(outcome)
        ended(outcome)
    return outcomes


def _run(
    contest: Contest, task: Task, entry: Entry, alone: float | None, watch: Callable[[Entry, Underway], None]
) -> Outcome:
    layout, shard = contest.layout(entry.workers), contest.shard(task, entry.workers)
    config = Config(
        contestant=entry.strategy,
        folder="",
        task=contest.task,
        node_of=layout.node_of,
        steps=contest.steps or shard.steps_per_epoch * (contest.epochs or task.epochs),
        model=contest.model,
        data=None if contest.data is None else str(contest.data),
        learning_rate=contest.learning_rate,
        batch=shard.batch,
        seed=entry.seed,
        step_seconds=contest.step_seconds,
        slower={str(rank): factor for rank, factor in contest.slower},
        snapshots=contest.snapshots,
        device=contest.device,
        bf16=contest.bf16,
        augment=contest.augment,
        schedule=contest.schedule,
        limit_seconds=contest.limit_seconds,
    )
    try:
        find_contestant(entry.strategy)  # nobody is started for one that cannot be loaded
        with make_course(layout.nodes, entry.link, delay=contest.delay) as course:
            lap = run_lap(course, config, watch=lambda underway: watch(entry, underway))
            measures = measure(
                lap,
                samples_per_step=shard.size_of_batches,
                target_accuracy=contest.target_accuracy,
                link=course.bytes_per_second,
            )
    except (CannotLoad, LapFailed) as failure:
        return Outcome(entry, None, None, None, str(failure))
    own = measures.steps_per_second
    return Outcome(entry, lap, measures, own / alone if alone else 1.0 if entry.strategy == ALONE else None)
