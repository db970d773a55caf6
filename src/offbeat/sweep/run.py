"""sweep: many runs in virtual time, beside each other, each once."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput
from ..replica import Replica, flatten
from ..report.metrics import MetricsFile
from ..report.sweep_progress import SweepProgress
from ..sim.learners import initial_model
from ..sim.simulate import load_what_is_needed
from ..strategy import Plan
from ..train.ending import check_outputs
from ..train.job import blaming_own_task
from ..train.task import Task
from .finished import Finished
from .kept import FILE, keep, read_kept
from .pool import News, run_all
from .setting import Setting

ALMOST = 0.99  # of a run whose last step is done, but not what follows it


def sweep(
    settings: Sequence[Setting], *, processes: int | None = None, out: Path | str | None = None, progress: bool = True
) -> list[Finished]:
    """Run all settings in virtual time and return what came of each, in their order.

    Settings that are the same run are run once. `processes` run beside each other, by default as many as there are
    CPUs; the results are the same bits for any number of them. With `out`, every run is appended to `runs.jsonl`
    in that folder as soon as it is over, and what already lies there is not run again. `progress`: shown on
    standard error.

    A script that calls this must do so under `if __name__ == "__main__":`, since the processes import it.
    """
    if not settings:
        raise BadInput("a sweep of 0 settings has nothing to run: give at least one")
    out = None if out is None else Path(out)
    processes = available_cpus() if processes is None else processes
    if processes < 1:
        raise BadInput(f"--processes {processes} does not fit: it must be at least 1")
    wanted = unique(settings)
    done = {} if out is None else read_kept(out, wanted)
    missing = [setting for setting in wanted if setting.identity not in done]
    check_tasks(missing)
    if out is not None:
        check_outputs(replace(settings[0].job, out=out))
    with ExitStack() as stack:
        shown = stack.enter_context(SweepProgress([cost(s) for s in missing], kept=len(done), quiet=not progress))
        file = stack.enter_context(MetricsFile(out / FILE)) if out is not None and missing else None

        def tell(news: News) -> None:
            if news.finished is not None:
                done[news.setting.identity] = news.finished
                if file is not None:
                    keep(file, news.finished)
            share = 1.0 if news.finished is not None else min(news.share, ALMOST)
            shown.update(describe(news.setting), share, cost(news.setting))

        run_all(missing, processes, tell)
    return [replace(done[setting.identity], setting=setting) for setting in settings]


def unique(settings: Iterable[Setting]) -> list[Setting]:
    """Without those that are the same run as one before."""
    first: dict[str, Setting] = {}
    for setting in settings:
        first.setdefault(setting.identity, setting)
    return list(first.values())


def check_tasks(settings: Sequence[Setting]) -> None:
    """Load every task and build its model once, so that what does not fit is said before anything runs."""
    tasks: dict[Any, tuple[Task | None, Replica | None]] = {}
    for setting in settings:
        key = (setting.task, setting.data, setting.model, setting.learning_rate, setting.model_bytes, setting.steps)
        with blaming_own_task(setting.task, "in the simulation"):
            if key not in tasks:
                task, replica = load_what_is_needed(setting.job, setting.model_bytes), None
                if task is not None:
                    with torch.random.fork_rng(devices=[]):
                        replica = flatten(initial_model(task, setting.seed))
                tasks[key] = task, replica
            task, replica = tasks[key]
            job = setting.job
            if task is None or (setting.timing_only and setting.steps is not None):
                assert setting.steps is not None
                plan = Plan(setting.steps, setting.steps)
            else:
                plan = job.plan(task)
            job.strategy.check(job.layout, plan)
            fragments = getattr(job.strategy, "fragments", None)
            if fragments is not None and replica is not None and not setting.timing_only:
                replica.fragments(fragments)


def cost(setting: Setting) -> float:
    """About how long a run takes, in steps of a worker; epochs are the same number of them for any workers."""
    return float(setting.workers * setting.steps) if setting.steps is not None else 1e4 * (setting.epochs or 1)


def describe(setting: Setting) -> str:
    """A run in a few words, for the progress."""
    straggler = "" if setting.straggler == "none" else f", straggler {setting.straggler}"
    return f"{setting.strategy} on {setting.workers} workers, {setting.link}{straggler}, seed {setting.seed}"


def available_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
