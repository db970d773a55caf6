"""The table at the end of a run: one row per worker, or the spread over the workers where they are many."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..layout import Ranks
from .status import Result, Status

MAX_ROWS = 16  # more workers than this are shown as quantiles
QUANTILES = {"min": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "max": 1.0}
BAR_WIDTH = 6


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def human_bytes(nbytes: float) -> str:
    """1234567 -> "1.23 MB"; powers of 1000."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        nbytes /= 1000
        if nbytes < 999.5 or unit == "PB":
            break
    return f"{nbytes:.3g} {unit}"


def human_seconds(seconds: float) -> str:
    """0.0123 -> "12.3 ms", 12.3 -> "12.3 s", 125 -> "2 min 05 s"."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 119.5:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def human_count(number: float) -> str:
    """12345 -> "12,345", 409600000 -> "409.6 M"."""
    return f"{number:,.0f}" if number < 1e6 else f"{number / 1e6:,.1f} M"


def human_rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.1f}" if number >= 10 else f"{number:.3g}"


def bar(share: float, ascii_only: bool = False) -> str:
    """0.7 -> "████▎ ", to the eighth of a sign where the terminal has such signs."""
    eighths = round(8 * BAR_WIDTH * min(max(share, 0.0), 1.0)) if math.isfinite(share) else 0
    full, rest = divmod(eighths, 8)
    signs = "#" * full if ascii_only else "█" * full + " ▏▎▍▌▋▊▉"[rest].strip()
    return f"{signs:<{BAR_WIDTH}}"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def quantile(values: Iterable[float], at: float) -> float:
    """The value at that place in the sorted ones; a NaN counts as the largest, so that `max` shows it."""
    ordered = sorted(values, key=lambda value: (math.isnan(value), value))
    return ordered[round(at * (len(ordered) - 1))]


@dataclass(frozen=True)
class Column:
    """One number of a Status, how it reads, and what it is for all workers together."""

    name: str
    of: Callable[[Status], float | None]
    text: Callable[[float], str]
    total: Callable[[Sequence[float]], float]

    def cell(self, workers: Iterable[Status], pick: Callable[[Sequence[float]], float]) -> str:
        """The number that `pick` makes of the workers' numbers; "-" where the notion does not apply."""
        known = [value for value in map(self.of, workers) if value is not None]
        return self.text(pick(known)) if known else "-"


STEP = Column("steps", lambda status: status.step, human_count, sum)
LOSS = Column("loss", lambda status: status.loss, "{:.4g}".format, mean)
SPEED = Column("steps/s", lambda status: status.steps_per_second, human_rate, sum)
COMPUTING = Column("computing", lambda status: status.computing_share, percent, mean)
WAITING = Column("waiting", lambda status: status.waiting_share, percent, mean)
SENT = Column("sent", lambda status: status.bytes_sent, human_bytes, sum)
AVERAGES = Column("averages", lambda status: status.averages, human_count, sum)
DELAY = Column("delay", lambda status: status.delay, "{:.1f}".format, mean)


def headline(result: Result) -> str:
    """The run in one sentence."""
    if result.accuracy is not None:
        outcome = f"accuracy {percent(result.accuracy, 1)} of the averaged model"
    elif result.loss is not None:
        outcome = f"loss {result.loss:.4g} of the averaged model"
    else:
        outcome = "timing only"
    where = f"{counted(result.workers, 'worker')} on {counted(result.nodes, 'node')}"
    virtual = " of virtual time" if result.world == "virtual" else ""
    compute = "" if result.compute == "real" else f" (compute {result.compute})"
    return (
        f"{result.strategy} on {result.task}: {outcome}, {where} computing "
        f"{percent(result.computing_share)} of the time, {human_seconds(result.seconds)}{virtual}{compute}"
    )


def result_table(result: Result, node_of: Ranks, ascii_only: bool = False) -> Table:
    """`node_of[rank]` is the node of each rank."""
    workers = sorted(result.per_worker, key=lambda status: status.rank)
    many = len(workers) > MAX_ROWS  # then every column has a spread of its own: a row is not one worker
    computing = Column(
        "computing", COMPUTING.of, lambda share: f"{bar(share, ascii_only)} {percent(share):>5}", COMPUTING.total
    )
    columns = (STEP, SPEED, computing, WAITING, SENT, AVERAGES, DELAY)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        caption="delay: mean steps from the snapshot to the merge of an average. "
        "all: sums, but means of computing, waiting and delay.",
        caption_justify="left",
    )
    labels = ("worker",) if many else ("rank", "node")
    for name in (*labels, *(column.name for column in columns)):
        table.add_column(name, justify="right", no_wrap=True)
    if not many:
        for status in workers:
            cells = [column.cell([status], mean) for column in columns]
            table.add_row(str(status.rank), str(node_of[status.rank]), *cells)
    else:
        for label, at in QUANTILES.items():
            table.add_row(label, *(column.cell(workers, partial(quantile, at=at)) for column in columns))
    table.add_section()
    totals = [column.cell(workers, column.total) for column in columns]
    table.add_row("all", *([] if many else [""]), *totals, style="bold")
    return table


def print_result(console: Console, result: Result, node_of: Ranks) -> None:
    """The headline and the table, on a console of standard output or standard error."""
    console.print(Text(headline(result), style="bold"), soft_wrap=True)
    console.print()
    console.print(result_table(result, node_of, console.options.ascii_only))
