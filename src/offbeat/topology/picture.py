"""The picture of a graph: a circle of ranks; a grid for the torus, spokes for the star."""

import io
from pathlib import Path

import networkx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ..errors import BadInput
from ..report.summary import COLOUR, FAINT, INK
from .graph import Graph
from .named import torus_sides

SIZE_INCHES, DPI = (7.0, 7.4), 150
MOST_EDGES = 50_000
NUMBERED_UP_TO = 64  # ranks
STUB = 0.55  # of an edge of the torus that leaves the grid on one side and comes back on the other

Line = tuple[tuple[float, float], tuple[float, float]]


def draw(path: Path, name: str, graph: Graph, title: str) -> None:
    """Written whole or not at all, as PNG."""
    edges = sum(graph.degrees) // 2
    if path.suffix.lower() != ".png":
        raise BadInput(f"--out {path} is no picture: give a name that ends in .png")
    if edges > MOST_EDGES:
        raise BadInput(f"--out {path} would show {edges:,} edges, and {MOST_EDGES:,} fill it: use fewer workers")
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, facecolor="white")
    axes = figure.add_axes((0.04, 0.03, 0.92, 0.89))
    size = min(11.0, 11 * 66 / len(title))
    figure.text(0.05, 0.955, title, color=INK, fontsize=size, fontweight="bold", va="center")
    _draw(axes, graph, places(name, graph), torus_sides(len(graph))[1] if name == "torus" else None)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    try:
        path.write_bytes(drawn.getvalue())
    except OSError as error:
        raise BadInput(
            f"--out {path} cannot be written ({error.strerror}): give a file in a folder of yours"
        ) from error


def places(name: str, graph: Graph) -> np.ndarray:
    """x and y of every rank."""
    ranks = range(len(graph))
    if name == "torus":
        columns = torus_sides(len(graph))[1]
        return np.array([(rank % columns, -(rank // columns)) for rank in ranks], dtype=float)
    around = networkx.circular_layout(ranks[1:] if name == "star" else ranks, center=(0, 0))
    middle = {0: np.zeros(2)} if name == "star" else {}
    at = np.array([{**around, **middle}[rank] for rank in ranks], dtype=float)
    return at[:, ::-1] if len(graph) > 1 else at  # the first on top, on clockwise


def lines(graph: Graph, at: np.ndarray, columns: int | None) -> list[Line]:
    """One for every edge, and two stubs for each that closes a row or a column of a torus."""
    found: list[Line] = []
    for one, other in graph.edges:
        (x, y), (u, v) = at[one], at[other]
        if columns is None or abs(x - u) + abs(y - v) <= 1:
            found.append(((x, y), (u, v)))
        else:
            dx, dy = STUB * np.sign(x - u), STUB * np.sign(y - v)
            found += [((x, y), (x + dx, y + dy)), ((u, v), (u - dx, v - dy))]
    return found


def _draw(axes: Axes, graph: Graph, at: np.ndarray, columns: int | None) -> None:
    every = lines(graph, at, columns)
    strength = float(np.clip(40 / max(len(every), 1) ** 0.5, 0.4, 1.6))
    axes.add_collection(LineCollection(every, colors=FAINT, linewidths=strength, alpha=min(1.0, 0.5 * strength + 0.1)))
    numbered = len(graph) <= NUMBERED_UP_TO
    area = 330.0 if len(graph) <= 24 else 170.0 if numbered else float(np.clip(12_000 / len(graph), 2, 60))
    axes.scatter(at[:, 0], at[:, 1], s=area, color=COLOUR["compute"], zorder=2, linewidths=0)
    for rank, (x, y) in enumerate(at) if numbered else ():
        size = 8.5 if len(graph) <= 24 else 6.5
        axes.text(x, y, str(rank), color="white", fontsize=size, ha="center", va="center_baseline", zorder=3)
    axes.set_aspect("equal")
    axes.margins(0.06)
    axes.axis("off")
