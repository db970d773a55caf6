"""Profile: what was measured of a device, in one file of JSON: kernels, and whole steps."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .host import PhaseTiming, StepTiming
from .kernel import Kernel
from .written import from_json, to_json

VERSION = 9


@dataclass(frozen=True)
class Timing:
    """Of a kernel, over all places where it was met."""

    seconds: float  # the mean
    calls: int


@dataclass
class Profile:
    """Times of kernels on a device, and how torch was set up when they were taken."""

    device: str  # as the device calls itself
    setup: dict[str, Any]  # torch, threads, TF32 and the like: other values would give other times
    timings: dict[Kernel, Timing] = field(default_factory=dict)
    steps: dict[str, StepTiming] = field(default_factory=dict)  # by model and batch
    reference_seconds: float | None = None  # of the references' steps: all times are at this speed of the host
    unlike: list[str] = field(default_factory=list)  # steps that issue other operations than their trace: left out
    failed: dict[str, str] = field(default_factory=dict)  # steps that could not be made or timed here, and why

    def knows(self, step: str) -> bool:
        """Whether the step of that name was visited."""
        return step in self.steps or step in self.unlike or step in self.failed

    def save(self, path: Path) -> None:
        """Whole or not at all: a calibration that is interrupted goes on where it was."""
        record = {
            "version": VERSION,
            "device": self.device,
            "setup": self.setup,
            "reference_seconds": self.reference_seconds,
            "unlike": self.unlike,
            "failed": self.failed,
            "steps": {name: asdict(step) for name, step in self.steps.items()},
            "kernels": list(self._rows()),
        }
        text = json.dumps(record, indent=0)
        beside = path.with_name(path.name + ".part")
        beside.write_text(text)
        os.replace(beside, path)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for kernel, timing in self.timings.items():
            yield to_json(kernel) | {"seconds": timing.seconds, "calls": timing.calls}

    @classmethod
    def load(cls, path: Path) -> "Profile":
        try:
            read = json.loads(path.read_text())
            if read["version"] != VERSION:
                raise BadInput(
                    f"profile {path} is of version {read['version']}, not {VERSION}: delete it, and calibrate again"
                )
            timings = {from_json(row): Timing(row["seconds"], row["calls"]) for row in read["kernels"]}
            steps = {name: _step(row) for name, row in read["steps"].items()}
            failed = dict(read.get("failed", {}))  # which older ones do not have
            return cls(read["device"], read["setup"], timings, steps, read["reference_seconds"], read["unlike"], failed)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{path} is no profile of a device ({error}): write one with offbeat calibrate") from error


def _step(read: dict[str, Any]) -> StepTiming:
    phases = {phase: PhaseTiming(**each) for phase, each in read["phases"].items()}
    return StepTiming(read["seconds"], phases, read["reference_seconds"], read["bulk"], read["device_seconds"])
