"""Config: everything that a worker must know, in a file for all of them."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..train.schedule import CONSTANT

LIMIT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Config:
    contestant: str
    folder: str
    task: str
    node_of: tuple[int, ...]
    steps: int
    model: str | None = None
    data: str | None = None
    learning_rate: float | None = None
    batch: int | None = None
    seed: int = 0
    step_seconds: float | None = None  # emulated compute: the worker is asleep for what a step lacks of it
    slower: dict[str, float] = field(default_factory=dict)  # rank -> factor
    snapshots: int = 0  # of each worker, along the way
    device: str = "cpu"
    bf16: bool = False  # autocast
    augment: bool = False
    schedule: str = CONSTANT
    limit_seconds: float = LIMIT_SECONDS  # of the lap, and so of every wait for another worker

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Config":
        record = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**record, "node_of": tuple(record["node_of"])})
