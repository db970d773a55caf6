"""What a race shows while it is on: two lines on a terminal, whatever its width; plain lines elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from offbeat.compare.contest import Contest, Entry, Outcome, run_contest
from offbeat.compare.lap import Underway
from offbeat.compare.odometer import new_odometer, odometer
from offbeat.compare.progress import RaceProgress

LONG = Entry("benchmarks/rivals/torchft_diloco.py:train:every=32,fragments=2,delay=12,trail=0.1", "100mbit", 4, 2, 2)


@pytest.fixture(autouse=True)
def _term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_display_is_two_lines_however_long_a_name_is(width: int) -> None:
    console = Console(file=Terminal(), force_terminal=True, color_system=None, width=width)
    progress = RaceProgress(12, console)
    progress.end_lap("over")
    progress.update(LONG, Underway(75.0, 120.5, 240))
    with console.capture() as capture:
        console.print(progress.render())
    first, second = capture.get().splitlines()
    assert max(len(first), len(second)) <= width
    assert second.startswith("  benchmarks/rivals")
    if width >= 40:
        assert first.startswith("lap 2 of 12  ━━")
        assert first.rstrip().endswith("  step 120 of 240, 1:15")


def test_a_terminal_shows_the_lap_under_way_and_keeps_those_that_are_over() -> None:
    file = Terminal()
    with RaceProgress(2, Console(file=file, force_terminal=True, width=80)) as progress:
        progress.update(LONG, Underway(1.0, 3.0, 240))
        progress.end_lap("none on 4 workers: 10.00 steps/s")
        progress.update(LONG, Underway(1.0, 6.0, 240))
    shown = file.getvalue()
    assert "lap 1 of 2: none on 4 workers: 10.00 steps/s\n" in shown
    assert "step 6 of 240" in shown
    assert 0 <= shown.rfind("\x1b[?25l") < shown.rfind("\x1b[?25h"), "the cursor is back"


def test_a_pipe_gets_a_line_for_each_lap_and_one_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI sets it
    file = io.StringIO()
    with RaceProgress(2, Console(file=file)) as progress:
        for second in range(130):
            progress.update(LONG, Underway(second, second, 240))
        progress.end_lap("over")
        progress.update(LONG, Underway(0.0, 0.0, 240))
    assert file.getvalue().splitlines() == [
        f"lap 1 of 2: {LONG}, step 60 of 240, 1:00",
        f"lap 1 of 2: {LONG}, step 120 of 240, 2:00",
        "lap 1 of 2: over",
    ]


def test_a_terminal_that_can_only_print_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    with RaceProgress(2, Console(file=file)) as progress:
        progress.end_lap("over")
    assert file.getvalue() == "lap 1 of 2: over\n"


@pytest.mark.parametrize("file", [io.StringIO(), Terminal()])
def test_quiet_shows_nothing(file: io.StringIO) -> None:
    with RaceProgress(2, Console(file=file), quiet=True) as progress:
        progress.update(LONG, Underway(100.0, 3.0, 240))
        progress.end_lap("over")
    assert file.getvalue() == ""


def test_an_odometer_is_one_for_all_who_open_it(tmp_path: Path) -> None:
    made = new_odometer(tmp_path, 2)
    assert made.tolist() == [0, 0]
    odometer(tmp_path)[1] = 7
    assert made.tolist() == [0, 7]


@pytest.mark.timeout(120)
def test_whoever_watches_a_lap_is_told_its_steps() -> None:
    seen: list[Underway] = []
    over: list[Outcome] = []
    contest = Contest(strategies=("none",), links=(None,), workers=(2,), steps=10, step_seconds=0.2)
    run_contest(contest, watch=lambda _entry, underway: seen.append(underway), ended=over.append)
    assert [outcome.failure for outcome in over] == [None]
    made = [underway.made for underway in seen]
    assert made == sorted(made)
    assert {underway.steps for underway in seen} == {10}
    assert made[0] == 0
    assert made[-1] > 5
