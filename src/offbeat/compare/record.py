"""What is kept of a contest: compare.json, and what --json writes."""

import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from .contest import Contest, Outcome
from .measures import Measures
from .mps import sharing


def record_of(contest: Contest, outcomes: list[Outcome], began: float) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "command": ["offbeat", *without(sys.argv[1:], "--out", "--json", "--data")],
        "machine": {
            "cpus": len(_cpus()),
            "processor": platform.machine(),
            "gpu": torch.cuda.get_device_name(0) if contest.device == "cuda" else None,
            "gpu_shared_by": sharing(contest.device),
        },
        "versions": {"offbeat": own_version(), "torch": torch.__version__, "python": platform.python_version()},
        "compute": contest.compute,
        "task": contest.task,
        "target_accuracy": contest.target_accuracy,
        "runs": [as_record(outcome) for outcome in outcomes],
    }


def as_record(outcome: Outcome) -> dict[str, Any]:
    """For JSON."""
    entry, found = outcome.entry, outcome.measures
    record: dict[str, Any] = {
        "strategy": entry.strategy,
        "link": entry.link,
        "workers": entry.workers,
        "repeat": entry.repeat,
        "seed": entry.seed,
        "throughput_share": outcome.throughput_share,
        "failure": outcome.failure,
    }
    names = Measures.__dataclass_fields__
    record |= {name: None if found is None else getattr(found, name) for name in names}
    if outcome.lap is not None:
        record["strategy_report"] = outcome.lap.reports[0].strategy
        record["curve"] = [vars(point) for point in outcome.lap.curve]
    return record


def without(words: Sequence[str], *flags: str) -> list[str]:
    """A command line without some flags and their values: where files are says nothing about the result."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and not any(word == flag or word.startswith(f"{flag}=") for flag in flags):
            kept.append(word)
        skip = not skip and word in flags
    return kept


def own_version() -> str:
    try:
        return version("offbeat")
    except PackageNotFoundError:  # run from its sources
        return "not installed"


def _cpus() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
