"""Races: what is kept of them under benchmarks/results, run by run."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.compare.measures import seconds_to
from offbeat.compare.snapshots import Point
from offbeat.lists import split_specs

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"

Run = dict[str, Any]
Times = dict[int, float | None]  # by seed; None: never


@dataclass(frozen=True)
class Race:
    """One file of results."""

    name: str
    record: dict[str, Any]

    @classmethod
    def read(cls, name: str) -> "Race | None":
        path = RESULTS / f"{name}.json"
        return cls(name, json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def runs(self, strategy: str) -> list[Run]:
        return [run for run in self.record["runs"] if run["strategy"] == strategy]

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(run["strategy"] for run in self.record["runs"]))

    @property
    def learning_rate(self) -> str:
        words: list[str] = self.record["command"]
        return words[words.index("--learning-rate") + 1]

    @property
    def laps(self) -> int:
        """That its command asks for, those without communication included."""
        words: list[str] = self.record["command"]
        repeats = int(words[words.index("--repeats") + 1]) if "--repeats" in words else 1
        return repeats * (1 + len(split_specs(words[words.index("--strategies") + 1])))

    @property
    def caption(self) -> str:
        machine, versions = self.record["machine"], self.record["versions"]
        gpu = f", one {machine['gpu']}" if machine["gpu"] else ""
        gpu += " shared by MPS" if machine.get("gpu_shared_by") == "MPS" else ""
        where = f"{machine['cpus']} cores{gpu}, torch {versions['torch']}, {self.record['date'][:10]}"
        own, laps = len(self.record["runs"]), self.laps
        where += f"; {own} of its {laps} laps, without {self.record['left_out']}" if own != laps else ""
        return f"`python benchmarks/race.py {self.name}` ({where}; compute {self.record['compute']})"


def read_races(*names: str) -> list[Race]:
    return [race for name in names if (race := Race.read(name)) is not None]


def captions(races: Sequence[Race]) -> str:
    return "; ".join(race.caption for race in races)


def newest_runs(races: Sequence[Race]) -> dict[str, list[Run]]:
    """Of each strategy a run of each seed: the latest, where it was raced again."""
    found: dict[str, dict[int, Run]] = {}
    for race in sorted(races, key=lambda race: str(race.record["date"])):
        for strategy in race.strategies:
            found.setdefault(strategy, {}).update({seed_of(run): run for run in race.runs(strategy)})
    return {strategy: [own[seed] for seed in sorted(own)] for strategy, own in found.items()}


def seed_of(run: Run) -> int:
    seed = run.get("seed")
    return int(run["repeat"] if seed is None else seed)


def seconds_of(run: Run, target: float) -> float | None:
    return None if run["failure"] is not None else seconds_to([Point(**point) for point in run["curve"]], target)


def seconds_to_the_end(run: Run, target: float) -> float | None:
    """As `seconds_of`, of the time from which on no point is below the target."""
    if run["failure"] is not None:
        return None
    points = [Point(**point) for point in run["curve"]]
    below = [index for index, point in enumerate(points) if point.accuracy is None or point.accuracy < target]
    return seconds_to(points[max(below, default=0) :], target)


def or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def ends_of(runs: Sequence[Run]) -> dict[int, float]:
    """How long each seed was raced."""
    return {seed_of(run): run["curve"][-1]["seconds"] for run in runs if run["failure"] is None and run["curve"]}
