"""The two fastest of the race, each at the best of its learning rates and settings, and nobody's communication."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from race_words import as_row, percent, when
from races import Race, Run, newest_runs, or_never, seconds_of, seconds_to_the_end, seed_of

SEEDS = (0, 1, 2)  # that LASGD and DiLoCo have at all rates at which both were raced
TARGETS = (0.82, 0.83, 0.84, 0.845, 0.85, 0.855)

Rule = Callable[[Run, float], float | None]  # when a run has an accuracy


@dataclass(frozen=True)
class Best:
    """Of a family of settings, at all learning rates raced, the one whose median is the least."""

    seconds: tuple[float, ...]  # of each of SEEDS; infinite: never
    rate: str

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{when(self.median)} ({self.rate})" if math.isfinite(self.median) else "never"

    def over(self, other: "Best") -> str:
        """How many times as long: in the median, and seed by seed."""
        if not math.isfinite(self.median + other.median):
            return "-"
        pairs = zip(self.seconds, other.seconds, strict=True)
        each = (f"{a / b:.2f}" if math.isfinite(a + b) else "-" for a, b in pairs)
        return f"{self.median / other.median:.2f} ({', '.join(each)})"


NOBODY = Best((math.inf,) * len(SEEDS), "-")


def best(races: Sequence[Race], target: float, family: Callable[[str], bool], rule: Rule = seconds_of) -> Best:
    found = []
    for rate in dict.fromkeys(race.learning_rate for race in races):
        for strategy, runs in newest_runs([race for race in races if race.learning_rate == rate]).items():
            times = {seed_of(run): or_never(rule(run, target)) for run in runs}
            if family(strategy) and times.keys() >= set(SEEDS):
                found.append(Best(tuple(times[seed] for seed in SEEDS), rate))
    return min(found, key=lambda each: each.median, default=NOBODY)


def targets_table(races: Sequence[Race], targets: Sequence[float] = TARGETS) -> list[str]:
    """From the race's target, also if it must be kept to the end, to one that few reach."""
    heads = ["to", "`none`", "LASGD", "torchft diloco", "diloco by LASGD", "LASGD, trail", "diloco, trail", "ratio"]
    asked = [(percent(target), target, seconds_of) for target in targets]
    asked.insert(1, (f"{percent(targets[0])}, kept to the end", targets[0], seconds_to_the_end))
    return [as_row(heads), "|" + "---|" * len(heads), *(as_row([name, *_cells(races, *how)]) for name, *how in asked)]


def _cells(races: Sequence[Race], target: float, rule: Rule) -> list[str]:
    cells = [str(best(races, target, lambda strategy: strategy == "none", rule))]
    for suffices in (lambda strategy: "trail=" not in strategy, lambda _: True):  # without a trail; with one or without
        ours, theirs = (
            best(races, target, lambda strategy, name=name, fits=suffices: name in strategy and fits(strategy), rule)
            for name in ("lasgd", "torchft_diloco")
        )
        cells += [str(ours), str(theirs), theirs.over(ours)]
    return cells
