"""The table of a contest: one row per contestant, link and number of workers; mean and spread over the repeats."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from .contest import Contest, Outcome


@dataclass(frozen=True)
class Row:
    strategy: str
    link: str | None
    workers: int
    outcomes: tuple[Outcome, ...]

    def cell(self, of: Callable[[Outcome], float | None], text: Callable[[float], str]) -> str:
        """Mean and, of several, lowest and highest; how often there was none."""
        values = [value for outcome in self.outcomes if (value := of(outcome)) is not None]
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
        console = Console(file=console.file, width=max(console.width, 180))
    repeats = f", mean and range of {contest.repeats} repeats" if contest.repeats > 1 else ""
    console.print(f"\n{contest.task}, compute {contest.compute}{repeats}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    heads = ["strategy", "workers", "link", "throughput", "wire", "accuracy", "waiting", "CPU", "bytes/sample"]
    if contest.target_accuracy is not None:
        heads.insert(5, f"to {contest.target_accuracy:.0%}")
    for head in heads:
        table.add_column(head, justify="left" if head in ("strategy", "link") else "right")
    for row in rows:
        cells = [
            row.strategy,
            str(row.workers),
            row.link or "loopback",
            row.cell(lambda o: o.throughput_share, "{:.3f}".format),
            row.cell(lambda o: getattr(o.measures, "wire_utilisation", None), "{:.2f}".format),
            row.cell(lambda o: getattr(o.measures, "accuracy", None), "{:.3f}".format),
            row.cell(lambda o: getattr(o.measures, "waiting_share", None), "{:.0%}".format),
            row.cell(lambda o: getattr(o.measures, "cpu_share", None), "{:.0%}".format),
            row.cell(lambda o: getattr(o.measures, "bytes_per_sample", None), "{:,.0f}".format),
        ]
        if contest.target_accuracy is not None:
            cells.insert(5, row.cell(lambda o: getattr(o.measures, "seconds_to_target", None), "{:.1f} s".format))
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        for failure in dict.fromkeys(row.failures):
            console.print(f"{row.strategy} could not run: {failure}", highlight=False)
    console.print(
        "throughput: steps per second by those without communication. wire: what left the nodes by what their links "
        "carry. accuracy: of the mean of all workers, at the end.",
        highlight=False,
    )
