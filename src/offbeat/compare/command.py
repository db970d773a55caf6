"""What `offbeat compare` does with its flags."""

import time
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ..errors import BadInput, OffbeatError
from ..lists import split_specs
from ..report.json_file import check_json, write_json
from ..report.outputs import replacing
from ..report.status import to_json
from ..sim.command import parse_stragglers
from .contest import Contest, Outcome, run_contest
from .outputs import NO_PLOTLY, write_outputs
from .progress import RaceProgress
from .record import record_of
from .table import print_outcomes, rows_of

LINK = "100mbit"
SNAPSHOTS = 30  # of a run whose accuracy is asked for


def compare(
    *,
    strategies: str,
    link: str | None,
    workers: tuple[int, ...],
    loopback: bool,
    straggler: tuple[str, ...],
    target_accuracy: float | None,
    snapshots: int | None,
    out: Path | None,
    json_file: Path | Literal["-"] | None,
    quiet: bool,
    **rest: Any,
) -> None:
    if loopback and link is not None:
        raise BadInput(
            f"--link {link} would go unused beside --loopback, where nothing is shaped: leave one of the two out"
        )
    if snapshots is None:
        snapshots = SNAPSHOTS if target_accuracy is not None else 1
    contest = Contest(
        strategies=split_specs(strategies),
        links=(None,) if loopback else tuple(part.strip() for part in (LINK if link is None else link).split(",")),
        workers=workers,
        slower=tuple(parse_stragglers(straggler).items()),
        target_accuracy=target_accuracy,
        snapshots=snapshots,
        **{name: value for name, value in rest.items() if value is not None},
    )
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--out {out} cannot be made ({error.strerror}): give a folder of yours") from None
    if json_file is not None:
        check_json(json_file)
    console, began = Console(stderr=True, emoji=False, markup=False), time.time()
    progress = RaceProgress(sum(1 for _ in contest.entries()), console, quiet=quiet)
    finished: list[Outcome] = []

    def ended(outcome: Outcome) -> None:
        finished.append(outcome)
        if out is not None:  # what is measured so far is kept, whatever comes
            with replacing(out / "compare.json") as path:
                path.write_text(to_json(record_of(contest, finished, began), indent=1), encoding="utf-8")
        progress.end_lap(line_of(outcome))

    try:
        with progress:
            run_contest(contest, watch=progress.update, ended=ended)
        if not quiet:
            print_outcomes(console, contest, rows_of(finished))
        if json_file is not None:
            write_json(json_file, record_of(contest, finished, began))
        asked = [outcome for outcome in finished if outcome.entry.strategy in contest.strategies]
        if all(outcome.measures is None for outcome in asked):  # the baseline alone is no race
            raise OffbeatError(f"nobody could run: {asked[0].failure}")
    finally:  # also of a contest that is broken off
        if out is not None and finished:
            told = write_outputs(out, contest, finished, record_of(contest, finished, began))
            if not quiet or told == NO_PLOTLY:
                console.print(told, highlight=False, soft_wrap=True)


def line_of(outcome: Outcome) -> str:
    found = outcome.measures
    if found is None:
        return f"{outcome.entry}: {outcome.failure}"
    share = "" if outcome.throughput_share is None else f", {outcome.throughput_share:.3f} of no communication"
    wire = "" if found.wire_utilisation is None else f", wire {found.wire_utilisation:.0%}"
    accuracy = "" if found.accuracy is None else f", accuracy {found.accuracy:.3f}"
    return f"{outcome.entry}: {found.steps_per_second:.2f} steps/s{share}{wire}{accuracy}"
