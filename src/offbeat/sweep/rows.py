"""Row: the runs of a sweep that differ in nothing but the seed."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .finished import Finished
from .setting import Setting

# What a row is told apart by, where it varies, and how it reads in a label.
WORDS: dict[str, Callable[[Any], str]] = {
    "strategy": str,
    "task": str,
    "model": lambda value: "the task's model" if value is None else str(value),
    "workers": "{} workers".format,
    "nodes": "{} nodes".format,
    "link": str,
    "latency": "latency {:g} s".format,
    "local_link": lambda value: "the usual link inside nodes" if value is None else f"local {value}",
    "local_latency": lambda value: "the usual latency inside nodes" if value is None else f"local latency {value:g} s",
    "step_seconds": "{:g} s a step".format,
    "straggler": lambda value: "no straggler" if value == "none" else f"straggler {value}",
    "jitter": "jitter {:g}".format,
    "batch": lambda value: "the task's batch" if value is None else f"batch {value}",
    "learning_rate": lambda value: "the task's learning rate" if value is None else f"learning rate {value:g}",
    "epochs": lambda value: "the task's epochs" if value is None else f"{value} epochs",
    "steps": lambda value: "steps by epochs" if value is None else f"{value} steps",
}


@dataclass(frozen=True)
class Row:
    """Mean and spread over seeds."""

    setting: Setting  # of the first run
    runs: tuple[Finished, ...]

    def values(self, of: Callable[[Finished], float | None]) -> list[float]:
        """Of the runs that have such a number."""
        return [value for value in map(of, self.runs) if value is not None]

    def mean(self, of: Callable[[Finished], float | None]) -> float | None:
        values = self.values(of)
        return sum(values) / len(values) if values else None

    def spread(self, of: Callable[[Finished], float | None]) -> float | None:
        """The sample standard deviation; None for a single run."""
        values = self.values(of)
        if len(values) < 2:
            return None
        return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def rows_of(runs: Iterable[Finished]) -> list[Row]:
    """In the order of their first runs; a run that is there twice counts once."""
    rows: dict[str, dict[str, Finished]] = {}
    for run in runs:
        rows.setdefault(replace(run.setting, seed=0).identity, {}).setdefault(run.setting.identity, run)
    return [Row(next(iter(each.values())).setting, tuple(each.values())) for each in rows.values()]


def varying(rows: Sequence[Row]) -> list[str]:
    """The names of the settings that are not the same in all rows; strategy at least."""
    nodes_matter = any(row.setting.nodes is not None for row in rows)  # otherwise they follow from the workers
    names = [name for name in WORDS if name != "nodes" or nodes_matter]
    return [name for name in names if name == "strategy" or len({value_of(row, name) for row in rows}) > 1]


def value_of(row: Row, name: str) -> Any:
    return row.setting.nodes_used if name == "nodes" else getattr(row.setting, name)


def label(row: Row, names: Iterable[str]) -> str:
    """A row in words, such as "gossip:rate=2, 16 workers, 100mbit"."""
    return ", ".join(WORDS[name](value_of(row, name)) for name in names)
