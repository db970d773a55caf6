"""The summary picture of a run: the loss, what every worker did step by step, and where the time went."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, PercentFormatter

from ..layout import Ranks
from ..trace import Event, Kind
from .status import Result, Status
from .table import DELAY, counted, headline, human_bytes, human_seconds, mean, percent

SIZE_INCHES = (14.0, 9.0)
DPI = 130
MAX_LANES = 32
MAX_LOSS_LINES = 64
STEPS_SHOWN = 12  # in the window of the timeline; more where one exchange takes longer than that
MAX_STEPS_SHOWN = 40

COLOUR: dict[Kind, str] = {"compute": "#2f7fb8", "communicate": "#f0a030", "wait": "#d64550"}
OTHER = "#d5dae0"
INK, FAINT, GRID = "#1f2d3a", "#66737f", "#e6eaee"
# Within a lane of height 1: the worker's own time above, what travels meanwhile below.
LANE: dict[Kind, tuple[float, float]] = {"compute": (-0.43, 0.48), "wait": (-0.43, 0.48), "communicate": (0.09, 0.30)}


def draw_summary(
    path: Path, result: Result, statuses: Sequence[Status], events: Iterable[Event], node_of: Ranks
) -> None:
    """One PNG of `SIZE_INCHES` at `DPI`. `node_of[rank]` is the node of each rank."""
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white")
    grid = figure.add_gridspec(
        2, 2, width_ratios=(2.6, 1), height_ratios=(1, 1.45),
        left=0.085, right=0.975, top=0.875, bottom=0.09, hspace=0.36, wspace=0.1,
    )  # fmt: skip
    title = headline(result)
    figure.text(
        0.025, 0.95, title, fontsize=min(15.0, 15 * 106 / len(title)), fontweight="bold", color=INK, va="center"
    )  # fmt: skip
    lanes = _spread(tuple(range(len(node_of))), MAX_LANES)
    _draw_loss(figure.add_subplot(grid[0, 0]), statuses)
    _draw_numbers(figure.add_subplot(grid[0, 1]), result)
    _draw_timeline(figure.add_subplot(grid[1, 0]), events, lanes, node_of)
    _draw_shares(figure.add_subplot(grid[1, 1]), result.per_worker, lanes, len(node_of))
    figure.savefig(path, format="png")


def _spread(ranks: Ranks, most: int) -> Ranks:
    """At most so many of the ranks, evenly over all of them, the first and the last included."""
    if len(ranks) <= most:
        return ranks
    return tuple(ranks[round(place * (len(ranks) - 1) / (most - 1))] for place in range(most))


def style_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.tick_params(colors=FAINT, labelsize=8.5, length=0)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(FAINT)


def _say(axes: Axes, sentence: str) -> None:
    """In place of a picture, why there is none."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.text(0.5, 0.5, sentence, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=10)


# --- the loss ---


def _draw_loss(axes: Axes, statuses: Sequence[Status]) -> None:
    lines = _loss_lines(statuses)
    style_axes(axes, f"Training loss of {counted(len(lines), 'worker')}" + (", and the mean" if len(lines) > 1 else ""))
    if not any(np.isfinite(line[:, 1]).any() for line in lines.values()):
        _say(axes, "no loss was recorded" if lines else "no status was recorded")
        return
    for rank in _spread(tuple(lines), MAX_LOSS_LINES):
        seconds, loss = lines[rank].T
        alpha = max(0.12, min(0.55, 4 / len(lines)))
        style = "-" if len(loss) > 1 else "o"
        axes.plot(seconds, loss, style, markersize=4, color=COLOUR["compute"], linewidth=0.9, alpha=alpha)
    seconds, loss = _mean_line(list(lines.values()))
    style = "-" if len(loss) > 1 else "o"
    axes.plot(seconds, loss, style, markersize=7, color=INK, linewidth=2, label="mean")
    finite = np.concatenate([line[:, 1] for line in lines.values()])
    finite = finite[np.isfinite(finite)]
    if finite.min() > 0 and finite.max() > 10 * finite.min():
        axes.set_yscale("log")
        if finite.max() < 300 * finite.min():  # powers of ten alone would be one or two labels
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    axes.grid(axis="y", color=GRID)
    axes.set_xlabel("seconds of training", fontsize=9, color=FAINT)
    axes.set_xlim(0, 1.01 * max(status.seconds for status in statuses) or 1.0)


def _loss_lines(statuses: Sequence[Status]) -> dict[int, np.ndarray]:
    """For each rank its rows of (seconds, loss), in the order of time; infinities as gaps."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for status in statuses:
        loss = status.loss if math.isfinite(status.loss) else math.nan
        rows.setdefault(status.rank, []).append((status.seconds, loss))
    return {rank: np.array(sorted(rows[rank], key=lambda row: row[0])) for rank in sorted(rows)}


def _mean_line(lines: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Over the workers that have a loss at that time (each from its first to its last), where half of them do."""
    known = [line[np.isfinite(line[:, 1])] for line in lines]
    known = [line for line in known if len(line)]
    seconds = np.unique(np.concatenate([line[:, 0] for line in known]))
    if len(seconds) > 300:
        seconds = np.linspace(seconds[0], seconds[-1], 300)
    total, count = np.zeros(len(seconds)), np.zeros(len(seconds))
    for line in known:
        there = np.interp(seconds, line[:, 0], line[:, 1], left=np.nan, right=np.nan)
        total += np.nan_to_num(there)
        count += np.isfinite(there)
    enough = 2 * count >= len(known)
    if not enough.any():
        points = np.array([line.mean(axis=0) for line in known])
        return points[:, :1].mean(axis=0), points[:, 1:].mean(axis=0)
    return seconds[enough], total[enough] / count[enough]


# --- the timeline ---


def _draw_timeline(axes: Axes, events: Iterable[Event], lanes: Ranks, node_of: Ranks) -> None:
    lane_of = {rank: lane for lane, rank in enumerate(lanes)}
    seen = [event for event in events if event.rank in lane_of]
    who = counted(len(lanes), "worker") if len(lanes) == len(node_of) else f"{len(lanes)} of {len(node_of):,} workers"
    if not seen:
        style_axes(axes, f"What {who} did, step by step")
        _say(axes, "no events were recorded")
        return
    begin, end = choose_window(seen)
    unit, per_second = ("s", 1.0) if end - begin > 2 else ("ms", 1e3) if end - begin > 2e-3 else ("µs", 1e6)
    bars: dict[tuple[Kind, int], list[tuple[float, float]]] = {}
    for event in seen:
        left, right = max(event.start, begin), min(event.start + event.seconds, end)
        if right > left:
            bar = ((left - begin) * per_second, (right - left) * per_second)
            bars.setdefault((event.kind, event.rank), []).append(bar)
    for (kind, rank), spans in bars.items():
        offset, height = LANE[kind]
        axes.broken_barh(
            spans, (lane_of[rank] + offset, height), facecolor=COLOUR[kind], edgecolor="white",
            linewidth=0.6 if len(lanes) <= 16 else 0.2, zorder=3 if kind == "wait" else 2,
        )  # fmt: skip
    style_axes(axes, f"What {who} did, step by step")
    axes.set_xlim(0, (end - begin) * per_second)
    axes.set_xlabel(f"{unit} after second {begin:,.3f} of the run", fontsize=9, color=FAINT)
    _lanes(axes, lanes)
    nodes = len(set(node_of))
    names = [f"rank {rank}, node {node_of[rank]}" if nodes > 1 else f"rank {rank}" for rank in lanes]
    axes.set_yticks(range(len(lanes)), names)
    for lane in range(1, len(lanes)) if nodes <= 8 else ():
        if node_of[lanes[lane]] != node_of[lanes[lane - 1]]:
            axes.axhline(lane - 0.5, color=FAINT, linewidth=0.6, zorder=1)
    handles = [Patch(color=colour, label=kind) for kind, colour in COLOUR.items()]
    axes.legend(handles=handles, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def choose_window(events: Sequence[Event]) -> tuple[float, float]:
    """The seconds from and to which single steps can be told apart, around an exchange if there is one.

    A dozen steps, or more if an exchange takes longer than that, in the part of the run that every rank's events
    cover, near its middle.
    """
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for event in events:
        first[event.rank] = min(first.get(event.rank, math.inf), event.start)
        last[event.rank] = max(last.get(event.rank, -math.inf), event.start + event.seconds)
    begin, end = max(first.values()), min(last.values())
    if end <= begin:  # the ranks' events have no time in common
        begin, end = min(first.values()), max(last.values())
    step = _period([event for event in events if event.kind == "compute"] or events)
    exchanges = [event for event in events if event.kind == "communicate" and begin <= event.start <= end]
    longest = 1.5 * float(np.median([event.seconds for event in exchanges])) if exchanges else 0.0
    width = min(max(STEPS_SHOWN * step, longest), MAX_STEPS_SHOWN * step)
    if width <= 0:
        width = end - begin or 1e-3
    if width >= end - begin:
        return begin, begin + max(end - begin, 1e-9)
    middle = (begin + end) / 2
    if exchanges:
        nearest = min(exchanges, key=lambda event: abs(event.start - middle))
        middle = nearest.start + min(nearest.seconds / 2, width / 3)
    left = min(max(middle - width / 2, begin), end - width)
    return left, left + width


def _period(events: Sequence[Event]) -> float:
    """The median time from the start of one event to that of the next of the same rank."""
    starts: dict[int, list[float]] = {}
    for event in events:
        starts.setdefault(event.rank, []).append(event.start)
    gaps = [gap for each in starts.values() for gap in np.diff(np.sort(each)) if gap > 0]
    return float(np.median(gaps)) if gaps else max(event.seconds for event in events)


def _lanes(axes: Axes, lanes: Ranks) -> None:
    """One lane per rank, the first on top; few lanes do not grow fat."""
    spare = max(0.0, 4 - len(lanes)) / 2
    axes.set_ylim(len(lanes) - 0.5 + spare, -0.5 - spare)
    axes.tick_params(axis="y", labelsize=8.5 if len(lanes) <= 16 else 6.5)


# --- where the time went ---


def _draw_shares(axes: Axes, workers: Sequence[Status], lanes: Ranks, count: int) -> None:
    """Few workers: one bar beside each lane of the timeline. Many: all of them, as areas."""
    style_axes(axes, "Where each worker's time went")
    if not workers:
        _say(axes, "no worker has reported")
        return
    workers = sorted(workers, key=lambda status: status.rank)
    ranks = np.array([status.rank for status in workers])
    computing = np.clip(np.nan_to_num([status.computing_share for status in workers]), 0, 1)
    waiting = np.clip(np.nan_to_num([status.waiting_share for status in workers]), 0, 1 - computing)
    left = np.zeros(len(workers))
    for share, colour, label in (
        (computing, COLOUR["compute"], "computing"),
        (waiting, COLOUR["wait"], "waiting"),
        (1 - computing - waiting, OTHER, "other"),
    ):
        if count <= MAX_LANES:
            axes.barh(ranks, share, 0.7, left=left, color=colour, label=label)
        else:  # thousands of bars take seconds to draw
            axes.fill_betweenx(ranks, left, left + share, step="mid", color=colour, linewidth=0, label=label)
        left = left + share
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if count <= MAX_LANES:
        _lanes(axes, lanes)
        axes.set_yticks([])
        for rank, share in zip(ranks, computing, strict=True):
            if share > 0.15 and count <= 16:
                axes.text(0.02, rank, percent(share), color="white", fontsize=8, va="center", fontweight="bold")
    else:
        axes.set_ylim(count - 1, 0)
        axes.set_ylabel("rank", fontsize=9, color=FAINT)
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.06), frameon=False, fontsize=9)


# --- the numbers ---


def _draw_numbers(axes: Axes, result: Result) -> None:
    axes.axis("off")
    axes.set_title("In numbers", loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    delays = [status for status in result.per_worker if status.delay is not None]
    rows = [
        ("task, strategy", f"{result.task}, {result.strategy}"),
        ("world, seed", f"{result.world}, {result.seed}"),
        ("workers", f"{result.workers:,} on {counted(result.nodes, 'node')}"),
        ("accuracy", "does not apply" if result.accuracy is None else percent(result.accuracy, 2)),
        ("test loss", "timing only" if result.loss is None else f"{result.loss:.4g}"),
        ("steps/s per worker", f"{result.steps_per_second:,.1f}"),
        ("time computing", percent(result.computing_share, 1)),
        ("bytes sent, all", human_bytes(result.bytes_sent)),
        ("delay of an average", f"{DELAY.cell(delays, mean)} steps" if delays else "does not apply"),
        ("time of training" + (", virtual" if result.world == "virtual" else ""), human_seconds(result.seconds)),
    ]
    for place, (name, value) in enumerate(rows):
        y = 1 - (place + 0.5) / len(rows)
        axes.text(0.0, y, name, transform=axes.transAxes, color=FAINT, fontsize=9.5, va="center")
        axes.text(1.0, y, value, transform=axes.transAxes, color=INK, fontsize=10, va="center", ha="right")
        if place:
            axes.plot((0, 1), (1 - place / len(rows),) * 2, color=GRID, linewidth=0.8, transform=axes.transAxes)
