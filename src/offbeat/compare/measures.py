"""Measures: what a lap amounts to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .lap import Lap
from .snapshots import Point

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
    bytes_per_sample: float | None
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
        bytes_per_sample=bytes_sent(lap) / (samples_per_step * sum(len(r.step_ends) for r in reports))
        if link
        else None,
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


def wire_utilisation(lap: Lap, link: Sequence[float]) -> float | None:
    """Of what the links could have carried away from all nodes while all workers trained: the share that they did."""
    begin, end = window(lap)
    inside = [(at, sent) for at, sent in lap.sent if begin <= at <= end]
    if len(inside) < 2:
        return None
    (first_at, first), (last_at, last) = inside[0], inside[-1]
    moved = sum(after - before for before, after in zip(first, last, strict=True))
    return moved / (sum(link) * (last_at - first_at))


def bytes_sent(lap: Lap) -> int:
    """By all nodes, over the whole lap."""
    return sum(lap.sent[-1][1]) if lap.sent else 0


def seconds_to(curve: Sequence[Point], accuracy: float) -> float | None:
    """When the mean of all workers had that accuracy and kept it for one more point, so that luck with the samples of
    one does not count; between two points as on a straight line."""
    has = [point.accuracy is not None and point.accuracy >= accuracy for point in curve]
    for index, point in enumerate(curve):
        if has[index] and all(has[index : index + 2]):
            before = curve[index - 1] if index else None
            if before is None or before.accuracy is None or point.accuracy is None:
                return point.seconds
            share = (accuracy - before.accuracy) / (point.accuracy - before.accuracy)
            return before.seconds + min(max(share, 0.0), 1.0) * (point.seconds - before.seconds)
    return None
