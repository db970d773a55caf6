"""Setting: one run in virtual time, as one writes it down; checked as soon as it is made."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..options import options_of
from ..sim.cluster import Cluster
from ..sim.command import NO_STRAGGLER, make_cluster, on_device, parse_stragglers
from ..sim.simulate import check_bytes
from ..strategies import make_strategy
from ..strategy import Strategy
from ..train.job import Job


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that decides how a run goes. None: the task's own, unless said otherwise.

    `dataclasses.replace(setting, seed=1)` makes the next one of a sweep.
    """

    strategy: str = "lasgd"  # with its options, as in "lasgd:every=8,delay=2"
    task: str = "digits"  # or path/to/file.py:function
    model: str | None = None
    data: Path | None = None
    learning_rate: float | None = None
    batch: int | None = None  # samples per worker and step
    epochs: int | None = None
    steps: int | None = None  # per worker, instead of epochs
    workers: int = 4
    nodes: int | None = None  # None: one for every two workers
    link: str = "1gbit"  # of each node, both ways at once
    latency: float = 100e-6  # seconds, one way
    local_link: str | None = None  # of each worker inside its node; None: the device's, else 80gbit
    local_latency: float | None = None  # likewise, else 5e-6
    step_seconds: float = 0.1  # compute time of a step
    device: str | None = None  # instead: a profile, which predicts it
    straggler: str = NO_STRAGGLER  # "0:2": rank 0 takes twice as long; several as in "0:2+1:3"
    jitter: float = 0.0  # standard deviation of step times, relative
    seed: int = 0
    timing_only: bool = False  # no model is trained
    model_bytes: int | None = None  # on the wire, with timing_only; None: the model's own
    evaluate_every: int | None = None  # steps between two points of the curve; None: about 30 points
    target_accuracy: float | None = None  # asks for the time until the averaged model is so good

    def __post_init__(self) -> None:
        _ = self.job, self.cluster
        check_bytes(
            self.job,
            timing_only=self.timing_only,
            model_bytes=self.model_bytes,
            step_seconds_are="given" if self.device is None else "predicted",
        )
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise BadInput(f"--evaluate-every {self.evaluate_every} does not fit: it must be at least 1 step")
        if self.target_accuracy is not None:
            if not 0 < self.target_accuracy <= 1:
                raise BadInput(
                    f"--target-accuracy {self.target_accuracy} does not fit: it must be above 0 and at most 1, as 0.85"
                )
            if self.timing_only:
                raise BadInput(
                    f"--target-accuracy {self.target_accuracy} is out of reach with --timing-only, which trains "
                    f"nothing: leave one of them out"
                )

    @cached_property
    def job(self) -> Job:
        return Job(
            strategy=make_strategy(self.strategy),
            task=self.task,
            model=self.model,
            data=self.data,
            learning_rate=self.learning_rate,
            workers=self.workers,
            nodes=self.nodes,
            epochs=self.epochs,
            steps=self.steps,
            batch=self.batch,
            seed=self.seed,
            quiet=True,
        )

    @cached_property
    def cluster(self) -> Cluster:
        cluster = make_cluster(
            self.job.layout,
            step_seconds=self.step_seconds,
            link=self.link,
            latency=self.latency,
            local_link=self.local_link,
            local_latency=self.local_latency,
            stragglers=parse_stragglers([self.straggler]),
            jitter=self.jitter,
            device=self.device,
        )
        return cluster if self.device is None else on_device(cluster, self.job, self.device, self.model_bytes)

    @property
    def nodes_used(self) -> int:
        return self.cluster.layout.nodes

    @cached_property
    def identity(self) -> str:
        """Equal for settings that are the same run, however they are written; also if only the target differs."""
        strategy, cluster = self.job.strategy, self.cluster
        record = {
            **asdict(self),
            "strategy": [strategy.name, {name: getattr(strategy, name) for name in options_of(type(strategy))}],
            "nodes": cluster.layout.nodes,
            "link": cluster.link.bytes_per_second,
            "latency": cluster.link.seconds,
            "local_link": cluster.local.bytes_per_second,
            "local_latency": cluster.local.seconds,
            **({"swaps": [(nbytes, asdict(link)) for nbytes, link in cluster.swaps]} if cluster.swaps else {}),
            "straggler": sorted((rank, factor) for rank, factor in cluster.stragglers.items() if factor != 1),
            "data": None if self.data is None else str(self.data.resolve()),
            "target_accuracy": None,
            "files": [
                _digest(Path(self.task.rpartition(":")[0])),
                *map(_digest, _files_of(strategy)),
                *([] if self.device is None else [cluster.step_seconds]),
            ],
        }
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the nodes counted."""
        return {
            **asdict(self),
            "data": None if self.data is None else str(self.data),
            "nodes": self.nodes_used,
        }


def _files_of(strategy: Strategy) -> list[Path]:
    """Files that an option names, such as a topology of edges."""
    values = (getattr(strategy, name) for name in options_of(type(strategy)))
    return [Path(value) for value in values if isinstance(value, str)]


def _digest(path: Path) -> str | None:
    """A file of the user's that was changed since makes another run."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
