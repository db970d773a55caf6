"""What `offbeat topology` does with its flags."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..report.json_file import write_json
from ..report.table import counted
from .graph import Graph
from .named import neighbours
from .spectrum import Momentum, momentum

PICTURE_UP_TO = 64  # workers, in the terminal
MEANING = {
    "chi_1": "steps; plain gossip shrinks the slowest difference to 1/e in twice as many",
    "chi_2": "steps; how far apart two neighbours are at most, all ways between them counted",
    "eta": "per step; how fast x and x~ mix",
    "alpha": "part of a difference that x takes in an exchange",
    "alpha~": "part that x~ takes; 0.5 is plain gossip",
}


def show(name: str, workers: int, rate: float, *, out: Path | None, json_file: str | None) -> None:
    """The numbers and a picture, on standard output unless the JSON is to be alone there; files before that."""
    graph = neighbours(name, workers)
    numbers = momentum(graph, rate)
    if out is not None:
        from .picture import draw

        draw(out, name, graph, headline(name, graph))
    if json_file is not None:
        write_json(json_file, record(name, rate, graph, numbers))
    print_topology(Console(stderr=json_file == "-", emoji=False), name, graph, numbers)


def record(name: str, rate: float, graph: Graph, numbers: Momentum) -> dict[str, Any]:
    return {
        "topology": name,
        "workers": len(graph),
        "rate": rate,
        "edges": sum(graph.degrees) // 2,
        "degree": max(graph.degrees),  # the most neighbours that a rank has
        "least_degree": min(graph.degrees),
        "diameter": graph.diameter,
        **asdict(numbers),
    }


def print_topology(console: Console, name: str, graph: Graph, numbers: Momentum) -> None:
    console.print(Text(headline(name, graph), style="bold"), soft_wrap=True)
    console.print()
    if 1 < len(graph) <= PICTURE_UP_TO:
        for line in adjacency(graph, console.options.ascii_only):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    console.print(table(numbers))
    console.print()
    console.print(sentence(numbers), highlight=False, soft_wrap=True)


def headline(name: str, graph: Graph) -> str:
    """The graph in one line."""
    least, most = min(graph.degrees), max(graph.degrees)
    degree = f"{counted(most, 'neighbour')} each" if least == most else f"{least} to {most:,} neighbours"
    return (
        f"{name} of {counted(len(graph), 'worker')}: {counted(sum(graph.degrees) // 2, 'edge')}, {degree}, "
        f"diameter {graph.diameter:,}"
    )


def adjacency(graph: Graph, ascii_only: bool = False) -> Iterator[str]:
    """Rank by rank, a mark where the two are joined. A line shows two ranks where the terminal has half blocks."""
    joined = [[other in others for other in range(len(graph))] for others in map(set, graph)]
    if ascii_only:
        yield from ("".join(".#"[mark] for mark in row) for row in joined)
        return
    if len(joined) % 2:
        joined.append([False] * len(graph))
    for upper, lower in zip(joined[::2], joined[1::2], strict=True):
        yield "".join("·▀▄█"[above + 2 * below] for above, below in zip(upper, lower, strict=True))


def table(numbers: Momentum) -> Table:
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    result.add_column("")
    result.add_column("value", justify="right", no_wrap=True)
    result.add_column("meaning")
    for name, meaning in MEANING.items():
        result.add_row(name, f"{getattr(numbers, name.replace('~', '_tilde')):.4g}", meaning)
    return result


def sentence(numbers: Momentum) -> str:
    """What the numbers amount to."""
    if not numbers.eta:
        return "A worker alone has nobody to exchange with."
    plain, with_momentum = 2 * numbers.chi_1, 1 / numbers.eta
    begin = f"The slowest difference between workers shrinks to 1/e in {_steps(plain)} by plain gossip (2 chi_1)"
    if plain < 1.005 * with_momentum:
        return f"{begin}, and in as many with momentum (1 / eta): on this graph it changes nothing."
    times = f"{plain / with_momentum:.1f} times"
    return (
        f"{begin}, and in {_steps(with_momentum)} with momentum (1 / eta), in expectation. "
        f"Without momentum that would take {times} the exchanges."
    )


def _steps(number: float) -> str:
    return f"{number:,.1f} steps" if number < 1e6 else f"{number:.3g} steps"
