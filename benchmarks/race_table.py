"""Write the tables and the picture of the races from benchmarks/results: the README's, docs/race.md's.

python benchmarks/race_table.py            write
python benchmarks/race_table.py --check    say whether they are as they would be written
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from offbeat.compare.looks import PALETTE, colours_of
from offbeat.compare.measures import seconds_to
from offbeat.compare.snapshots import Point
from offbeat.lists import split_specs
from offbeat.report.summary import DPI, style_axes

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TO_ACCURACY = (
    "accuracy",
    "accuracy-pairs",
    "seeds",
    "averages",
    "narrow",
    "trail-at-the-rate",
)  # races that differ in strategies and seeds alone
AT_HALF_THE_RATE = ("half-rate", "half-rate-narrow", "trail")
AT_A_THIRD = ("third-of-the-rate", "trail-third", "trail-more")
SEEDS = (0, 1, 2)  # that LASGD and DiLoCo have at all rates
TARGETS = (0.82, 0.83, 0.84, 0.845, 0.85, 0.855)
HARDER = 0.85  # of these the highest that LASGD, DiLoCo, post-local SGD and ddp reach in most seeds without a trail
PICTURE = ROOT / "docs" / "images" / "race.png"

Run = dict[str, Any]
Times = dict[int, float | None]  # by seed; None: never


@dataclass(frozen=True)
class Race:
    """One file of results."""

    name: str
    record: dict[str, Any]

    @classmethod
    def read(cls, name: str) -> "Race | None":
        path = RESULTS / f"{name}.json"
        return cls(name, json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def runs(self, strategy: str) -> list[Run]:
        return [run for run in self.record["runs"] if run["strategy"] == strategy]

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(run["strategy"] for run in self.record["runs"]))

    @property
    def learning_rate(self) -> str:
        words: list[str] = self.record["command"]
        return words[words.index("--learning-rate") + 1]

    @property
    def laps(self) -> int:
        """That its command asks for, those without communication included."""
        words: list[str] = self.record["command"]
        repeats = int(words[words.index("--repeats") + 1]) if "--repeats" in words else 1
        return repeats * (1 + len(split_specs(words[words.index("--strategies") + 1])))

    @property
    def caption(self) -> str:
        machine, versions = self.record["machine"], self.record["versions"]
        gpu = f", one {machine['gpu']}" if machine["gpu"] else ""
        gpu += " shared by MPS" if machine.get("gpu_shared_by") == "MPS" else ""
        where = f"{machine['cpus']} cores{gpu}, torch {versions['torch']}, {self.record['date'][:10]}"
        own, laps = len(self.record["runs"]), self.laps
        where += f"; {own} of its {laps} laps, without {self.record['left_out']}" if own != laps else ""
        return f"`python benchmarks/race.py {self.name}` ({where}; compute {self.record['compute']})"


def shown(strategy: str) -> str:
    """A rival by its file and settings, without the path."""
    file, colon, function = strategy.partition(".py:train")
    if not colon:
        return f"`{strategy}`"
    settings = function.removeprefix(":")
    return f"{Path(file).name.replace('_', ' ')}{f', `{settings}`' if settings else ''}"


def listed(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """Every one of them; what is missing as a dash."""
    return ", ".join("-" if value is None else text(value) for value in values) or "-"


def seconds_text(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def to_accuracy_table(
    races: Sequence[Race], *, harder: float | None = None, only: Callable[[str], bool] = lambda _: True
) -> list[str]:
    """All seeds of all races, the fastest strategy first; also to a harder target, if asked for. "Faster" compares
    medians over the seeds that both have."""
    target = races[0].record["target_accuracy"]
    runs = {strategy: own for strategy, own in newest_runs(races).items() if only(strategy)}
    times = {strategy: {seed_of(run): seconds_of(run, target) for run in runs[strategy]} for strategy in runs}
    targets = [target] if harder is None else [target, harder]
    heads = [f"seconds to {percent(each)}{', each seed' if each == target else ''}" for each in targets]
    heads = ["strategy", *heads, "faster than `ddp`", "throughput", "wire", "final accuracy"]
    rows = [as_row(heads), "|" + "---|" * len(heads)]
    ddp, ddp_ends = times.get("ddp", {}), ends_of(runs.get("ddp", []))
    for strategy in sorted(runs, key=lambda strategy: statistics.median(map(or_never, times[strategy].values()))):
        found = [run for run in runs[strategy] if run["failure"] is None]
        if not found:
            reason = " ".join(runs[strategy][0]["failure"].replace("|", "/").split())
            rows.append(f"| {shown(strategy)} | could not run: {reason} |" + " |" * (len(heads) - 2))
            continue
        cells = [
            *(moments(runs[strategy], each) for each in targets),
            ratio(times[strategy], ddp, ddp_ends),
            listed((run["throughput_share"] for run in found), "{:.2f}".format),
            listed((run["wire_utilisation"] for run in found), "{:.2f}".format),
            listed((run["accuracy"] for run in found), "{:.1%}".format),
        ]
        rows.append(as_row([shown(strategy), *cells]))
    return rows


def as_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def percent(share: float) -> str:
    return f"{100 * share:g}%"


def moments(runs: Sequence[Run], target: float) -> str:
    """When each of them got there."""
    return ", ".join("failed" if run["failure"] is not None else when(seconds_of(run, target)) for run in runs)


def when(seconds: float | None) -> str:
    return "never" if seconds is None or math.isinf(seconds) else seconds_text(seconds)


def newest_runs(races: Sequence[Race]) -> dict[str, list[Run]]:
    """Of each strategy a run of each seed: the latest, where it was raced again."""
    found: dict[str, dict[int, Run]] = {}
    for race in sorted(races, key=lambda race: str(race.record["date"])):
        for strategy in race.strategies:
            found.setdefault(strategy, {}).update({seed_of(run): run for run in race.runs(strategy)})
    return {strategy: [own[seed] for seed in sorted(own)] for strategy, own in found.items()}


def seed_of(run: Run) -> int:
    seed = run.get("seed")
    return int(run["repeat"] if seed is None else seed)


def seconds_of(run: Run, target: float) -> float | None:
    return None if run["failure"] is not None else seconds_to([Point(**point) for point in run["curve"]], target)


def or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def ends_of(runs: Sequence[Run]) -> dict[int, float]:
    """How long each seed was raced."""
    return {seed_of(run): run["curve"][-1]["seconds"] for run in runs if run["failure"] is None and run["curve"]}


def ratio(own: Times, base: Times, base_ends: Mapping[int, float]) -> str:
    """How many times as fast, where both have seeds in common and ours got there in most of them; more than that where
    the base did not: then its median is of the times for which it tried."""
    both = own.keys() & base.keys() & (base_ends.keys() | {seed for seed in base if base[seed] is not None})
    if not both:
        return "-"
    ours, theirs = (statistics.median(or_never(times[seed]) for seed in both) for times in (own, base))
    if not math.isfinite(ours):
        return "-"
    if math.isfinite(theirs):
        return f"{theirs / ours:.1f}"
    tried = statistics.median(base_ends[seed] if (got := base[seed]) is None else got for seed in both)
    return f"more than {math.floor(tried / ours)}" if own is not base and tried > ours else "-"


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
        if not math.isfinite(self.median):
            return "-"
        each = (
            f"{a / b:.2f}" if math.isfinite(a / b) else "-" for a, b in zip(self.seconds, other.seconds, strict=True)
        )
        return f"{self.median / other.median:.2f} ({', '.join(each)})"


def best(races: Sequence[Race], target: float, family: Callable[[str], bool]) -> Best:
    found = []
    for rate in dict.fromkeys(race.learning_rate for race in races):
        for strategy, runs in newest_runs([race for race in races if race.learning_rate == rate]).items():
            times = {seed_of(run): or_never(seconds_of(run, target)) for run in runs}
            if family(strategy) and times.keys() >= set(SEEDS):
                found.append(Best(tuple(times[seed] for seed in SEEDS), rate))
    return min(found, key=lambda each: each.median)


def targets_table(races: Sequence[Race]) -> list[str]:
    """The two fastest, and nobody's communication, from the race's target to one that few reach."""
    heads = ["to", "`none`", "LASGD", "torchft diloco", "diloco by LASGD", "LASGD, trail", "diloco, trail", "ratio"]
    rows = [as_row(heads), "|" + "---|" * len(heads)]
    for target in TARGETS:
        none = best(races, target, lambda strategy: strategy == "none")
        cells = [percent(target), str(none)]
        for trails in (False, True):
            ours, theirs = (
                best(
                    races,
                    target,
                    lambda strategy, name=name, trails=trails: (
                        name in strategy and (trails or "trail=" not in strategy)
                    ),
                )
                for name in ("lasgd", "torchft_diloco")
            )
            cells += [str(ours), str(theirs), theirs.over(ours)]
        rows.append(as_row(cells))
    return rows


def ceilings_table(races: Sequence[Race]) -> list[str]:
    rows = ["| link, machine | strategy | throughput, each repeat | wire, each repeat | CPU |", "|---|---|---|---|---|"]
    for race in races:
        for strategy in race.strategies:
            runs = [run for run in race.runs(strategy) if run["failure"] is None]
            if strategy == "none" or not runs:
                continue
            place = "model on the GPU" if race.record["machine"]["gpu"] else "model on the CPU"
            rows.append(
                f"| {runs[0]['link']}, {place}, {race.record['machine']['cpus']} cores | {shown(strategy)} "
                f"| {listed((run['throughput_share'] for run in runs), '{:.3f}'.format)} "
                f"| {listed((run['wire_utilisation'] for run in runs), '{:.3f}'.format)} "
                f"| {statistics.mean(run['cpu_share'] for run in runs):.0%} |"
            )
    return rows


def draw(races: Sequence[Race], path: Path) -> None:
    """Accuracy against time, of the first seed."""
    first = {strategy: runs[0] for strategy, runs in newest_runs(races).items()}
    chosen = [strategy for strategy, run in first.items() if seed_of(run) == 0 and run["failure"] is None]
    chosen.sort(key=lambda strategy: ".py:" in strategy)  # ours first
    figure = Figure(figsize=(9.0, 4.6), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    style_axes(axes, "Accuracy against time, 4 workers, 100 Mbit/s")
    for index, (strategy, colour) in enumerate(zip(chosen, colours_of(chosen), strict=True)):
        curve = first[strategy]["curve"]
        rival = ".py:" in strategy
        line = ":" if index >= len(PALETTE) else "--" if rival else "-"  # beyond the colours, lines differ
        seconds, accuracies = ([point[name] for point in curve] for name in ("seconds", "accuracy"))
        label = shown(strategy).replace("`", "")
        axes.plot(seconds, accuracies, line, color=colour, linewidth=1.0 if rival else 2.0, label=label)
    axes.axhline(races[0].record["target_accuracy"], color="#888", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_ylim(0.6, None)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("seconds")
    axes.set_ylabel("accuracy of the mean of all workers")
    axes.legend(fontsize=7, frameon=False, loc="lower right", ncols=2)
    figure.savefig(path, format="png", metadata={"Software": None})


def blocks() -> dict[str, list[str]]:
    """What stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    accuracy = _read(*TO_ACCURACY)
    half_rate, third = _read(*AT_HALF_THE_RATE), _read(*AT_A_THIRD)
    straggler = Race.read("straggler")
    gpu = _read("gpu", "gpu-best", "gpu-best-again", "gpu-parts", "gpu-ddp", "gpu-daso")
    gpu_rate = _read("gpu-rate", "gpu-rate-3", "gpu-rate-6")
    ceilings = _read("ceilings-100mbit", "ceilings-1gbit", "ceilings-1gbit-gpu", "ceilings-daso")
    found: dict[str, list[str]] = {}
    if accuracy:
        found["race"] = [*to_accuracy_table(accuracy, harder=HARDER), "", captions(accuracy)]
        found["race-short"] = [*to_accuracy_table(accuracy, harder=HARDER, only=has_all_seeds(accuracy))]
    if half_rate:
        found["race-half-rate"] = [*to_accuracy_table(half_rate, harder=HARDER), "", captions(half_rate)]
    if third:
        found["race-third"] = [*to_accuracy_table(third, harder=HARDER), "", captions(third)]
    if accuracy and half_rate and third:
        found["race-targets"] = targets_table([*accuracy, *half_rate, *third])
    if straggler is not None:
        found["race-straggler"] = [*to_accuracy_table([straggler], harder=HARDER), "", captions([straggler])]
    if gpu:
        found["race-gpu"] = [*to_accuracy_table(gpu), "", captions(gpu)]
    if gpu_rate:
        found["race-gpu-rate"] = [*to_accuracy_table(gpu_rate), "", captions(gpu_rate)]
    if ceilings:
        found["race-ceilings"] = [*ceilings_table(ceilings), "", captions(ceilings)]
    return found


def _read(*names: str) -> list[Race]:
    return [race for name in names if (race := Race.read(name)) is not None]


def has_all_seeds(races: Sequence[Race]) -> Callable[[str], bool]:
    """Those that were raced with as many seeds as any."""
    seeds = {strategy: len(runs) for strategy, runs in newest_runs(races).items()}
    return lambda strategy: seeds[strategy] == max(seeds.values())


def captions(races: Sequence[Race]) -> str:
    return "; ".join(race.caption for race in races)


def filled(text: str, found: dict[str, list[str]]) -> str:
    for name, lines in found.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin in text:
            before, rest = text.split(begin, 1)
            after = rest.split(end, 1)[1]
            text = "\n".join([before + begin, *lines, end]) + after
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = blocks()
    stale = []
    for path in (ROOT / "README.md", ROOT / "docs" / "race.md"):
        text = path.read_text(encoding="utf-8")
        if (new := filled(text, found)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if not arguments.check:
                path.write_text(new, encoding="utf-8")
    if not arguments.check:
        races = _read(*TO_ACCURACY)
        if races:
            draw(races, PICTURE)
    elif stale:
        sys.exit(f"{', '.join(stale)} differ from benchmarks/results: run python benchmarks/race_table.py")


if __name__ == "__main__":
    main()
