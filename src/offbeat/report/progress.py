"""Progress: all workers, live, on standard error; plain lines where that is no terminal."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .live import live_on
from .status import Status
from .table import (
    COMPUTING,
    DELAY,
    LOSS,
    MAX_ROWS,
    SPEED,
    STEP,
    WAITING,
    counted,
    human_seconds,
    mean,
    percent,
    quantile,
)

COLUMNS = (STEP, LOSS, SPEED, DELAY, COMPUTING, WAITING)
SPREAD = {"min": 0.0, "median": 0.5, "max": 1.0}


class Progress:
    """`with Progress("lasgd on digits") as progress: progress.update(statuses)`, as often as you like.

    `update` only takes note; the terminal is drawn a few times a second by a thread of its own. After the block
    the display is gone (the table of the result follows), but after an error its last state stays.
    """

    def __init__(
        self,
        title: str = "training",
        *,
        world: Literal["real", "virtual"] = "real",
        quiet: bool = False,
        console: Console | None = None,
        every_seconds: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = title
        self.world = world
        self.quiet = quiet
        self.console = console or Console(stderr=True, emoji=False)
        self.every_seconds = every_seconds  # between two plain lines
        self._clock = clock
        self._began = clock()
        self._first: tuple[float, float] | None = None  # when the first status came, and the share done by then
        self._latest: dict[int, Status] = {}
        self._printed_at = -float("inf")
        self._printed: dict[int, Status] = {}
        self._live = None if quiet else live_on(self.console, self.render)

    def update(self, statuses: Iterable[Status]) -> None:
        """Of some workers or of all; the others keep their last status."""
        self._latest = {**self._latest, **{status.rank: status for status in statuses}}
        if self._first is None and self._latest:
            self._first = self._clock(), self._done()
        if self._live is None and self._clock() >= self._printed_at + self.every_seconds:
            self._print_line()

    def __enter__(self) -> "Progress":
        self._began = self._clock()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.transient = kind is None
            self._live.stop()
        elif self._latest and self._printed is not self._latest:
            self._print_line()

    def line(self) -> str:
        """The workers in one line, without control codes."""
        workers = list(self._latest.values())
        if not workers:
            return f"{self.title}: no worker has reported yet"
        parts = [
            f"{self.title}: {self._steps()} ({percent(self._done())})",
            self._times(),
            f"loss {LOSS.cell(workers, mean)}",
            f"{SPEED.cell(workers, mean)} steps/s a worker",
            f"computing {COMPUTING.cell(workers, mean)}",
            f"waiting {WAITING.cell(workers, mean)}",
        ]
        if any(status.delay is not None for status in workers):
            parts.append(f"delay {DELAY.cell(workers, mean)} steps")
        return ", ".join(parts)

    def render(self) -> RenderableType:
        """The overall bar, and a row per worker (or the spread over many)."""
        overall = Table.grid(padding=(0, 2, 0, 0), expand=True)
        overall.add_column(no_wrap=True)
        overall.add_column(ratio=1)
        overall.add_column(no_wrap=True)
        if not self._latest:
            overall.add_row(Text(self.title, style="bold"), ProgressBar(total=None, pulse=True), self._times())
            return overall
        overall.add_row(
            Text(f"{self.title}  {self._steps()}", style="bold"),
            ProgressBar(total=1.0, completed=self._done(), complete_style="cyan", finished_style="green"),
            Text(f"{percent(self._done())}  {self._times()}"),
        )
        return Group(overall, self._rows())

    def _rows(self) -> Table:
        workers = [self._latest[rank] for rank in sorted(self._latest)]
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        many = len(workers) > MAX_ROWS
        table.add_column(counted(len(workers), "worker") if many else "rank", justify="right")
        for column in COLUMNS:
            table.add_column(column.name, justify="right", no_wrap=True)
        if many:
            for label, at in SPREAD.items():
                table.add_row(label, *(column.cell(workers, partial(quantile, at=at)) for column in COLUMNS))
        else:
            for status in workers:
                table.add_row(str(status.rank), *(column.cell([status], mean) for column in COLUMNS))
        return table

    def _print_line(self) -> None:
        self._printed_at, self._printed = self._clock(), self._latest
        if not self.quiet:
            print(self.line(), file=self.console.file, flush=True)

    def _done(self) -> float:
        workers = self._latest.values()
        planned = sum(status.steps for status in workers)
        return min(sum(status.step for status in workers) / planned, 1.0) if planned else 1.0

    def _steps(self) -> str:
        workers = self._latest.values()
        step = int(mean([status.step for status in workers]))
        return f"step {step:,} of {max(status.steps for status in workers):,}"

    def _times(self) -> str:
        now = self._clock()
        words = [f"{clock_time(now - self._began)} elapsed"]
        if self._first is not None:
            since, share = self._first  # a run that resumes starts at a share above 0
            if share < self._done() < 1:
                left = (now - since) * (1 - self._done()) / (self._done() - share)
                words.append(f"{clock_time(left)} left")
        if self.world == "virtual" and self._latest:
            virtual = max(status.seconds for status in self._latest.values())
            words.append(f"{human_seconds(virtual)} of virtual time")
        return ", ".join(words)


def clock_time(seconds: float) -> str:
    """65 -> "1:05", 3700 -> "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
