"""Edge lists: a topology from a file, one edge `i j` a line; `#` begins a comment, empty lines are skipped."""

from functools import lru_cache
from pathlib import Path

from ..errors import BadInput
from .graph import Graph

NAMED_AT_MOST = 5  # of the ranks that cannot be reached


def read_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"the edges of topology {name} cannot be read ({error.strerror}): "
            f"name a file of lines such as '0 1', or a topology such as ring"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} is no text: give a file of lines such as '0 1', one for each edge") from error


@lru_cache(maxsize=4)  # by what the file holds now
def parse_edges(name: str, text: str, workers: int) -> Graph:
    """`name` is for the sentences that say what is wrong."""
    edges = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
            raise BadInput(f"line {number} of {name}, {line.strip()!r}, is no edge: write two ranks, as in '0 1'")
        one, other = sorted(map(int, words))
        if other >= workers:
            raise BadInput(
                f"line {number} of {name} names rank {other}, but {workers} workers have ranks 0 to {workers - 1}: "
                f"correct the line, or use {other + 1} workers or more"
            )
        if one == other:
            raise BadInput(f"line {number} of {name} joins rank {one} to itself: name two ranks, or leave it out")
        edges.append((one, other))
    graph = Graph.of_edges(workers, edges)
    if apart := sorted(set(range(workers)).difference(*graph.reach(0))):
        some = ", ".join(map(str, apart[:NAMED_AT_MOST])) + (", ..." if len(apart) > NAMED_AT_MOST else "")
        raise BadInput(
            f"{name} leaves {len(apart)} of {workers} workers out of reach of rank 0 (rank {some}): "
            f"add an edge to them, or use fewer workers"
        )
    return graph
