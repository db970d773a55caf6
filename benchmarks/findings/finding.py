"""What the findings share: the command line, tables with mean and spread over seeds, figures, the verdict."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fashion
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offbeat.report.status import to_json
from offbeat.sweep import Finished, Row, Setting, rows_of, sweep

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parents[1] / "docs" / "images"
INK, FAINT, GRID = "#1f2d3a", "#66737f", "#e6eaee"
COLOURS = ("#2f7fb8", "#f0a030", "#d64550", "#3a9d6e", "#8a5fbf", "#8c6d4f", "#d779b4", "#5b6770", "#a3a833", "#2fb5c4")
FAST_LINK = "10gbit"
STEP_SECONDS = 0.1
MODEL_NBYTES = 4 * sum(parameter.numel() for parameter in fashion.model().parameters())


@dataclass(frozen=True, kw_only=True)
class Options:
    name: str
    seeds: int
    processes: int | None
    quick: bool  # to see that the script works, not what it finds
    json: Path | None
    figure: Path
    keep: Path | None

    def task(self, function: str = "task") -> str:
        return f"{HERE / 'fashion.py'}:{'quick_task' if self.quick else function}"

    def run(self, settings: Iterable[Setting], times: int = 1) -> list[Row]:
        """A row per setting, over all seeds, or over so many times as many."""
        seeded = [replace(setting, seed=seed) for setting in settings for seed in range(times * self.seeds)]
        progress = sys.stderr.isatty()
        return rows_of(sweep(seeded, processes=self.processes, out=self.keep, progress=progress))

    def conclude(self, held: bool, numbers: str, rows: Sequence[Row], **more: Any) -> None:
        """The last line, and the file."""
        verdict = f"{self.name}: {'HELD' if held else 'DID NOT HOLD'}: {numbers}"
        if self.json is not None:
            runs = [run.as_dict() for row in rows for run in row.runs]
            record = {"finding": self.name, "held": held, "verdict": verdict, **more, "runs": runs}
            self.json.write_text(to_json(record, indent=2) + "\n", encoding="utf-8")
        print(verdict)


def options(name: str, doc: str | None) -> Options:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="runs of every setting (default: 3, with --quick 1)")
    parser.add_argument("--processes", type=int, help="runs beside each other (default: one per CPU, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="a smoke run of seconds, whose numbers mean nothing")
    parser.add_argument("--json", type=Path, help="write all runs and the verdict to this file")
    parser.add_argument("--out", type=Path, help=f"the figure (default: docs/images/findings-{name}.png)")
    parser.add_argument("--keep", type=Path, help="a folder in which runs are kept, so that none is run twice")
    given = parser.parse_args()
    seeds = (1 if given.quick else 3) if given.seeds is None else given.seeds
    if seeds < 1:
        parser.error(f"--seeds {seeds} does not fit: it must be at least 1")
    usual = Path(tempfile.gettempdir()) if given.quick else IMAGES  # a smoke run leaves the docs alone
    return Options(
        name=name,
        seeds=seeds,
        processes=1 if given.quick and given.processes is None else given.processes,
        quick=given.quick,
        json=given.json,
        figure=given.out or usual / f"findings-{name}.png",
        keep=given.keep,
    )


def link_for(seconds: float, nbytes: float) -> str:
    """The link that carries so many bytes in so many seconds."""
    return f"{nbytes * 8 / seconds / 1e6:.6g}mbit"


def all_reduce_nbytes(ranks: int, nbytes: float = MODEL_NBYTES) -> float:
    """That a ring of so many ranks sends over each hop."""
    return 2 * (ranks - 1) / ranks * nbytes


def accuracy(run: Finished) -> float | None:
    return run.accuracy


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 for a single run."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def with_spread(values: Sequence[float], digits: int = 2, scale: float = 1.0) -> str:
    """Such as "84.31 ± 0.20"."""
    return f"{mean(values) * scale:.{digits}f} ± {spread(values) * scale:.{digits}f}"


def print_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """As Markdown, its columns in line."""
    cells = [list(header), *map(list, lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print()


def new_figure(panels: int, widths: Sequence[float] | None = None, height: float = 4.4) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.6 * panels if widths is None else sum(widths), height), dpi=130, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
    axes = figure.subplots(1, panels, squeeze=False, width_ratios=widths)
    return figure, list(axes[0])


def style(axes: Axes, title: str, x: str = "", y: str = "", *, lines: str = "y") -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x, fontsize=9.5, color=FAINT)
    axes.set_ylabel(y, fontsize=9.5, color=FAINT)
    axes.tick_params(colors=FAINT, labelsize=9, length=0)
    axes.set_axisbelow(True)
    axes.grid(axis=lines, color=GRID)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(FAINT)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    print(f"figure: {path}\n")
