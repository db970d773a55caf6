"""SweepProgress: how many runs of a sweep are done, what runs now, and how long the rest will take."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .live import live_on
from .progress import clock_time
from .table import counted, percent

EVERY_SECONDS = 3.0  # between two plain lines


class SweepProgress:
    """`with SweepProgress(costs) as progress: progress.update("ddp, seed 0", share, cost)`.

    Live on a terminal, gone after the block; plain lines on standard error elsewhere.
    """

    def __init__(
        self,
        costs: Sequence[float],  # of the runs to do, in any unit
        *,
        kept: int = 0,  # runs done before, by an earlier sweep
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console(stderr=True, emoji=False)
        self._runs, self._cost, self._kept, self._quiet = len(costs), sum(costs), kept, quiet
        self._clock = clock
        self._began = clock()
        self._done, self._done_cost = 0, 0.0
        self._running: dict[str, tuple[float, float]] = {}  # its share done, and its cost
        self._printed_at = -float("inf")
        self._live = None if quiet or not self._runs else live_on(self.console, self.render)

    def update(self, run: str, share: float, cost: float) -> None:
        """A run begins (share 0), goes on, or is over (share 1)."""
        self._running = {**self._running, run: (share, cost)}
        if share >= 1:
            self._running = {name: each for name, each in self._running.items() if name != run}
            self._done, self._done_cost = self._done + 1, self._done_cost + cost
        last = self._done == self._runs
        if self._live is None and (last or self._clock() >= self._printed_at + EVERY_SECONDS):
            self._printed_at = self._clock()
            self._print(self.line())

    def __enter__(self) -> "SweepProgress":
        self._began = self._clock()
        if self._kept:
            self._print(
                f"{counted(self._kept, 'run')} of this sweep {'is' if self._kept == 1 else 'are'} done already and "
                f"not repeated (remove runs.jsonl to run all again); {self._runs or 'none'} left to do"
            )
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.transient = kind is None
            self._live.stop()

    def line(self) -> str:
        """All of it in one line, without control codes."""
        now = f"; now {'; '.join(self._now())}" if self._running else ""
        return f"sweep: {self._done} of {counted(self._runs, 'run')} done, {self._times()}{now}"

    def render(self) -> RenderableType:
        overall = Table.grid(padding=(0, 2, 0, 0), expand=True)
        overall.add_column(no_wrap=True)
        overall.add_column(ratio=1)
        overall.add_column(no_wrap=True)
        overall.add_row(
            Text(f"sweep  {self._done} of {counted(self._runs, 'run')}", style="bold"),
            ProgressBar(total=1.0, completed=self._share(), complete_style="cyan", finished_style="green"),
            Text(f"{percent(self._share())}  {self._times()}"),
        )
        return Group(overall, *(Text(f"  {each}", style="dim", no_wrap=True) for each in self._now()))

    def _now(self) -> list[str]:
        return [f"{name} ({percent(share)})" for name, (share, _) in self._running.items()]

    def _share(self) -> float:
        under_way = sum(share * cost for share, cost in self._running.values())
        return min(1.0, (self._done_cost + under_way) / self._cost) if self._cost else 1.0

    def _times(self) -> str:
        elapsed, share = self._clock() - self._began, self._share()
        left = f", about {clock_time(elapsed * (1 - share) / share)} left" if 0 < share < 1 else ""
        return f"{clock_time(elapsed)} elapsed{left}"

    def _print(self, sentence: str) -> None:
        if not self._quiet:
            print(sentence, file=self.console.file, flush=True)
