"""Write the tables and the picture of the races from benchmarks/results: the README's, docs/race.md's.

python benchmarks/race_table.py            write
python benchmarks/race_table.py --check    say whether they are as they would be written
"""

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from offbeat.compare.page_data import colours_of
from offbeat.report.summary import DPI, style_axes

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "race.png"

Run = dict[str, Any]


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
    def caption(self) -> str:
        machine, versions = self.record["machine"], self.record["versions"]
        gpu = f", one {machine['gpu']}" if machine["gpu"] else ""
        where = f"{machine['cpus']} cores{gpu}, torch {versions['torch']}, {self.record['date'][:10]}"
        return f"`python benchmarks/race.py {self.name}` ({where}; compute {self.record['compute']})"


def shown(strategy: str) -> str:
    """A rival by its file and settings, without the path."""
    file, colon, function = strategy.partition(".py:train")
    if not colon:
        return f"`{strategy}`"
    settings = function.removeprefix(":")
    return f"{Path(file).name.replace('_', ' ')}{f', `{settings}`' if settings else ''}"


def spread(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Every seed's value where they differ; one that never got there is shown as such."""
    if not values:
        return "-"
    return ", ".join("never" if value is None else text(value) for value in values)


def seconds_text(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def to_accuracy_table(races: Sequence[Race], *, only: Callable[[str], bool] = lambda _: True) -> list[str]:
    """All seeds of all races, the fastest strategy first; ratios are of the median over the seeds that have both."""
    target = races[0].record["target_accuracy"]
    strategies = [s for s in dict.fromkeys(s for race in races for s in race.strategies) if s != "none" and only(s)]

    def runs(strategy: str) -> list[Run]:
        return [run for race in races for run in race.runs(strategy)]

    def seconds(strategy: str) -> list[float | None]:
        return [run["seconds_to_target"] for run in runs(strategy)]

    def middle(strategy: str) -> float:
        return statistics.median(float("inf") if s is None else s for s in seconds(strategy)) if runs(strategy) else 0

    base = middle("ddp")
    rows = [
        f"| strategy | seconds to {target:.0%}, each seed | faster than `ddp` | throughput | wire | final accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for strategy in sorted(strategies, key=middle):
        found = [run for run in runs(strategy) if run["failure"] is None]
        if not found:
            rows.append(f"| {shown(strategy)} | could not run: {runs(strategy)[0]['failure']} | | | | |")
            continue
        ratio = f"{base / middle(strategy):.1f}" if middle(strategy) < float("inf") else "-"
        rows.append(
            f"| {shown(strategy)} | {spread(seconds(strategy), seconds_text)} | {ratio} "
            f"| {spread([run['throughput_share'] for run in found], '{:.2f}'.format)} "
            f"| {spread([run['wire_utilisation'] for run in found], '{:.2f}'.format)} "
            f"| {spread([run['accuracy'] for run in found], '{:.1%}'.format)} |"
        )
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
                f"| {spread([run['throughput_share'] for run in runs], '{:.3f}'.format)} "
                f"| {spread([run['wire_utilisation'] for run in runs], '{:.3f}'.format)} "
                f"| {statistics.mean(run['cpu_share'] for run in runs):.0%} |"
            )
    return rows


def draw(race: Race, path: Path) -> None:
    """Accuracy against time, of the first seed."""
    chosen = [s for s in race.strategies if s != "none" and race.runs(s)[0]["failure"] is None]
    figure = Figure(figsize=(9.0, 4.6), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    style_axes(axes)
    for strategy, colour in zip(chosen, colours_of(chosen), strict=True):
        curve = race.runs(strategy)[0]["curve"]
        rival = ".py:" in strategy
        axes.plot(
            [point["seconds"] for point in curve], [point["accuracy"] for point in curve], color=colour,
            linewidth=1.0 if rival else 2.0, linestyle="--" if rival else "-", label=shown(strategy).replace("`", ""),
        )  # fmt: skip
    axes.axhline(race.record["target_accuracy"], color="#888", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_ylim(0.6, None)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("seconds")
    axes.set_ylabel("accuracy of the mean of all workers")
    axes.legend(fontsize=7, frameon=False, loc="lower right", ncols=2)
    figure.savefig(path, format="png", metadata={"Software": None})


def blocks() -> dict[str, list[str]]:
    """What stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""
    accuracy, seeds, straggler = (Race.read(name) for name in ("accuracy", "seeds", "straggler"))
    gpu, gpu_daso = Race.read("gpu"), Race.read("gpu-daso")
    ceilings = [
        race
        for name in ("ceilings-100mbit", "ceilings-1gbit", "ceilings-1gbit-gpu", "ceilings-daso")
        if (race := Race.read(name)) is not None
    ]
    found: dict[str, list[str]] = {}
    if accuracy is not None:
        all_seeds = [accuracy, *([seeds] if seeds is not None else [])]
        found["race"] = [*to_accuracy_table(all_seeds), "", "; ".join(race.caption for race in all_seeds)]
        short = {*(seeds.strategies if seeds is not None else accuracy.strategies)}
        found["race-short"] = to_accuracy_table(all_seeds, only=short.__contains__)
    if straggler is not None:
        found["race-straggler"] = [*to_accuracy_table([straggler]), "", straggler.caption]
    if gpu is not None:
        all_gpu = [gpu, *([gpu_daso] if gpu_daso is not None else [])]
        found["race-gpu"] = [*to_accuracy_table(all_gpu), "", "; ".join(race.caption for race in all_gpu)]
    if ceilings:
        found["race-ceilings"] = [*ceilings_table(ceilings), "", "; ".join(race.caption for race in ceilings)]
    commands = [f"{race.name}: {shlex.join(race.record['command'])}" for race in (accuracy, seeds, straggler) if race]
    if commands:
        found["race-commands"] = ["```text", *commands, "```"]
    return found


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
        race = Race.read("accuracy")
        if race is not None:
            draw(race, PICTURE)
    elif stale:
        sys.exit(f"{', '.join(stale)} differ from benchmarks/results: run python benchmarks/race_table.py")


if __name__ == "__main__":
    main()
