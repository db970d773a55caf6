"""The table of a contest: one row per contestant, link and number of workers; mean and spread over the repeats."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from .contest import Contest, Outcome

EXPLANATION = (
    "throughput: steps per second by those without communication. wire: what left the nodes by what their links "
    "carry. accuracy: of the mean of all workers, at the end."
)


@dataclass(frozen=True)
class Column:
    head: str
    of: Callable[[Outcome], float | None]
    text: Callable[[float], str]


def columns_of(contest: Contest) -> list[Column]:
    """Those with numbers; before them come strategy, workers and link."""
    columns = [
        Column("throughput", lambda o: o.throughput_share, "{:.3f}".format),
        _measured("wire", "wire_utilisation", "{:.2f}"),
        _measured("accuracy", "accuracy", "{:.3f}"),
        _measured("waiting", "waiting_share", "{:.0%}"),
        _measured("CPU", "cpu_share", "{:.0%}"),
        _measured("bytes/sample", "bytes_per_sample", "{:,.0f}"),
    ]
    if contest.target_accuracy is not None:
        columns.insert(2, _measured(f"to {contest.target_accuracy:.0%}", "seconds_to_target", "{:.1f} s"))
    return columns


def _measured(head: str, name: str, form: str) -> Column:
    def of(outcome: Outcome) -> float | None:
        value: float | None = getattr(outcome.measures, name, None)
        return value

    return Column(head, of, form.format)


@dataclass(frozen=True)
class Row:
    strategy: str
    link: str | None
    workers: int
    outcomes: tuple[Outcome, ...]

    def values(self, column: Column) -> list[float]:
        return [value for outcome in self.outcomes if (value := column.of(outcome)) is not None]

    def cell(self, column: Column) -> str:
        """Mean and, of several, lowest and highest; how often there was none."""
        values, text = self.values(column), column.text
        if not values:
            return "-"
        spread = f" ({text(min(values))}..{text(max(values))})" if len(values) > 1 else ""
        missing = len(self.outcomes) - len(values)
        return text(statistics.mean(values)) + spread + (f", {missing} without" if missing else "")

    @property
    def failures(self) -> list[str]:
        return [outcome.failure for outcome in self.outcomes if outcome.failure is not None]


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    places = dict.fromkeys((o.entry.strategy, o.entry.link, o.entry.workers) for o in outcomes)
    return [
        Row(*place, tuple(o for o in outcomes if (o.entry.strategy, o.entry.link, o.entry.workers) == place))
        for place in sorted(places, key=lambda place: (place[2], str(place[1])))
    ]


def print_outcomes(console: Console, contest: Contest, rows: Sequence[Row]) -> None:
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 180), emoji=False, markup=False)
    repeats = f", mean and range of {contest.repeats} repeats" if contest.repeats > 1 else ""
    console.print(f"\n{contest.task}, compute {contest.compute}{repeats}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = columns_of(contest)
    for head in ("strategy", "workers", "link", *(column.head for column in columns)):
        table.add_column(head, justify="left" if head in ("strategy", "link") else "right")
    for row in rows:
        cells = [row.cell(column) for column in columns]
        table.add_row(row.strategy, str(row.workers), row.link or "loopback", *cells)
    console.print(table)
    for row in rows:
        for failure in dict.fromkeys(row.failures):
            console.print(f"{row.strategy} could not run: {failure}", highlight=False)
    console.print(EXPLANATION, highlight=False)
