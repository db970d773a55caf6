"""Words of the races' tables: cells, rows, names."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from races import Run, seconds_of


def shown(strategy: str) -> str:
    """A rival by its file and settings, without the path."""
    file, colon, function = strategy.partition(".py:train")
    if not colon:
        return f"`{strategy}`"
    settings = function.removeprefix(":")
    return f"{Path(file).name.replace('_', ' ')}{f', `{settings}`' if settings else ''}"


def listed(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """Every one of them; what is missing as a dash."""
    return ", ".join("-" if value is None else text(value) for value in values) or "-"


def seconds_text(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def as_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def percent(share: float) -> str:
    return f"{100 * share:g}%"


def moments(runs: Sequence[Run], target: float) -> str:
    """When each of them got there."""
    return ", ".join("failed" if run["failure"] is not None else when(seconds_of(run, target)) for run in runs)


def when(seconds: float | None) -> str:
    return "never" if seconds is None or math.isinf(seconds) else seconds_text(seconds)
