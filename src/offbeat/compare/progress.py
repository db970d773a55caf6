"""RaceProgress: which lap it is, whose, and how far it is."""

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..report.live import live_on
from ..report.progress import clock_time
from .contest import Entry
from .lap import Underway

EVERY_SECONDS = 60.0  # between two plain lines about one lap


class RaceProgress:
    """`with RaceProgress(laps, console) as progress: progress.update(entry, underway); progress.end_lap(sentence)`

    Live on a terminal, at most two lines, which no name is too long for; gone after the block. Elsewhere a plain line
    for each lap, and one now and then of a lap that takes long.
    """

    def __init__(self, laps: int, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self._laps, self._quiet = laps, quiet
        self._done, self._lines = 0, 0  # laps that are over; plain lines about the present one
        self._now: tuple[Entry, Underway] | None = None
        self._live = None if quiet else live_on(console, self.render, times_per_second=2, transient=True)

    def update(self, entry: Entry, underway: Underway) -> None:
        self._now = entry, underway
        if self._live is None and underway.seconds >= (self._lines + 1) * EVERY_SECONDS:
            self._lines += 1
            self._print(self.line())

    def end_lap(self, sentence: str) -> None:
        self._done, self._lines, self._now = self._done + 1, 0, None
        self._print(f"lap {self._done} of {self._laps}: {sentence}")

    def __enter__(self) -> "RaceProgress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self) -> str:
        """All of it in one line, without control codes."""
        now = self._now
        return self._lap() if now is None else f"{self._lap()}: {now[0]}, {how_far(now[1])}"

    def render(self) -> RenderableType:
        now = self._now  # asked once: the display has a thread of its own
        overall = Table.grid(padding=(0, 2, 0, 0), expand=True)
        overall.add_column(no_wrap=True)
        overall.add_column(ratio=1)
        overall.add_column(no_wrap=True)
        if now is None:
            overall.add_row(Text(self._lap(), style="bold"), ProgressBar(total=None, pulse=True), "")
            return overall
        entry, underway = now
        bar = ProgressBar(underway.steps, underway.made, complete_style="cyan", finished_style="green")
        overall.add_row(Text(self._lap(), style="bold"), bar, how_far(underway))
        return Group(overall, Text(f"  {entry}", style="dim", no_wrap=True, overflow="ellipsis"))

    def _lap(self) -> str:
        return f"lap {min(self._done + 1, self._laps)} of {self._laps}"

    def _print(self, sentence: str) -> None:
        if self._quiet:
            return
        if self._live is None:
            print(sentence, file=self.console.file, flush=True)
        else:
            self.console.print(sentence, highlight=False, soft_wrap=True)


def how_far(underway: Underway) -> str:
    return f"step {underway.made:,.0f} of {underway.steps:,}, {clock_time(underway.seconds)}"
