"""Kept: a result as benchmarks/results has them, with date, command, machine, versions and whether it held."""

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from offbeat.compare.record import without
from offbeat.report.outputs import replacing

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Start:
    """When a benchmark began, and of which sources: others may have taken their place by its end."""

    seconds: float = field(default_factory=time.time)
    commit: str | None = field(default_factory=lambda: commit())


def keep(path: Path, *, start: Start, held: bool, runs: list[dict[str, Any]], **more: Any) -> None:
    """runs: what was measured, one by one."""
    record = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start.seconds)),
        "command": command(),
        "machine": {
            "cpus": len(os.sched_getaffinity(0)), "processor": platform.machine(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": {
            "torch": version("torch"), "python": platform.python_version(), "kernel": platform.release(),
        },
        "commit": start.commit,
        "held": held,
        **more,
        "runs": runs,
    }  # fmt: skip
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def command() -> list[str]:
    return ["python", f"benchmarks/{Path(sys.argv[0]).name}", *without(sys.argv[1:], "--json")]


def commit() -> str | None:
    """Of the sources as they are; None where they are no clone, or there is no git."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
