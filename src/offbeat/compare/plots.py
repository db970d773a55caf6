"""The pictures of a contest, one PNG each: quality against time, throughput and wire, and what the workers did."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from ..report.outputs import replacing
from ..report.summary import DPI, FAINT, GRID, INK, style_axes
from ..report.table import percent
from .contest import Contest, Outcome
from .looks import colours_of, labels_of, place_name
from .page_data import training_loss
from .table import Column, Row, columns_of, rows_of
from .timeline import Bar, What, step_seconds, timeline, tracks

WIDTH_INCHES = 9.0
MOST_LANES = 16  # of a strategy
STEPS_SHOWN = 12
MOST_BARS = 1000  # of a worker, more than so many steps have
# Within a lane of height 1: the worker's own time above, what travels meanwhile below.
LANE: dict[What, tuple[float, float]] = {
    "compute": (-0.43, 0.5), "step": (-0.43, 0.5), "wait": (-0.43, 0.5), "communicate": (0.11, 0.28),
}  # fmt: skip
FAINTER = 0.45  # what travels, of the strategy's colour
WAIT_COLOUR = "#e3e7eb"

Looks = dict[str, tuple[str, str]]  # label and colour of every strategy


def draw_contest(folder: Path, contest: Contest, outcomes: Sequence[Outcome]) -> list[Path]:
    """All pictures for which there are numbers, into a folder that exists; says which. One of each kind per link and
    number of workers."""
    specs = list(dict.fromkeys(outcome.entry.strategy for outcome in outcomes))
    looks = dict(zip(specs, zip(labels_of(specs), colours_of(specs), strict=True), strict=True))
    rows = [row for row in rows_of(outcomes) if any(outcome.lap is not None for outcome in row.outcomes)]
    places = list(dict.fromkeys((row.link, row.workers) for row in rows))
    drawn = []
    for link, workers in places:
        here = [row for row in rows if (row.link, row.workers) == (link, workers)]
        where = place_name(link, workers)
        suffix = f"-{workers}-{(link or 'loopback').replace('/', '')}" if len(places) > 1 else ""
        for name, figure in (
            _curves_figure(contest, here, looks, where),
            ("throughput", _bars_figure(contest, here, looks, where)),
            ("timeline", _timeline_figure(here, looks, where)),
        ):
            drawn.append(folder / f"{name}{suffix}.png")
            with replacing(drawn[-1]) as path:
                figure.savefig(path, format="png")
    return drawn


def _laps(row: Row) -> Iterator[Outcome]:
    return (outcome for outcome in row.outcomes if outcome.lap is not None)


def _curves_figure(contest: Contest, rows: Sequence[Row], looks: Looks, where: str) -> tuple[str, Figure]:
    """Accuracy, where it was followed; else the training loss, which always is."""
    followed = contest.snapshots > 1 and any(
        point.accuracy is not None for row in rows for o in row.outcomes if o.lap for point in o.lap.curve
    )
    figure = Figure(figsize=(WIDTH_INCHES, 5.2), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0.08, 0.115, 0.89, 0.78))
    for row in rows:
        label, colour = looks[row.strategy]
        for number, outcome in enumerate(_laps(row)):
            assert outcome.lap is not None
            if followed:
                points = [(p.seconds, p.accuracy) for p in outcome.lap.curve if p.accuracy is not None]
                x, y = np.array(points, dtype=float).reshape(-1, 2).T
            else:
                x, _, y = training_loss(outcome.lap)
            style = "-" if len(x) > 1 else "o"
            axes.plot(x, y, style, color=colour, linewidth=1.7, alpha=0.9, label=None if number else label)
    what = "Test accuracy of the mean of all workers" if followed else "Training loss, mean of all workers"
    style_axes(axes, f"{what}: {where}")
    axes.grid(axis="y", color=GRID)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds", fontsize=9, color=FAINT)
    if followed:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if followed and contest.target_accuracy is not None:
        axes.axhline(contest.target_accuracy, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(f"target {percent(contest.target_accuracy, 1)}", (1, contest.target_accuracy), fontsize=8.5,
                      xycoords=("axes fraction", "data"), color=FAINT, ha="right", va="top")  # fmt: skip
    axes.legend(loc="best", frameon=False, fontsize=9)
    return "accuracy" if followed else "loss", figure


def _bars_figure(contest: Contest, rows: Sequence[Row], looks: Looks, where: str) -> Figure:
    columns = {column.head: column for column in columns_of(contest)}
    shown = [("Throughput, share of none", columns["throughput"])]
    if any(row.values(columns["wire"]) for row in rows):
        shown.append(("Wire, share of the links", columns["wire"]))
    height = 0.42 * len(rows) + 1.3
    labels = [looks[row.strategy][0] for row in rows]
    margin = (0.075 * max(map(len, labels)) + 0.35) / WIDTH_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DPI, facecolor="white")
    figure.text(0.02, 1 - 0.25 / height, where, fontsize=9.5, color=FAINT, va="center")
    width = (0.97 - margin - 0.05 * (len(shown) - 1)) / len(shown)
    for place, (title, column) in enumerate(shown):
        box = (margin + place * (width + 0.05), 0.4 / height, width, 1 - 1.2 / height)
        _draw_bars(figure.add_axes(box), title, column, rows, looks)
    figure.axes[0].set_yticks(range(len(rows)), labels)
    return figure


def _draw_bars(axes: Axes, title: str, column: Column, rows: Sequence[Row], looks: Looks) -> None:
    style_axes(axes, title)
    axes.grid(axis="x", color=GRID)
    for place, row in enumerate(rows):
        values = row.values(column)
        if not values:
            continue
        mean = statistics.mean(values)
        axes.barh(place, mean, 0.66, color=looks[row.strategy][1])
        if len(values) > 1:
            axes.plot((min(values), max(values)), (place, place), color=INK, linewidth=1.2)
        axes.annotate(column.text(mean), (max(values), place), xytext=(5, 0), textcoords="offset points", color=INK,
                      fontsize=8.5, va="center")  # fmt: skip
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlim(left=0, right=1.13 * max([1.0, *(value for row in rows for value in row.values(column))]))


def _timeline_figure(rows: Sequence[Row], looks: Looks, where: str) -> Figure:
    """A panel per strategy, all of the same length: the end of each lap."""
    laps = [next(outcome.lap for outcome in _laps(row)) for row in rows]
    bars = [timeline(lap, MOST_BARS)[:MOST_LANES] for lap in laps if lap is not None]
    width = STEPS_SHOWN * statistics.median(map(step_seconds, bars))
    lanes = [len(workers) for workers in bars]
    height = 0.24 * sum(lanes) + 0.5 * len(rows) + 1.1
    figure = Figure(figsize=(WIDTH_INCHES + 1, height), dpi=DPI, facecolor="white")
    figure.text(0.02, 1 - 0.28 / height, f"What the workers did: {where}", fontsize=11, fontweight="bold", color=INK)
    top = height - 0.45
    for row, workers in zip(rows, bars, strict=True):
        label, colour = looks[row.strategy]
        top -= 0.24 * len(workers) + 0.5
        axes = figure.add_axes((0.09, (top + 0.15) / height, 0.89, 0.24 * len(workers) / height))
        _draw_timeline(axes, workers, colour, width)
        axes.set_title(label, loc="left", fontsize=9, color=colour, fontweight="bold", pad=3)
        axes.tick_params(colors=FAINT, labelsize=7.5, length=0, labelbottom=row is rows[-1])
    figure.axes[-1].set_xlabel("seconds, towards the end of each lap", fontsize=9, color=FAINT)
    figure.legend(
        handles=[
            Patch(color=INK, label="computing"),
            Patch(facecolor=WAIT_COLOUR, edgecolor=FAINT, hatch="////", linewidth=0.3, label="waiting"),
            Patch(color=INK, alpha=FAINTER, label="communicating"),
        ],
        ncols=3, loc="upper right", bbox_to_anchor=(0.99, 1 - 0.08 / height), frameon=False, fontsize=8.5,
    )  # fmt: skip
    return figure


def _draw_timeline(axes: Axes, workers: Sequence[Sequence[Bar]], colour: str, width: float) -> None:
    ends = [max((bar.end for bar in bars if bar.what in ("compute", "step")), default=0.0) for bars in workers]
    end = min((end for end in ends if end > 0), default=width)
    since = max(0.0, end - width)
    beside = tracks(workers)
    for rank, bars in enumerate(workers):
        for what, track in (*((what, 0) for what in LANE), *(("communicate", k) for k in range(1, beside))):
            low, tall = LANE[what]
            if what == "communicate":
                low, tall = low + track * tall / beside, tall / beside
            here = [bar for bar in bars if (bar.what, bar.track) == (what, track) and bar.end > since]
            axes.broken_barh(
                [(bar.start - since, bar.seconds) for bar in here], (rank + low, tall),
                facecolor=WAIT_COLOUR if what == "wait" else colour, alpha=FAINTER if what == "communicate" else 1.0,
                edgecolor=FAINT if what == "wait" else "white", linewidth=0.4, hatch="////" if what == "wait" else None,
            )  # fmt: skip
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(GRID)
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.set_yticks(range(len(workers)), [f"worker {rank}" for rank in range(len(workers))])
    axes.set_xlim(0, width)
