"""learned_profile: measure a device, learn from that, and judge what was learned.

On a CPU real steps are made, and their operations timed in place: its caches are large, and what an operation finds
there depends on those before it. On a GPU, where the host only issues kernels, they are timed one by one.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import BadInput
from ..malloc import keep_freed_memory
from ..sim.network import Link
from .calibrate import calibrate as measure
from .calibrate import device_name, setup_of
from .calibrate_steps import Case, at_usual_speed, case_name, in_turns, visit_models
from .device_profile import DeviceProfile
from .fit import Fitted
from .host import fit_host
from .kernel import Kernel
from .layers import random_kernels
from .learn import FEWEST, Judged, learn_kernels, learned_from_only, measured_device
from .measured_step import RealStep, dispatch_seconds, measured_step
from .predict import predict
from .profile import Profile
from .random_models import random_models
from .subject import Subject
from .timed_step import Visit, visit
from .timing import Stopwatch
from .trace import Platform
from .zoo import held_out, kernels_of, learned_from, references

LEARN_SECONDS, STEPS_SECONDS = 60.0, 60.0  # of the time; what is left is for measuring
HELD_OUT_SHARE, ZOO_SHARE = 0.2, 0.3  # of what is left on a GPU; the rest is for random layers
BATCHES = {"cpu": (2, 8, 32), "cuda": (32, 256)}
MOST_ELEMENTS = 1 << 26  # of a random layer's tensor on a GPU
MOST_FLOPS = 2e10  # of a random model's step on a CPU
LOOK_AT = 5000  # random kernels, of which `per_kind` of each kind are measured
LOCAL = {"cpu": Link(bytes_per_second=5e9, seconds=2e-5), "cuda": Link(bytes_per_second=32e9, seconds=5e-6)}
BAND_OF_THE_REST = (0.5, 2.0)  # classes that were not measured

Step = Callable[[str, int, int], None]  # what is done now, how much of it, of how much (0: what there is time for)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How a device is measured. Tests make it small."""

    platform: Platform
    device: torch.device
    path: Path  # of the profile; what is measured is kept beside it
    minutes: float
    bf16: bool = False
    per_kind: int = 300
    seed: int = 0
    batches: tuple[int, ...] | None = None
    look_at: int = LOOK_AT
    stopwatch: Stopwatch | None = None
    visiting: Callable[[RealStep, Callable[[], None]], Visit] = visit

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.bf16 else None

    def cases(self, models: Iterable[Subject]) -> list[Case]:
        return [(each, batch) for each in models for batch in self.batches or BATCHES[self.platform]]


def learned_profile(how: Calibration, fitted: Fitted | None, step: Step) -> DeviceProfile:
    """What is measured is kept, so that an interrupted calibration goes on when called again."""
    judged_by = how.cases(held_out(how.platform, how.autocast))
    later = LEARN_SECONDS + (STEPS_SECONDS if how.platform == "cuda" else 0.0)
    end = time.monotonic() + 60 * how.minutes - min(later, 30 * how.minutes)
    dispatch, host = 0.0, None
    if how.platform == "cpu":
        measured = at_usual_speed(_visited(how, judged_by, end, step))
        unseen = {case_name(*case) for case in judged_by}
        host = fit_host([timing for name, timing in measured.steps.items() if name not in unseen])
        real = {name: timing.seconds for name, timing in measured.steps.items() if name in unseen}
    else:
        measured = _timed_alone(how, judged_by, end, step)
        dispatch = dispatch_seconds(itertools.islice(learned_from("cuda"), 2, 3), how.device)
        real = _real_steps(how, judged_by, step)
    if len(measured.timings) < FEWEST:
        raise BadInput(f"--minutes {how.minutes:g} was time for {len(measured.timings)} kernels: give more")
    step("learning", 0, 1)
    traced = {case_name(subject, batch): subject.at(batch) for subject, batch in judged_by}
    seen = learned_from_only(measured.timings, traced)
    known = measured_device(
        device_name(how.device), seen, memory_bytes=_memory_of(how.device), dispatch_seconds=dispatch
    )
    profile = DeviceProfile(
        device=known,
        platform=how.platform,
        label="calibrated",
        band=BAND_OF_THE_REST,
        local=LOCAL[how.platform],
        kernels=learn_kernels(measured.timings, known, traced, seed=how.seed),
        host=host,
        all_reduce=fitted,
        reference_seconds=measured.reference_seconds,
        setup={**setup_of(how.device), "autocast": "bf16" if how.bf16 else None, "seed": how.seed},
        source=f"offbeat calibrate: {len(measured.timings)} kernels",
    )
    predicted = {name: predict(traced[name], profile).time.seconds for name in real}
    return _judged(profile, {name: predicted[name] / seconds - 1 for name, seconds in real.items()})


def kernels_file(path: Path, *, bf16: bool = False) -> Path:
    """Where what is measured is kept: with autocast it is something else."""
    return path.with_name(f"{path.stem}{'.bf16' if bf16 else ''}.kernels.part")


def _visited(how: Calibration, judged_by: list[Case], end: float, step: Step) -> Profile:
    keep_freed_memory()
    some = _alternating(judged_by, how.cases(learned_from("cpu", how.autocast)))
    endless = random_models(seed=how.seed, most_flops=MOST_FLOPS, autocast=how.autocast)
    return visit_models(
        in_turns(some, endless),
        kernels_file(how.path, bf16=how.bf16),
        references=references(),
        at_most_seconds=end - time.monotonic(),
        progress=lambda number, _case: step("real steps", number, 0),
        visiting=how.visiting,
    )


def _timed_alone(how: Calibration, judged_by: list[Case], end: float, step: Step) -> Profile:
    kept, batches = kernels_file(how.path, bf16=how.bf16), how.batches or BATCHES["cuda"]
    stopwatch = how.stopwatch or Stopwatch(device=how.device, calls=9, at_most_seconds=0.4)

    def some(what: str, kernels: Iterator[Kernel], share: float, most: int) -> Profile:
        return measure(
            kernels, kept, device=how.device, per_kind=most, look_at=how.look_at, stopwatch=stopwatch,
            at_most_seconds=max(0.0, (end - time.monotonic()) * share),
            progress=lambda done, all_, _kernel: step(what, done, all_),
        )  # fmt: skip

    theirs = (op.kernel for subject, batch in judged_by for op in subject.at(batch).ops if op.nbytes)
    some("held-out models", theirs, HELD_OUT_SHARE, 10**6)
    some("the zoo", kernels_of(learned_from("cuda", how.autocast), batches), ZOO_SHARE, how.per_kind)
    drawn = random_kernels(seed=how.seed, most=MOST_ELEMENTS, platform="cuda", autocast=how.autocast)
    return some("random layers", drawn, 1.0, how.per_kind)


def _real_steps(how: Calibration, cases: list[Case], step: Step) -> dict[str, float]:
    """As many as there is time for, but two."""
    seconds = min(STEPS_SECONDS, 8 * how.minutes)
    found, end = dict[str, float](), time.monotonic() + seconds
    for number, (subject, batch) in enumerate(cases, 1):
        if len(found) < 2 or time.monotonic() < end:
            taken = measured_step(subject, batch, how.device, at_most_seconds=seconds / len(cases))
            found[case_name(subject, batch)] = taken
            step("real steps", number, len(cases))
    return found


def _judged(profile: DeviceProfile, errors: Mapping[str, float]) -> DeviceProfile:
    """With the errors of real steps of held-out models."""
    assert profile.kernels is not None
    held_out = {**profile.kernels.held_out, "steps": Judged(errors, {}).as_dict()}
    return replace(profile, kernels=replace(profile.kernels, held_out=held_out))


def _alternating(first: list[Case], second: list[Case]) -> Iterator[Case]:
    for pair in itertools.zip_longest(first, second):
        yield from (case for case in pair if case is not None)


def _memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
