"""The pictures of a sweep, one PNG each: its curves against virtual time and samples, and where the time went."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..sim.curve import Point
from ..sweep.rows import Row, label, varying
from .outputs import replacing
from .summary import COLOUR, DPI, FAINT, GRID, INK, OTHER, style_axes
from .table import percent

PALETTE = (
    "#2f7fb8", "#f0a030", "#d64550", "#3a9d6e", "#8a5fbf", "#8c6d4f", "#d779b4", "#5b6770", "#a3a833", "#2fb5c4",
)  # fmt: skip
STYLES = ("-", "--", ":", "-.")
OPACITIES = (1.0, 0.6, 0.35)
LEGEND_INSIDE = 5  # lines, at most
WIDTH_INCHES, HEIGHT_INCHES = 9.0, 5.2
LETTER_INCHES, LINE_INCHES = 0.075, 0.2  # of a legend


@dataclass(frozen=True)
class Plot:
    """One number of a point against another."""

    file: str
    title: str
    x: Callable[[Point], float | None]
    x_label: str
    y: Callable[[Point], float | None]
    percent: bool = False
    may_be_log: bool = False


_SECONDS = "virtual seconds"
_SAMPLES = "samples seen by all workers"
PLOTS = (
    Plot("loss_by_seconds.png", "Training loss", lambda p: p.seconds, _SECONDS, lambda p: p.loss, may_be_log=True),
    Plot("loss_by_samples.png", "Training loss", lambda p: p.samples, _SAMPLES, lambda p: p.loss, may_be_log=True),
    Plot("accuracy_by_seconds.png", "Test accuracy of the averaged model", lambda p: p.seconds, _SECONDS,
         lambda p: p.accuracy, percent=True),
    Plot("accuracy_by_samples.png", "Test accuracy of the averaged model", lambda p: p.samples, _SAMPLES,
         lambda p: p.accuracy, percent=True),
    Plot("consensus_by_seconds.png", "Distance of the workers from their mean", lambda p: p.seconds, _SECONDS,
         lambda p: p.consensus_distance, may_be_log=True),
)  # fmt: skip


def draw_sweep(directory: Path, rows: Sequence[Row]) -> list[Path]:
    """All pictures for which there are numbers, into a folder that exists; says which."""
    names = varying(rows)
    labels = [label(row, names) for row in rows]
    drawn = []
    for plot in PLOTS:
        lines = [_line(row, plot) for row in rows]
        if any(len(line) for line in lines):
            drawn.append(directory / plot.file)
            with replacing(drawn[-1]) as path:
                _draw_curves(path, plot, rows, lines, labels)
    drawn.append(directory / "shares.png")
    with replacing(drawn[-1]) as path:
        _draw_shares(path, rows, labels)
    return drawn


def _line(row: Row, plot: Plot) -> np.ndarray:
    """Rows of (x, mean, lowest, highest) over seeds: the points of a number in all curves belong together."""
    found = []
    for points in zip(*(run.curve for run in row.runs), strict=False):
        xs, ys = [plot.x(point) for point in points], [plot.y(point) for point in points]
        known = [y for y in ys if y is not None]
        if None not in xs and len(known) == len(ys) and all(map(math.isfinite, known)):
            found.append((sum(x for x in xs if x is not None) / len(xs), np.mean(known), min(known), max(known)))
    return np.array(found, dtype=float).reshape(-1, 4)


def _draw_curves(
    path: Path, plot: Plot, rows: Sequence[Row], lines: Sequence[np.ndarray], labels: Sequence[str]
) -> None:
    figure, axes = _figure(labels, outside=len(labels) > LEGEND_INSIDE)
    for line, name, (colour, style, opacity) in zip(lines, labels, _looks(rows), strict=True):
        if not len(line):
            continue
        x, mean, low, high = line.T
        axes.plot(x, mean, style if len(x) > 1 else "o", color=colour, alpha=opacity, linewidth=1.8, label=name)
        if (high > low).any():
            axes.fill_between(x, low, high, color=colour, alpha=0.13 * opacity, linewidth=0)
    many = max(len(row.runs) for row in rows)
    style_axes(axes, plot.title + (f", mean and range of {many} seeds" if many > 1 else ""))
    values = np.concatenate([line[:, 1] for line in lines])
    if plot.may_be_log and values.min() > 0 and values.max() > 10 * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    if plot.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    target = rows[0].setting.target_accuracy
    if plot.percent and target is not None:
        axes.axhline(target, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        axes.annotate(f"target {percent(target, 1)}", (1, target), xycoords=("axes fraction", "data"), fontsize=8.5,
                      color=FAINT, ha="right", va="top")  # fmt: skip
    axes.grid(axis="y", color=GRID)
    axes.set_xlabel(plot.x_label, fontsize=9, color=FAINT)
    axes.set_xlim(left=0)
    _add_legend(axes, len(labels))
    figure.savefig(path, format="png")


def _draw_shares(path: Path, rows: Sequence[Row], labels: Sequence[str]) -> None:
    """A stacked bar per row: computing, waiting, neither."""
    margin = LETTER_INCHES * max(map(len, labels)) + 0.3
    height = 0.32 * len(rows) + 1.5
    width = max(WIDTH_INCHES, margin + 5)
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    axes = figure.add_axes((margin / width, 0.75 / height, 1 - (margin + 0.35) / width, 1 - 1.35 / height))
    places = np.arange(len(rows))
    computing = np.clip([row.mean(lambda run: run.computing_share) or 0.0 for row in rows], 0, 1)
    waiting = np.clip([row.mean(lambda run: run.waiting_share) or 0.0 for row in rows], 0, 1 - computing)
    left = np.zeros(len(rows))
    for share, colour, name in (
        (computing, COLOUR["compute"], "computing"),
        (waiting, COLOUR["wait"], "waiting"),
        (1 - computing - waiting, OTHER, "other"),
    ):
        axes.barh(places, share, 0.72, left=left, color=colour, label=name)
        left = left + share
    for place, share in enumerate(computing):
        if share > 0.1:
            axes.text(0.01, place, percent(share), color="white", fontsize=8, va="center", fontweight="bold")
    style_axes(axes, "Where the workers' time went")
    axes.set_yticks(places, labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.legend(ncols=3, loc="upper right", bbox_to_anchor=(1.0, -0.3 / (height - 1.35)), frameon=False, fontsize=9)
    figure.savefig(path, format="png")


def _looks(rows: Sequence[Row]) -> list[tuple[str, str, float]]:
    """Colour, style and opacity of every line: a colour per strategy where they suffice, else one after the other."""
    names = varying(rows)
    strategies = list(dict.fromkeys(label(row, names[:1]) for row in rows))
    rests = list(dict.fromkeys(label(row, names[1:]) for row in rows))
    if 1 < len(strategies) <= len(PALETTE):
        places = [(strategies.index(label(row, names[:1])), rests.index(label(row, names[1:]))) for row in rows]
    else:
        places = [(number % len(PALETTE), number // len(PALETTE)) for number in range(len(rows))]
    return [
        (PALETTE[colour], STYLES[rest % len(STYLES)], OPACITIES[rest // len(STYLES) % len(OPACITIES)])
        for colour, rest in places
    ]


def _figure(labels: Sequence[str], *, outside: bool) -> tuple[Figure, Axes]:
    """Wider and taller where a legend stands beside the axes, which keep their size."""
    beside = LETTER_INCHES * max(map(len, labels)) + 0.8 if outside else 0.25
    below = max(0.0, LINE_INCHES * len(labels) - (HEIGHT_INCHES - 1.15)) if outside else 0.0
    width, height = WIDTH_INCHES + beside, HEIGHT_INCHES + below
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0.75 / width, 0.6 / height, (WIDTH_INCHES - 0.85) / width, 1 - 1.15 / height))
    return figure, axes


def _add_legend(axes: Axes, lines: int) -> None:
    if lines > LEGEND_INSIDE:
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=9, borderaxespad=0)
    else:
        axes.legend(loc="best", frameon=False, fontsize=9)
