"""The table of a sweep: one row per setting, mean and spread over its seeds; on the screen and as CSV."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..sweep.finished import Finished
from ..sweep.rows import Row, value_of, varying
from .outputs import replacing
from .table import counted, human_bytes, human_rate, percent

LEAST = ("steps_per_second", "consensus_distance", "bytes_sent", "loss", "waiting_share")  # to know, in this order
HEADS = {"local_link": "local link", "learning_rate": "learning rate", "step_seconds": "step"}


@dataclass(frozen=True)
class Number:
    """One number of a run, its name in the CSV and on the screen, and how it and its spread read there."""

    name: str
    head: str
    of: Callable[[Finished], float | None]
    text: Callable[[float], str]
    spread: Callable[[float], str] | None = None

    def cell(self, row: Row) -> str:
        mean, spread = row.mean(self.of), row.spread(self.of)
        if mean is None:
            return "-"
        known = self.text(mean)
        return known if spread is None or self.spread is None else f"{known} ± {self.spread(spread)}"


NUMBERS = (
    Number("accuracy", "accuracy", lambda run: run.accuracy, partial(percent, digits=2), lambda x: f"{100 * x:.2f}"),
    Number("loss", "loss", lambda run: run.loss, "{:.4g}".format, "{:.2g}".format),
    Number("seconds", "seconds", lambda run: run.seconds, "{:,.4g} s".format, "{:.2g}".format),
    Number("seconds_to_target", "to target", lambda run: run.seconds_to_target, "{:,.4g} s".format, "{:.2g}".format),
    Number("steps_per_second", "steps/s", lambda run: run.steps_per_second, human_rate),
    Number("computing_share", "computing", lambda run: run.computing_share, percent),
    Number("waiting_share", "waiting", lambda run: run.waiting_share, percent),
    Number("bytes_sent", "sent", lambda run: run.bytes_sent, human_bytes),
    Number("consensus_distance", "apart", lambda run: run.consensus_distance, "{:.3g}".format, "{:.2g}".format),
)


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """On a console of standard error; as wide as it must be where that is no terminal."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 200), emoji=False)
    runs = sum(len(row.runs) for row in rows)
    seeds = max(len(row.runs) for row in rows)
    over = f", mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    console.print(Text(f"sweep of {counted(runs, 'run')}, virtual time{over}", style="bold"), soft_wrap=True)
    console.print()
    table = rows_table(rows)
    left_out, endless = 0, console.options.update(max_width=10_000)
    while left_out < len(LEAST) and Measurement.get(console, endless, table).maximum > console.width:
        left_out += 1
        table = rows_table(rows, without=LEAST[:left_out])
    console.print(table)


def rows_table(rows: Sequence[Row], without: Sequence[str] = ()) -> Table:
    """`without`: names of numbers to leave out, for a narrow terminal."""
    names, numbers = varying(rows), [number for number in _numbers_of(rows) if number.name not in without]
    target = rows[0].setting.target_accuracy
    captions = {
        "steps_per_second": "steps/s: of a worker.",
        "bytes_sent": "sent: by all workers.",
        "consensus_distance": "apart: of the workers from their mean, before the last average.",
        "seconds_to_target": f"to target: until a point of the curve has accuracy {target}.",
    }
    caption = " ".join(captions[number.name] for number in numbers if number.name in captions)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    for name in names:
        left = name in ("strategy", "straggler", "task", "model")
        table.add_column(
            HEADS.get(name, name), justify="left" if left else "right", no_wrap=name != "strategy", overflow="fold"
        )
    for number in numbers:
        table.add_column(number.head, justify="right", no_wrap=True)
    for row in rows:
        values = (value_of(row, name) for name in names)
        cells = [
            _reached(row, number) if number.name == "seconds_to_target" else number.cell(row) for number in numbers
        ]
        table.add_row(*("-" if value is None else str(value) for value in values), *cells)
    return table


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The settings that vary, and of each number the mean and standard deviation over seeds; empty: there is none."""
    names, numbers = varying(rows), _numbers_of(rows)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        heads = [head for number in numbers for head in (number.name, f"{number.name}_std")]
        reached = ["seeds_to_target"] if any(number.name == "seconds_to_target" for number in numbers) else []
        writer.writerow([*names, "seeds", *heads, *reached])
        for row in rows:
            cells = [cell for number in numbers for cell in (row.mean(number.of), row.spread(number.of))]
            count = [len(row.values(lambda run: run.seconds_to_target))] if reached else []
            writer.writerow([*(value_of(row, name) for name in names), len(row.runs), *cells, *count])


def _numbers_of(rows: Sequence[Row]) -> list[Number]:
    """Those that apply to any row."""
    wants_target = any(row.setting.target_accuracy is not None for row in rows)
    return [
        number
        for number in NUMBERS
        if any(row.values(number.of) for row in rows) or (number.name == "seconds_to_target" and wants_target)
    ]


def _reached(row: Row, number: Number) -> str:
    """How soon, and by how many of the seeds where not by all."""
    count = len(row.values(number.of))
    if count == 0:
        return "not reached"
    return number.cell(row) + ("" if count == len(row.runs) else f" ({count} of {len(row.runs)})")
