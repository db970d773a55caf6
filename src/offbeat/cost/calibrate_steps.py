"""visit_models: real steps of models and of their operations, until the time is over."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path

import torch

from .calibrate import SAVE_EVERY_SECONDS, profile_at
from .host import counted
from .kernel import Kernel
from .measured_step import RealStep
from .profile import Profile
from .subject import Subject
from .timed_step import Visit, visit
from .timing import Timing
from .trace import TracedStep

REFERENCE_STEPS = 40

Case = tuple[Subject, int]  # and the batch
Progress = Callable[[int, Case], None]  # (visited, the one just visited)


def visit_models(
    cases: Iterable[Case],
    path: Path,
    *,
    references: Iterable[Case],
    at_most_seconds: float = inf,
    progress: Progress | None = None,
    visiting: Callable[[RealStep, Callable[[], None]], Visit] = visit,
) -> Profile:
    """Visit the models into the profile at `path`; those that it has already are not visited again."""
    device = torch.device("cpu")
    began = saved = time.monotonic()
    profile = profile_at(path, device)
    beside = one_after_the_other(references)
    if profile.reference_seconds is None:
        profile.reference_seconds = usual_seconds(beside)
    for number, (subject, batch) in enumerate(cases, 1):
        if time.monotonic() - began > at_most_seconds:
            break
        name = case_name(subject, batch)
        if name not in profile.steps:
            found = visiting(RealStep(subject, batch, device), beside).at_speed_of(profile.reference_seconds)
            profile.steps[name] = counted(subject.at(batch).ops, found.seconds, sum(found.ops))
            _add(profile, subject.at(batch), found)
            if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                profile.save(path)
                saved = time.monotonic()
        if progress is not None:
            progress(number, (subject, batch))
    profile.save(path)
    return profile


def one_after_the_other(cases: Iterable[Case]) -> Callable[[], None]:
    """A step of each."""
    steps = [RealStep(subject, batch, torch.device("cpu")) for subject, batch in cases]

    def all_of_them() -> None:
        for step in steps:
            step()

    return all_of_them


def case_name(subject: Subject, batch: int) -> str:
    return f"{subject.name}, batch {batch}"


def in_turns(some: Iterable[Case], endless: Iterator[Case]) -> Iterator[Case]:
    """One of each as long as there are some, so that both are spread over the time; then the rest."""
    for each in some:
        yield each
        yield next(endless)
    yield from endless


def usual_seconds(step: Callable[[], None]) -> float:
    """The median of many."""
    taken = []
    for _ in range(REFERENCE_STEPS):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _add(profile: Profile, trace: TracedStep, found: Visit) -> None:
    """A kernel's time is the mean over its places: what a step is made of is their sum."""
    places: dict[Kernel, list[float]] = defaultdict(list)
    for op, seconds in zip(trace.ops, found.ops, strict=True):
        if op.nbytes:
            places[op.kernel].append(seconds)
    for kernel, taken in places.items():
        before = profile.timings.get(kernel)
        calls, total = len(taken), sum(taken)
        if before is not None:
            calls, total = calls + before.calls, total + before.calls * before.seconds
        spread = statistics.pstdev(taken) / statistics.fmean(taken)
        profile.timings[kernel] = Timing(total / calls, spread, calls)
