"""visit_models: real steps of models and of their operations, until the time is over."""

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import torch

from ..errors import OffbeatError
from .failed import Failed, failures_sentence
from .gauge import Gauge
from .host import step_timing
from .kernel import SHORT, Kernel
from .profile import Profile, Timing
from .profile_at import profile_at
from .real_step import RealStep, one_after_the_other
from .subject import Case, Subject
from .trace import Platform, TracedStep
from .visits import Visit

SAVE_EVERY_SECONDS = 30.0  # to save takes up to one
MOST_UNLIKE = 0.1  # of the visits
ALL_FAIL = 8  # so many before any succeeds: then it is not the models

CPU = torch.device("cpu")
Progress = Callable[[int, Case], None]  # (visited, the one just visited)
Found = tuple[Case, Visit | Failed]
Visiting = Callable[[Iterable[Case], float], Iterator[Found]]  # in any order; until that moment


def visit_models(
    cases: Iterable[Case],
    path: Path,
    *,
    visiting: Visiting,
    device: torch.device = CPU,
    most_bytes: float = inf,
    at_most_seconds: float = inf,
    progress: Progress | None = None,
) -> Profile:
    """Visit the models into the profile at `path`: those that it has not already, and that need no more memory."""
    saved = time.monotonic()
    end = saved + at_most_seconds
    profile = profile_at(path, device)
    new = (
        (subject, batch)
        for subject, batch in itertools.takewhile(lambda _: time.monotonic() < end, cases)
        if not profile.knows(case_name(subject, batch)) and subject.at(batch).memory.peak <= most_bytes
    )
    try:
        for number, ((subject, batch), found) in enumerate(visiting(new, end), 1):
            name = case_name(subject, batch)
            if isinstance(found, Failed):
                profile.failed[name] = found.why
                if not profile.steps and len(profile.failed) >= ALL_FAIL:
                    break
            elif _like(subject.at(batch), found):
                _add(profile, name, subject.at(batch), found, subject.platform)
            else:
                profile.unlike.append(name)
            if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                profile.save(path)
                saved = time.monotonic()
            if progress is not None:
                progress(number, (subject, batch))
    finally:
        profile.save(path)
    if profile.failed and not profile.steps:
        failed = dict(profile.failed)
        profile.failed.clear()  # it may be mended: the next call tries them all again
        profile.save(path)
        raise OffbeatError(f"no step can be measured; {failures_sentence(failed)}")
    if len(profile.unlike) > MOST_UNLIKE * len(profile.steps):
        raise OffbeatError(
            f"{profile.unlike[0]}: a real step does not issue the operations of its trace, so they cannot be timed "
            f"({len(profile.unlike)} such steps, {len(profile.steps)} others)"
        )
    return profile


def one_by_one(
    visit: Callable[[RealStep, Gauge], Visit], references: Iterable[Case], device: torch.device = CPU
) -> Visiting:
    """Visits of one step after the other, in this process."""

    def visits(cases: Iterable[Case], _until: float) -> Iterator[Found]:
        gauge = Gauge(one_after_the_other(references, device))
        for subject, batch in cases:
            found = tried(subject, batch, gauge)
            yield (subject, batch), found
            if isinstance(found, Failed) and device.type == "cuda":
                _recover(case_name(subject, batch), device)

    def tried(subject: Subject, batch: int, gauge: Gauge) -> Visit | Failed:
        try:
            return visit(RealStep(subject, batch, device), gauge)
        except Exception as error:
            return Failed.of(error)

    return visits


def _recover(name: str, device: torch.device) -> None:
    """After a failure: what it held is given back. Some leave a process in which the GPU computes nothing any more."""
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise OffbeatError(
            f"{name} left a GPU that answers this process no more ({Failed.of(error).why}): call offbeat calibrate "
            f"again, and it goes on without that"
        ) from error


def case_name(subject: Subject, batch: int) -> str:
    return f"{subject.name}, batch {batch}" + ("" if subject.autocast is None else f", {SHORT[subject.autocast]}")


def in_turns(some: Iterable[Case], endless: Iterator[Case]) -> Iterator[Case]:
    """One of each as long as there are some, so that both are spread over the time; then the rest."""
    for each in some:
        yield each
        yield next(endless)
    yield from endless


def at_usual_speed(profile: Profile) -> Profile:
    """All times as if the references had always taken what they took in the median visit."""
    if profile.reference_seconds is None:
        return profile
    usual = statistics.median(step.reference_seconds for step in profile.steps.values())
    share = usual / profile.reference_seconds
    steps = {name: step.slower(share) for name, step in profile.steps.items()}
    timings = profile.timings
    if all(step.device_seconds is None for step in steps.values()):  # the host does them itself
        timings = {kernel: replace(each, seconds=each.seconds * share) for kernel, each in timings.items()}
    return replace(profile, timings=timings, steps=steps, reference_seconds=usual)


def _like(trace: TracedStep, found: Visit) -> bool:
    """By class: attention has other names on other devices."""
    return [(each.kind, each.part) for each in trace.kernels] == [(each.kind, each.part) for each in found.kernels]


def _add(profile: Profile, name: str, trace: TracedStep, found: Visit, platform: Platform) -> None:
    """At the speed of the first visit. A kernel's time is the mean over its places: a step is made of their sum."""
    beside, profile.reference_seconds = found.reference_seconds, profile.reference_seconds or found.reference_seconds
    found = found.at_speed_of(profile.reference_seconds)
    profile.steps[name] = step_timing(trace.ops, found, platform, beside)
    places: dict[Kernel, list[float]] = defaultdict(list)
    for op, seconds in zip(trace.ops, found.ops, strict=True):
        if op.nbytes and seconds:
            places[op.kernel].append(seconds)
    for kernel, taken in places.items():
        before = profile.timings.get(kernel)
        calls, total = len(taken), sum(taken)
        if before is not None:
            calls, total = calls + before.calls, total + before.calls * before.seconds
        profile.timings[kernel] = Timing(total / calls, calls)
