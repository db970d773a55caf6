"""What report.html shows, as plain lists and dicts: the contest, its table, curves, timelines and clusters."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..report.status import to_json
from ..report.table import counted
from ..sim.rates import parse_rate
from .contest import Contest, Outcome
from .lap import Lap
from .looks import colours_of, labels_of, link_name, place_name
from .meetings import meetings
from .table import EXPLANATION, Row, columns_of, rows_of
from .timeline import WHATS, step_seconds, timeline, tracks

MOST_POINTS = 150  # of a curve of the training loss
MOST_BARS, LEAST_BARS, ALL_BARS = 300, 40, 40_000  # in the timelines: of a worker, and of all laps together

Place = tuple[str | None, int]  # link and workers


def page_data(contest: Contest, outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> dict[str, Any]:
    """`about` has the date, command, machine and versions, as in compare.json."""
    rows = rows_of(outcomes)
    places = list(dict.fromkeys((row.link, row.workers) for row in rows))
    specs = list(dict.fromkeys(outcome.entry.strategy for outcome in outcomes))
    shown = [next((o.lap for o in row.outcomes if o.lap is not None), None) for row in rows]  # one of each row
    workers = sum(len(lap.reports) for lap in shown if lap is not None)
    most = min(MOST_BARS, max(LEAST_BARS, ALL_BARS // max(workers, 1)))
    words = Words()
    return {
        "facts": facts(contest, outcomes, about),
        "strategies": [
            {"spec": spec, "label": label, "colour": colour}
            for spec, label, colour in zip(specs, labels_of(specs), colours_of(specs), strict=True)
        ],
        "places": [_place(contest, *place) for place in places],
        "target": contest.target_accuracy,
        "explanation": EXPLANATION,
        "columns": [column.head for column in columns_of(contest)],
        "rows": [_row(contest, row, specs, places) for row in rows],
        "curves": [
            {
                "strategy": specs.index(outcome.entry.strategy),
                "place": places.index((outcome.entry.link, outcome.entry.workers)),
                "repeat": outcome.entry.repeat,
                **_curves(outcome.lap),
            }
            for outcome in outcomes
            if outcome.lap is not None
        ],
        "timelines": [
            {
                "strategy": specs.index(row.strategy),
                "place": places.index((row.link, row.workers)),
                **_timeline(lap, most, words),
            }
            for row, lap in zip(rows, shown, strict=True)
            if lap is not None
        ],
        "words": words.known,
        "meetings": [
            {
                "strategy": specs.index(row.strategy),
                "place": places.index((row.link, row.workers)),
                **vars(meetings(row.strategy, contest.layout(row.workers))),
            }
            for row in rows
        ],
    }


class Words:
    """Texts that many bars share, each once."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._number: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._number:
            self._number[text] = len(self.known)
            self.known.append(text)
        return self._number[text]


def facts(contest: Contest, outcomes: Sequence[Outcome], about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was raced, by name."""
    steps = sorted({outcome.lap.config.steps for outcome in outcomes if outcome.lap is not None})
    batch = sorted({str(outcome.lap.config.batch) for outcome in outcomes if outcome.lap is not None})
    machine, seeds = about["machine"], range(contest.seed, contest.seed + contest.repeats)
    found = [
        ("task", contest.task),
        ("model", contest.model or "the task's own"),
        ("compute", contest.compute + (", bf16" if contest.bf16 else "")),
        ("steps", f"{', '.join(map(str, steps))} of each worker" if steps else ""),
        ("batch", f"{', '.join(batch)} samples of each worker" if batch else ""),
        ("links", ", ".join(link_name(link) for link in contest.links)),
        ("delay", f"{contest.delay:g} s each way" if contest.delay else ""),
        ("workers", ", ".join(map(str, contest.workers))),
        ("nodes", "one for each worker" if contest.nodes is None else str(contest.nodes)),
        ("slow workers", ", ".join(f"{rank} ({factor:g} times)" for rank, factor in contest.slower)),
        ("repeats", f"{contest.repeats}, seed{'s' * (contest.repeats > 1)} {', '.join(map(str, seeds))}"),
        ("machine", ", ".join(filter(None, (counted(machine["cpus"], "CPU"), machine["processor"], machine["gpu"])))),
        ("versions", ", ".join(f"{name} {version}" for name, version in about["versions"].items())),
        ("date", about["date"].replace("T", " ").replace("Z", " UTC")),
        ("command", shlex.join(about["command"])),
    ]
    return [(name, text) for name, text in found if text]


def _place(contest: Contest, link: str | None, workers: int) -> dict[str, Any]:
    return {
        "label": place_name(link, workers),
        "link": link,
        "bytes_per_second": None if link is None else parse_rate(link),
        "delay": contest.delay,
        "node_of": contest.layout(workers).node_of,
        "slower": dict(contest.slower),
    }


def _row(contest: Contest, row: Row, specs: Sequence[str], places: Sequence[Place]) -> dict[str, Any]:
    columns = columns_of(contest)
    return {
        "strategy": specs.index(row.strategy),
        "place": places.index((row.link, row.workers)),
        "cells": [row.cell(column) for column in columns],
        "values": [row.values(column) for column in columns],
        "failures": list(dict.fromkeys(row.failures)),
        "failed": all(outcome.failure is not None for outcome in row.outcomes),
    }


def _curves(lap: Lap) -> dict[str, Any]:
    training = training_loss(lap)
    return {
        "test": {
            "seconds": [_short(point.seconds) for point in lap.curve],
            "steps": [_short(point.steps) for point in lap.curve],
            "accuracy": [_short(point.accuracy) for point in lap.curve],
            "loss": [_short(point.loss) for point in lap.curve],
        },
        "training": {
            name: [_short(value) for value in values]
            for name, values in zip(("seconds", "steps", "loss"), training, strict=True)
        },
    }


def training_loss(lap: Lap) -> np.ndarray:
    """Rows of seconds, steps and loss: means over the workers, and over so many steps that few points are left."""
    steps = min(len(report.step_ends) for report in lap.reports)
    ends = np.array([np.array(report.step_ends[:steps]) - report.began_at for report in lap.reports]).mean(0)
    losses = np.array([report.losses[:steps] for report in lap.reports]).mean(0)
    groups = np.array_split(np.arange(steps), min(steps, MOST_POINTS))
    return np.array([(ends[g].mean(), g.mean() + 1, losses[g].mean()) for g in groups]).T


def _timeline(lap: Lap, most: int, words: Words) -> dict[str, Any]:
    workers = timeline(lap, most)
    return {
        "seed": lap.config.seed,
        "step_seconds": _short(step_seconds(workers)),
        "tracks": tracks(workers),
        "since": _short(min((bars[0].start for bars in workers if bars), default=0.0)),
        "workers": [
            [
                (
                    WHATS.index(bar.what),
                    round(bar.start, 6),
                    round(bar.seconds, 6),
                    words.number(bar.words(rank)),
                    bar.track,
                )
                for bar in bars
            ]
            for rank, bars in enumerate(workers)
        ],
    }


def _short(value: float | None) -> float | None:
    """Digits enough for a picture; what is no number is left out of it."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def script_json(value: Any) -> str:
    """JSON that may stand in a <script>: nothing in it can end that, or begin a comment."""
    return to_json(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
