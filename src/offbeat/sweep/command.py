"""What `offbeat simulate` does when a flag has several values."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..compiler import leave_compiler_unloaded
from ..errors import BadInput
from ..lists import Given, combinations
from ..report.json_file import write_json
from ..report.sweep_table import print_rows, write_csv
from ..sim.command import check_device, parse_seconds
from ..sim.simulate import measured_step_seconds
from ..train.ending import check_outputs
from ..train.job import blaming_own_task
from .kept import FILE
from .rows import rows_of
from .run import sweep as run
from .run import unique
from .setting import Setting

AS_GIVEN = (
    "task",
    "model",
    "data",
    "epochs",
    "steps",
    "local_latency",
    "timing_only",
    "model_bytes",
    "device",
    "evaluate_every",
    "target_accuracy",
)


def sweep(given: Given) -> None:
    leave_compiler_unloaded()
    out, json_file, quiet = given["out"], given["json_file"], given["quiet"]
    settings = settings_of(given)
    check_outputs(replace(settings[0].job, json=Path(json_file) if json_file not in (None, "-") else None))
    if given["step_seconds"] == "measured":
        settings = with_measured_seconds(settings)
    runs = run(settings, processes=given["processes"], out=out, progress=not quiet)
    rows = rows_of(runs)
    if not quiet:
        print_rows(Console(stderr=True, emoji=False), rows)
    if out is not None:
        from ..report.sweep_plots import draw_sweep  # matplotlib takes its time

        try:
            write_csv(out / "table.csv", rows)
            pictures = draw_sweep(out, rows)
        except OSError as error:
            raise BadInput(f"{out} cannot be written to ({error.strerror}): give --out a folder of yours") from error
        if not quiet:
            names = ", ".join([FILE, "table.csv", *(path.name for path in pictures)])
            print(f"in {out}: {names}", file=sys.stderr)
    if json_file is not None:
        write_json(json_file, {"runs": [run.as_dict() for run in runs]})


def settings_of(given: Given) -> list[Setting]:
    """Every run that the flags ask for, once, each of them checked."""
    check_device(given["device"], given["step_seconds"])
    seconds = 1.0 if given["step_seconds"] == "measured" else parse_seconds(given["step_seconds"])
    common: dict[str, Any] = {name: given[name] for name in AS_GIVEN}
    return unique(Setting(**common, step_seconds=seconds, **each) for each in combinations(given))


def with_measured_seconds(settings: Sequence[Setting]) -> list[Setting]:
    """Each with the time of a step on this machine, measured once for every size of batches."""
    seconds: dict[int | None, float] = {}
    for setting in settings:
        if setting.batch not in seconds:
            with blaming_own_task(setting.task, "in the simulation"):
                seconds[setting.batch] = measured_step_seconds(setting.job)
    return [replace(setting, step_seconds=seconds[setting.batch]) for setting in settings]
