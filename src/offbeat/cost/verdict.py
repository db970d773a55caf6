"""The verdict: the plan in a sentence or two."""

from collections.abc import Sequence
from itertools import pairwise

from ..report.table import counted, human_rate, percent
from ..strategies import STRATEGIES, make_strategy
from ..strategies.gossip import Gossip
from ..strategies.sgp import SGP
from .plan import Answer, Row

WORTH_IT = 0.8  # of twice the throughput that twice the workers should bring
AS_GOOD = 0.02  # a simpler strategy that is slower by so little is the better choice
NEVER_AVERAGES = "none"
MENTIONED, MOST_NAMED = 0.01, 3  # of the time: what was not measured and takes less is not worth a note
REMEDY = {
    "compute": "its arithmetic",
    "memory": "the memory of the device",
    "latency": "latency",
    "intra-node": "the links inside a node",
    "inter-node": "the links between nodes",
    "stragglers": "the slowest workers",
}


def best(rows: Sequence[Row]) -> Row:
    """The fastest; of those that are as fast, the one that stays nearest to synchronous SGD."""
    real = [row for row in rows if row.strategy != NEVER_AVERAGES] or list(rows)
    fastest = max(row.samples_per_second for row in real)
    order = {name: place for place, name in enumerate(STRATEGIES)}
    near = [row for row in real if row.samples_per_second >= (1 - AS_GOOD) * fastest]
    return min(near, key=lambda row: (-_mixing(row), order[row.strategy.partition(":")[0]]))


def _mixing(row: Row) -> float:
    """Averages of all workers per step: an exchange of two is one of as many as it takes to reach everybody."""
    pairs = isinstance(make_strategy(row.strategy), (Gossip, SGP))
    rounds = max(1, (row.workers - 1).bit_length()) if pairs else 1
    return round(row.averages_per_step / rounds, 2)


def knee(rows: Sequence[Row]) -> int | None:
    """Of one strategy: the size up to which every enlargement was worth it; None where all of them were."""
    ordered = sorted(rows, key=lambda row: row.workers)
    for before, after in pairwise(ordered):
        gained = after.samples_per_second / before.samples_per_second
        if gained - 1 < WORTH_IT * (after.workers / before.workers - 1):
            return before.workers
    return None


def verdict(answer: Answer) -> str:
    """Which strategy, how well it scales, how far, and what stops it."""
    workers = answer.question.workers
    here = [row for row in answer.rows if row.workers == workers]
    chosen = best(here)
    said = [
        f"On {counted(workers, 'worker')} {chosen.strategy} is best: {human_rate(chosen.samples_per_second)} samples/s "
        f"at {band_of(chosen)} efficiency, {_knee(answer, chosen)}; bound by {REMEDY[chosen.bottleneck]}."
    ]
    plain = next((row for row in here if row.strategy == "ddp" and row is not chosen), None)
    if plain is not None:
        said.append(
            f"ddp has {human_rate(plain.samples_per_second)} samples/s at {band_of(plain)}, {_knee(answer, plain)}; "
            f"bound by {REMEDY[plain.bottleneck]}."
        )
    return " ".join(said)


def notes(answer: Answer) -> list[str]:
    """What to know about the numbers: where they come from and how sure they are."""
    profile, prediction = answer.question.profile, answer.prediction
    low, high = prediction.band
    said = [
        f"{profile.device.name}: {profile.label}; a step takes {percent(low)} to {percent(high)} of what is said here"
    ]
    if profile.label == "calibrated" and prediction.estimated:
        share = sum(prediction.estimated.values())
        said.append(
            f"not in the profile, so estimated by roofline: {', '.join(prediction.estimated)}, "
            f"{percent(share, 1)} of the time"
        )
    if profile.label == "calibrated" and (share := sum(prediction.likened.values())) >= MENTIONED:
        most = list(prediction.likened)[:MOST_NAMED]
        more = f" and {len(prediction.likened) - len(most)} more" if len(prediction.likened) > len(most) else ""
        named = f"{', '.join(most)}{more}; {percent(share, 1)} of the time"
        said.append(f"not measured, so taken for others of their class: {named}")
    played = sorted({row.strategy for row in answer.rows if row.by == "virtual world"})
    by = answer.question.wires.all_reduce_by
    if by != "fastest" and played:
        said.append(f"all-reduces are {by}; those of {', '.join(played)}, played out, are rings or trees")
    if other := profile.differs_from():
        said.append(f"{other}: calibrate again for times that are of today")
    return said


def band_of(row: Row) -> str:
    low, high = (round(100 * value) for value in (row.efficiency_low, row.efficiency_high))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _knee(answer: Answer, row: Row) -> str:
    at = knee(answer.of(row.strategy))
    if at is None or at >= row.workers:
        return "no knee up to here"
    return f"with the knee at {counted(at, 'worker')}"
