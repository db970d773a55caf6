"""Measures: what a lap amounts to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .lap import Lap
from .snapshots import Point
from .worker import Report

WARM_SHARE = 0.1  # of the steps, left out at the start: connections are made, fragments are chosen


@dataclass(frozen=True, kw_only=True)
class Measures:
    steps_per_second: float  # mean over workers, warm
    wire_utilisation: float | None  # of the busiest direction that all links have in common; None: not shaped
    seconds_to_target: float | None
    accuracy: float | None  # of the mean of all workers at the end
    loss: float | None
    waiting_share: float | None  # mean over workers; None: a rival does not tell
    cpu_share: float  # CPU seconds of a worker by seconds, mean over workers
    bytes_per_sample: float | None  # while all trained, as is the utilisation
    seconds: float  # from the first step to the last worker's end, the final average included


def measure(lap: Lap, *, samples_per_step: int, target_accuracy: float | None, link: Sequence[float]) -> Measures:
    reports = lap.reports
    waits = [report.waiting_share for report in reports if report.waiting_share is not None]
    last = lap.curve[-1] if lap.curve else None
    return Measures(
        steps_per_second=statistics.mean(_pace(report.began_at, report.step_ends) for report in reports),
        wire_utilisation=wire_utilisation(lap, link) if link else None,
        seconds_to_target=None if target_accuracy is None else seconds_to(lap.curve, target_accuracy),
        accuracy=None if last is None else last.accuracy,
        loss=None if last is None else last.loss,
        waiting_share=statistics.mean(waits) if len(waits) == len(reports) else None,
        cpu_share=statistics.mean(r.cpu_seconds / (r.step_ends[-1] - r.began_at) for r in reports),
        bytes_per_sample=bytes_per_sample(lap, samples_per_step) if link else None,
        seconds=max(report.ended_at for report in reports) - min(report.began_at for report in reports),
    )


def _pace(began: float, ends: Sequence[float]) -> float:
    """Steps per second after the first few."""
    skip = max(1, round(WARM_SHARE * len(ends))) if len(ends) > 2 else 0
    since = ends[skip - 1] if skip else began
    return (len(ends) - skip) / (ends[-1] - since)


def window(lap: Lap) -> tuple[float, float]:
    """While all workers were training, warm."""
    starts, ends = [], []
    for report in lap.reports:
        skip = max(1, round(WARM_SHARE * len(report.step_ends)))
        starts.append(report.step_ends[skip - 1])
        ends.append(report.step_ends[-1])
    return max(starts), min(ends)


@dataclass(frozen=True)
class Flow:
    """What left all nodes between two looks at the wire."""

    begin: float
    end: float
    nbytes: int


def flow(lap: Lap) -> Flow | None:
    """While all workers were training; None where the wire was hardly looked at then."""
    begin, end = window(lap)
    inside = [(at, sum(sent)) for at, sent in lap.sent if begin <= at <= end]
    if len(inside) < 2:
        return None
    (first_at, first), (last_at, last) = inside[0], inside[-1]
    return Flow(first_at, last_at, last - first)


def wire_utilisation(lap: Lap, link: Sequence[float]) -> float | None:
    """Of what the links could have carried away from all nodes while all workers trained: the share that they did."""
    found = flow(lap)
    return None if found is None else found.nbytes / (sum(link) * (found.end - found.begin))


def bytes_per_sample(lap: Lap, samples_per_step: int) -> float | None:
    """That left the nodes while all workers trained, for each sample of theirs: nothing of the start, when weights are
    made the same, nor of the final average."""
    found = flow(lap)
    if found is None:
        return None
    steps = sum(steps_by(report, found.end) - steps_by(report, found.begin) for report in lap.reports)
    return found.nbytes / (samples_per_step * steps)


def steps_by(report: Report, moment: float) -> float:
    """Steps made by then, the one under way in parts."""
    ends = [report.began_at, *report.step_ends]
    return float(np.interp(moment, ends, range(len(ends))))


def seconds_to(curve: Sequence[Point], accuracy: float) -> float | None:
    """When the mean of all workers had that accuracy and kept it for one more point, so that luck with the samples of
    one does not count (the last point has none after it, and counts); between two points as on a straight line."""
    has = [point.accuracy is not None and point.accuracy >= accuracy for point in curve]
    for index, point in enumerate(curve):
        if has[index] and all(has[index : index + 2]):
            before = curve[index - 1] if index else None
            if before is None or before.accuracy is None or point.accuracy is None:
                return point.seconds
            share = (accuracy - before.accuracy) / (point.accuracy - before.accuracy)
            return before.seconds + min(max(share, 0.0), 1.0) * (point.seconds - before.seconds)
    return None
