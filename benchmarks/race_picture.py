"""The picture of the races: accuracy against time, of the first seed, of those that were raced with all."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from race_words import shown
from races import ROOT, Race, newest_runs, seed_of

from offbeat.compare.looks import PALETTE, colours_of
from offbeat.report.summary import DPI, style_axes

PICTURE = ROOT / "docs" / "images" / "race.png"


def draw(races: Sequence[Race], path: Path) -> None:
    found = newest_runs(races)
    seeds = max(map(len, found.values()))
    first = {strategy: runs[0] for strategy, runs in found.items() if len(runs) == seeds}
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
