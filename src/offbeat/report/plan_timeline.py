"""Where the time of a step goes: compute and exposed communication stacked, and one synchronous step as a timeline."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..cost.plan import HIDDEN, Answer, Row, exposed_by_bucket
from .summary import COLOUR, FAINT, GRID, style_axes
from .table import counted, human_bytes, human_seconds

PHASES = {"forward": "#2f7fb8", "backward": "#1f5a86", "optimizer": "#8a5fbf"}


def draw_stack(answer: Answer, figure: Figure) -> None:
    """By strategy on all workers, and of the first strategy by the number of workers."""
    left, right = figure.subplots(1, 2, sharey=True)
    workers, first = answer.question.workers, answer.question.strategies[0]
    here = [row for row in answer.rows if row.workers == workers]
    _bars(left, here, [row.strategy for row in here], f"A step on {counted(workers, 'worker')}")
    rows = answer.of(first)
    _bars(right, rows, [f"{row.workers:,}" for row in rows], f"A step of {first} by workers")
    left.set_ylabel("milliseconds", fontsize=9, color=FAINT)
    left.legend(frameon=False, fontsize=9)


def _bars(axes: Axes, rows: list[Row], labels: list[str], title: str) -> None:
    places = np.arange(len(rows))
    compute = np.array([1e3 * row.compute_seconds for row in rows])
    exposed = np.array([1e3 * row.exposed_seconds for row in rows])
    axes.bar(places, compute, 0.7, color=COLOUR["compute"], label="compute")
    axes.bar(places, exposed, 0.7, bottom=compute, color=COLOUR["wait"], label="exposed communication and waits")
    style_axes(axes, title)
    axes.set_xticks(places, labels, rotation=30 if max(map(len, labels)) > 6 else 0)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)


def draw_timeline(answer: Answer, figure: Figure) -> None:
    """Synchronous SGD on all workers: the buckets on the wire below the compute that makes them."""
    time, question = answer.prediction.bucketed, answer.question
    busy = exposed_by_bucket(answer.prediction, question, question.workers)
    axes = figure.add_subplot()
    computed = time.forward_seconds + time.backward_seconds
    optimizer = max([computed, *(end for _, end in busy)])
    spans = {
        "forward": (0.0, time.forward_seconds),
        "backward": (time.forward_seconds, computed),
        "optimizer": (optimizer, optimizer + time.optimizer_seconds),
    }
    for name, (begin, end) in spans.items():
        axes.barh(1, 1e3 * (end - begin), 0.6, left=1e3 * begin, color=PHASES[name], label=name)
    if optimizer - computed > HIDDEN * optimizer:
        axes.barh(1, 1e3 * (optimizer - computed), 0.6, left=1e3 * computed, color=COLOUR["wait"], label="waits")
    for (nbytes, _), (begin, end) in zip(time.ready, busy, strict=True):
        axes.barh(
            0, 1e3 * (end - begin), 0.5, left=1e3 * begin, color=COLOUR["communicate"], edgecolor="white", linewidth=0.8
        )
        if end - begin > 0.06 * optimizer:
            axes.text(500 * (begin + end), 0, human_bytes(nbytes), ha="center", va="center", fontsize=8, color="white")
    total = human_seconds(optimizer + time.optimizer_seconds)
    style_axes(axes, f"One step of ddp on {counted(question.workers, 'worker')}: {total}")
    axes.set_yticks([0, 1], ["wire", "worker"])
    axes.set_ylim(-0.6, 1.7)
    axes.set_xlabel("milliseconds", fontsize=9, color=FAINT)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="upper right")
