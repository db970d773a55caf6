"""Draw docs/images/overview.png: what four workers do under each strategy, in virtual time.

    python docs/make_pictures.py

Every bar is an event that the virtual world recorded; nothing is drawn by hand. Same bits every time.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from offbeat.layout import Layout
from offbeat.report.summary import COLOUR, FAINT, GRID, INK
from offbeat.sim.cluster import Cluster
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.rates import parse_rate
from offbeat.sim.run import run
from offbeat.strategies import make_strategy
from offbeat.trace import Event, Kind

IMAGES = Path(__file__).parent / "images"
STRATEGIES = {
    "ddp": "gradients averaged in every step",
    "local_sgd:every=4": "weights averaged every 4 steps",
    "lasgd": "weights averaged while steps go on",
    "gossip": "weights averaged in pairs, in the background",
}
WORKERS, STRAGGLER, FACTOR = 4, 3, 1.6
STEP_SECONDS, LINK, MODEL_BYTES = 0.1, "100mbit", 1_500_000
STEPS, BEGIN, SECONDS = 60, 1.0, 3.0  # of each run, and the window of it that is drawn
SEED, JITTER = 0, 0.04

WIDTH_INCHES, HEIGHT_INCHES, DPI = 9.6, 6.3, 200
LABEL: dict[Kind, str] = {"compute": "computing", "wait": "waiting", "communicate": "averaging"}
# Within a lane of height 1: the worker's own time above, what travels meanwhile below.
LANE: dict[Kind, tuple[float, float]] = {"compute": (-0.42, 0.5), "wait": (-0.42, 0.5), "communicate": (0.13, 0.2)}


@dataclass(frozen=True)
class Window:
    """The events of one run between BEGIN and BEGIN + SECONDS, cut to it."""

    events: Sequence[Event]
    steps: int
    computing_share: float


def look(strategy: str) -> Window:
    cluster = Cluster(
        layout=Layout.even(WORKERS, WORKERS),
        step_seconds=STEP_SECONDS,
        link=Link(bytes_per_second=parse_rate(LINK), seconds=100e-6),
        stragglers={STRAGGLER: FACTOR},
        jitter=JITTER,
    )
    done = run(make_strategy(strategy), cluster, NoModel(WORKERS), [STEPS] * WORKERS, seed=SEED, nbytes=MODEL_BYTES)
    events, end = [], BEGIN + SECONDS
    steps, computing = 0, 0.0
    for event in (event for trace in done.traces for event in trace.events):
        left, right = max(event.start, BEGIN), min(event.start + event.seconds, end)
        if left >= right:
            continue
        events.append(Event(event.kind, event.name, event.rank, left - BEGIN, right - left))
        if event.kind == "compute":
            computing += right - left
            steps += event.start + event.seconds <= end
    return Window(events, steps, computing / (WORKERS * SECONDS))


def draw(axes: Axes, spec: str, window: Window) -> None:
    for kind in ("communicate", "compute", "wait"):
        for rank in range(WORKERS):
            spans = [(e.start, e.seconds) for e in window.events if e.rank == rank and e.kind == kind]
            offset, height = LANE[kind]
            axes.broken_barh(spans, (rank + offset, height), facecolor=COLOUR[kind], edgecolor="white", linewidth=0.7)
    axes.set_xlim(0, SECONDS)
    axes.set_ylim(WORKERS - 0.45, -0.55)
    axes.set_yticks(range(WORKERS), [f"{r}  slow" if r == STRAGGLER else f"{r}" for r in range(WORKERS)])
    axes.set_xticks([0, 1, 2, 3])
    axes.tick_params(colors=FAINT, labelsize=8.5, length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=GRID)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.text(0, -0.78, spec.partition(":")[0], color=INK, fontsize=11, fontweight="bold", va="bottom")
    axes.text(0.43, -0.78, STRATEGIES[spec], color=FAINT, fontsize=9.5, va="bottom")
    for y, size, text, colour in (
        (0.9, 17, f"{window.computing_share:.0%}".replace("%", " %"), COLOUR["compute"]),
        (2.0, 8.5, "of the time computing", FAINT),
        (2.8, 8.5, f"{window.steps} steps", FAINT),
    ):
        weight = "bold" if size > 10 else "normal"
        axes.text(SECONDS * 1.025, y, text, color=colour, fontsize=size, fontweight=weight, va="center")


def overview(path: Path) -> None:
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DPI)
    figure.patch.set_alpha(0.0)
    # A white card with round corners: legible on any background.
    aspect = WIDTH_INCHES / HEIGHT_INCHES
    card = FancyBboxPatch(
        (0.02, 0.02 * aspect), 0.96, 1 - 0.04 * aspect, boxstyle="round,pad=0.018,rounding_size=0.018",
        mutation_aspect=aspect, transform=figure.transFigure, facecolor="white", edgecolor="#d5dae0", linewidth=0.8,
        zorder=-1,
    )  # fmt: skip
    figure.add_artist(card)
    panels = figure.subplots(
        len(STRATEGIES), 1, sharex=True,
        gridspec_kw={"left": 0.085, "right": 0.815, "top": 0.865, "bottom": 0.07, "hspace": 0.42},
    )  # fmt: skip
    for axes, spec in zip(panels, STRATEGIES, strict=True):
        draw(axes, spec, look(spec))
    panels[-1].set_xticks([0, 1, 2, 3], ["0", "1 s", "2 s", "3 s"])
    figure.text(0.833, 0.0525, "virtual time", color=FAINT, fontsize=8.5, va="center")
    wire = f"{LINK.removesuffix('mbit')} Mbit/s"
    what = f"Four workers, {wire}, {MODEL_BYTES / 1e6:g} MB of weights; worker {STRAGGLER} is {FACTOR} times slower"
    figure.text(0.035, 0.948, what, color=INK, fontsize=10.5, va="center")
    handles = [Patch(color=COLOUR[kind], label=LABEL[kind]) for kind in LABEL]
    figure.legend(
        handles=handles, ncols=3, loc="center right", bbox_to_anchor=(0.985, 0.948), frameon=False, fontsize=8.5,
        labelcolor=FAINT, handlelength=1.1, columnspacing=1.1, handletextpad=0.5,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES, metavar="DIR", help="[docs/images]")
    overview(parser.parse_args().out / "overview.png")
