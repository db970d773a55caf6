"""learned_profile: measure a device, learn from that, and judge what was learned.

Real steps of models are made, and their operations timed in place: what an operation finds in the caches depends on
those before it. The models that it is judged by are visited in turns with those that it learns from.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ..errors import BadInput, OffbeatError
from ..sim.network import Link
from .afresh import visits_afresh
from .calibrate_steps import Visiting, at_usual_speed, case_name, in_turns, one_by_one, visit_models
from .device_profile import DeviceProfile
from .failed import failures_sentence
from .gpu_step import visit_on_gpu
from .host import StepTiming, fit_host
from .kernel import Kernel
from .learn import FEWEST, Judged, Timings, learn_kernels, learned_from_only, measured_device
from .measured_collectives import Collectives
from .predict import predict
from .profile import Profile, Timing
from .profile_at import device_name, setup_of
from .random_layers import random_layers
from .random_models import random_models
from .subject import Case, Subject
from .trace import Platform, TracedStep
from .zoo import JUDGED_AT, held_out, learned_from, references

Batches = tuple[int, ...]

MODELS_IN_A_TURN = {"cpu": 2, "cuda": 1}  # small ones, of which a CPU makes three while it makes one of many layers
LEARN_SECONDS = 80.0  # of the time, for each precision; what is left is for measuring
BATCHES: Mapping[Platform, Batches] = {
    "cpu": (2, 16),
    "cuda": (4, 32, 256),
}  # longer steps take the time of many others
LOCAL = {"cpu": Link(bytes_per_second=5e9, seconds=2e-5), "cuda": Link(bytes_per_second=32e9, seconds=5e-6)}
BAND_OF_THE_REST = (0.5, 2.0)  # classes that were not measured
MOST_MEMORY = 0.4  # of the device's, for a model

Step = Callable[[str, int, int], None]  # what is done now, how much of it, of how much (0: what there is time for)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How a device is measured. Tests make it small."""

    platform: Platform
    device: torch.device
    path: Path  # of the profile; what is measured is kept beside it
    minutes: float
    bf16: bool = False  # also under autocast to bfloat16
    seed: int = 0
    batches: Batches | None = None
    visiting: Visiting | None = None

    @property
    def precisions(self) -> tuple[torch.dtype | None, ...]:
        return (None, torch.bfloat16) if self.bf16 else (None,)

    def cases(self, models: Callable[[Platform, torch.dtype | None], Iterable[Subject]]) -> list[Case]:
        """All of these models, at several batch sizes, in every precision."""
        own = self.batches or BATCHES[self.platform]
        each = [models(self.platform, precision) for precision in self.precisions]
        return [(subject, batch) for subjects in zip(*each, strict=True) for batch in own for subject in subjects]

    @property
    def most_bytes(self) -> float:
        """Of a model in training."""
        return MOST_MEMORY * _memory_of(self.device)

    def random_cases(self) -> Iterator[Case]:
        """Others in each precision: what computes in float32 in both has twice as many sizes to be learned from."""
        most, precisions = self.most_bytes, self.precisions
        models, layers = (
            [
                drawn(seed=len(precisions) * self.seed + place, platform=self.platform, autocast=own, most_bytes=most)
                for place, own in enumerate(precisions)
            ]
            for drawn in (random_models, random_layers)
        )
        while True:
            for source in (*models * MODELS_IN_A_TURN[self.platform], *layers):
                yield next(source)


def learned_profile(how: Calibration, found: Collectives | None, step: Step) -> DeviceProfile:
    """What is measured is kept, so that an interrupted calibration goes on when called again."""
    across, judged_by = found or Collectives(), how.cases(held_out)
    learning = min(LEARN_SECONDS * len(how.precisions), 30 * how.minutes)
    end = time.monotonic() + 60 * how.minutes - learning
    measured = at_usual_speed(_visited(how, judged_by, end, step))
    never = never_learned_from(how)  # to trace a step takes a while: those that it is judged by are among these
    traced = {name: never[name] for name in (case_name(subject, batch) for subject, batch in judged_by)}
    unseen = {subject.name for subject, _batch in judged_by}
    seen = dict(learned_from_only(measured.timings, never))
    if len(seen) < FEWEST:
        raise BadInput(f"--minutes {how.minutes:g} was time for {len(seen)} kernels to learn from: give more")
    step("learning", 0, 1)
    own_steps = [timing for name, timing in measured.steps.items() if name.partition(",")[0] not in unseen]
    host = fit_host(own_steps, how.platform)
    known = measured_device(
        device_name(how.device),
        seen,
        memory_bytes=_memory_of(how.device),
        dispatch_seconds=_usual_dispatch(own_steps) if how.platform == "cuda" else 0.0,
    )
    profile = DeviceProfile(
        device=known,
        platform=how.platform,
        label="calibrated",
        band=BAND_OF_THE_REST,
        local=LOCAL[how.platform],
        kernels=learn_kernels(seen | judged_kernels(measured.timings, traced), known, traced, seed=how.seed),
        host=host,
        all_reduce=across.all_reduce,
        hierarchical=across.hierarchical,
        swap=across.swap,
        reference_seconds=measured.reference_seconds,
        failed={**across.failed, **measured.failed},
        setup={**setup_of(how.device), "bf16": how.bf16, "seed": how.seed},
        source=f"offbeat calibrate: {len(measured.timings)} kernels",
    )
    real = {name: timing.seconds for name, timing in measured.steps.items() if name in traced}
    if not real:
        if lost := {name: why for name, why in measured.failed.items() if name in traced}:
            raise OffbeatError(f"no step of a held-out model could be measured; {failures_sentence(lost)}")
        raise BadInput(f"--minutes {how.minutes:g} was not time for a step of a held-out model: give more")
    predicted = {name: predict(traced[name], profile).time.seconds for name in real}
    errors = {name: predicted[name] / seconds - 1 for name, seconds in real.items()}
    return _judged(profile, errors, measured.unlike)


def never_learned_from(how: Calibration) -> dict[str, TracedStep]:
    """Steps of held-out models at all batches at which they are ever judged, in both precisions: an earlier call, which
    this one goes on from, may have measured with autocast, or without."""
    batches = {*(how.batches or BATCHES[how.platform]), *JUDGED_AT[how.platform]}
    cases = [
        (subject, batch)
        for own in (None, torch.bfloat16)
        for subject in held_out(how.platform, own)
        for batch in sorted(batches)
    ]
    return {case_name(subject, batch): subject.at(batch) for subject, batch in cases}


def judged_kernels(timings: Timings, judged_by: Mapping[str, TracedStep]) -> dict[Kernel, Timing]:
    """Those of the steps that it is judged by, as they stand there: not those of another precision."""
    theirs = {kernel for step in judged_by.values() for kernel in step.kernels}
    return {kernel: timing for kernel, timing in timings.items() if kernel in theirs}


def kernels_file(path: Path) -> Path:
    """Where what is measured is kept."""
    return path.with_name(f"{path.stem}.kernels.part")


def _visited(how: Calibration, judged_by: list[Case], end: float, step: Step) -> Profile:
    return visit_models(
        in_turns(_alternating(judged_by, how.cases(learned_from)), how.random_cases()),
        kernels_file(how.path),
        visiting=how.visiting or _usual_visiting(how.device),
        device=how.device,
        most_bytes=how.most_bytes,
        at_most_seconds=end - time.monotonic(),
        progress=lambda number, _case: step("real steps", number, 0),
    )


def _usual_visiting(device: torch.device) -> Visiting:
    if device.type == "cuda":
        return one_by_one(visit_on_gpu, references(), device)
    return partial(visits_afresh, references=references())


def _usual_dispatch(steps: list[StepTiming]) -> float:
    """What the host needs for an operation, where nothing more is known of it."""
    phases = [phase for step in steps for phase in step.phases.values()]
    return sum(phase.host_seconds for phase in phases) / max(1, sum(sum(phase.calls.values()) for phase in phases))


def _judged(profile: DeviceProfile, errors: Mapping[str, float], left_out: list[str]) -> DeviceProfile:
    """With the errors of real steps of held-out models, and the names of steps that could not be timed."""
    assert profile.kernels is not None
    held_out = {**profile.kernels.held_out, "steps": Judged(errors, {}).as_dict(), "left_out": left_out}
    return replace(profile, kernels=replace(profile.kernels, held_out=held_out))


def _alternating(first: list[Case], second: list[Case]) -> Iterator[Case]:
    for pair in itertools.zip_longest(first, second):
        yield from (case for case in pair if case is not None)


def _memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
