"""The pictures of a plan: weak and strong scaling, the five knobs, the roofline, where the time goes, a timeline."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter

from ..cost.plan import Answer
from ..cost.sweeps import Knob, strong_scaling, sweeps
from .outputs import replacing
from .plan_roofline import draw_roofline
from .plan_timeline import draw_stack, draw_timeline
from .summary import DPI, FAINT, GRID, INK, style_axes
from .sweep_plots import PALETTE, STYLES

Draw = Callable[[Answer, Figure], None]
SIZE_INCHES = (9.0, 5.6)
KNOBS_INCHES = (15.0, 8.4)


def draw_plan(directory: Path, answer: Answer) -> list[Path]:
    """All pictures, into a folder that exists; says which."""
    pictures: dict[str, tuple[Draw, tuple[float, float]]] = {
        "weak_scaling.png": (draw_weak_scaling, SIZE_INCHES),
        "strong_scaling.png": (draw_strong_scaling, SIZE_INCHES),
        "knobs.png": (draw_knobs, KNOBS_INCHES),
        "roofline.png": (draw_roofline, SIZE_INCHES),
        "stack.png": (draw_stack, (12.0, 5.6)),
        "timeline.png": (draw_timeline, (12.0, 4.2)),
    }
    drawn = []
    for name, (draw, size) in pictures.items():
        figure = Figure(figsize=size, dpi=DPI, facecolor="white", layout="constrained")
        draw(answer, figure)
        drawn.append(directory / name)
        with replacing(drawn[-1]) as path:
            figure.savefig(path, format="png")
    return drawn


def draw_weak_scaling(answer: Answer, figure: Figure) -> None:
    """The same batch on every worker: efficiency against the number of workers, with its band."""
    axes = figure.add_subplot()
    for name, (colour, style) in zip(answer.question.strategies, _looks(answer), strict=True):
        rows = answer.of(name)
        workers = [row.workers for row in rows]
        axes.plot(
            workers, [row.efficiency for row in rows], style, color=colour, label=name, marker="o", markersize=3.5
        )
        axes.fill_between(
            workers,
            [row.efficiency_low for row in rows],
            [row.efficiency_high for row in rows],
            color=colour,
            alpha=0.1,
        )
    style_axes(axes, f"Weak scaling: {_subject(answer)}, batch {answer.question.batch} a worker")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.grid(axis="y", color=GRID)
    axes.set_xlabel("workers", fontsize=9, color=FAINT)
    axes.set_ylabel("efficiency", fontsize=9, color=FAINT)
    axes.legend(frameon=False, fontsize=9, ncols=2)


def draw_strong_scaling(answer: Answer, figure: Figure) -> None:
    """One batch divided among the workers: throughput against their number."""
    strong = strong_scaling(answer)
    axes = figure.add_subplot()
    ideal = [strong.alone[0] * workers for workers in strong.workers]
    axes.plot(strong.workers, ideal, "--", color=FAINT, linewidth=1, label="ideal")
    axes.plot(strong.workers, strong.alone, ":", color=INK, linewidth=1.2, label="without communication")
    for (name, speeds), (colour, style) in zip(strong.speeds.items(), _looks(answer), strict=True):
        axes.plot(strong.workers, speeds, style, color=colour, label=name, marker="o", markersize=3.5)
    style_axes(axes, f"Strong scaling: {_subject(answer)}, a batch of {strong.batch:,} divided among the workers")
    _log_log(axes)
    axes.set_xlabel("workers", fontsize=9, color=FAINT)
    axes.set_ylabel("samples/s", fontsize=9, color=FAINT)
    axes.legend(frameon=False, fontsize=9, ncols=2)


def draw_knobs(answer: Answer, figure: Figure) -> None:
    """Throughput when one thing is turned: that of the synchronous strategies."""
    names = [name for name in answer.question.strategies if name.partition(":")[0] in ("ddp", "local_sgd", "diloco")]
    names = names or ["ddp"]
    lines = {name: sweeps(answer, name) for name in names}
    all_axes = figure.subplots(2, 3)
    places = list(all_axes.flat)
    for index, axes in enumerate(places[:-1]):
        for name, colour in zip(names, PALETTE, strict=False):
            _draw_knob(axes, lines[name][index], name, colour)
    handles, labels = places[0].get_legend_handles_labels()
    places[-1].axis("off")
    places[-1].legend(handles, labels, frameon=False, fontsize=10, loc="center")
    places[-1].set_title(f"{_subject(answer)},\n{answer.question.workers:,} workers", fontsize=11, color=INK)


def _draw_knob(axes: Axes, knob: Knob, name: str, colour: str) -> None:
    axes.plot(knob.values, knob.speeds, "o-", color=colour, markersize=3.5, label=name)
    axes.axvline(knob.now, color=FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
    style_axes(axes, knob.name)
    _log_log(axes)
    axes.set_xlabel(knob.unit, fontsize=9, color=FAINT)
    axes.set_ylabel("samples/s", fontsize=9, color=FAINT)


def _log_log(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.5g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.grid(axis="y", color=GRID)


def _looks(answer: Answer) -> list[tuple[str, str]]:
    """Colour and style of each strategy: several may lie on each other."""
    places = range(len(answer.question.strategies))
    return [(PALETTE[place % len(PALETTE)], STYLES[place % len(STYLES)]) for place in places]


def _subject(answer: Answer) -> str:
    return f"{answer.question.subject.name} on {answer.question.profile.device.name}"
