"""fit: latency and seconds per byte of measured all-reduces or swaps, piece by piece, by least relative deviations.

Every algorithm of `collectives` is linear in a and b, so a piece is a small linear problem with a, b >= 0. What counts
is the sum of deviations, not of their squares: a collective that was disturbed while it was measured must not bend the
line. Libraries change their protocol with the size of a message: up to `MOST_PIECES` ranges of sizes get an a and a b
each, cut where the error is least.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadInput
from .collectives import ALGORITHMS, Cost, Hop, find_formula

MOST_PIECES = 3
SIZES_PER_PIECE = 2  # a line needs two
WORTH_A_PIECE, GOOD_ENOUGH = 0.9, 1e-3  # of the error before; nobody measures better than that
ROUNDS = 30  # by which the weights have settled


class Point(NamedTuple):
    """One measured all-reduce, or swap."""

    ranks: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Piece:
    """From so many bytes on."""

    nbytes: int
    hop: Hop


@dataclass(frozen=True)
class Fitted:
    """A collective as it was measured."""

    algorithm: str
    pieces: tuple[Piece, ...]  # by size; the first holds for anything smaller, too
    error: float  # mean, relative, over the points it was fitted to

    def cost(self, nbytes: float, ranks: int) -> Cost:
        place = bisect_right([piece.nbytes for piece in self.pieces], nbytes) - 1
        return find_formula(self.algorithm)(nbytes, ranks, self.pieces[max(place, 0)].hop)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, read: dict[str, Any]) -> "Fitted":
        pieces = tuple(Piece(piece["nbytes"], Hop(**piece["hop"])) for piece in read["pieces"])
        find_formula(read["algorithm"])
        return cls(read["algorithm"], pieces, read["error"])


def fit(points: Sequence[Point], algorithms: Iterable[str] = ALGORITHMS) -> Fitted:
    """The algorithm, the pieces and their numbers that come nearest to what was measured."""
    sizes = sorted({point.nbytes for point in points})
    if len(sizes) < SIZES_PER_PIECE or any(point.ranks < 2 or point.seconds <= 0 for point in points):
        raise BadInput(f"{len(points)} measured collectives do not tell a latency from a rate: give 2 sizes or more")
    found = [_fit_algorithm(name, points, sizes) for name in algorithms]
    return min(found, key=lambda fitted: fitted.error)


def _fit_algorithm(name: str, points: Sequence[Point], sizes: list[int]) -> Fitted:
    most = max(1, min(MOST_PIECES, len(sizes) // SIZES_PER_PIECE))
    best = _with_error(name, points, _fit_pieces(name, points, sizes[:1]))
    for count in range(2, most + 1):
        found = [_with_error(name, points, _fit_pieces(name, points, starts)) for starts in _cuts(sizes, count)]
        finer = min(found, key=lambda fitted: fitted.error)
        if finer.error < WORTH_A_PIECE * best.error and best.error > GOOD_ENOUGH:
            best = finer
    return best


def _cuts(sizes: list[int], count: int) -> Iterator[list[int]]:
    """The sizes at which so many pieces may begin."""
    for inner in combinations(range(1, len(sizes)), count - 1):
        edges = [0, *inner, len(sizes)]
        if min(b - a for a, b in pairwise(edges)) >= SIZES_PER_PIECE:
            yield [sizes[edge] for edge in edges[:-1]]


def _fit_pieces(name: str, points: Sequence[Point], starts: Sequence[int]) -> tuple[Piece, ...]:
    ends = [*starts[1:], float("inf")]
    return tuple(
        Piece(start, _fit_hop(name, [point for point in points if start <= point.nbytes < end]))
        for start, end in zip(starts, ends, strict=True)
    )


def _fit_hop(name: str, points: Sequence[Point]) -> Hop:
    """Least sum of |(a x + b y) / t - 1|, by squares whose weights are one over the deviation before."""
    from scipy.optimize import nnls  # half a second that only fitting needs

    algorithm = find_formula(name)
    unit = Hop(1.0, 1.0)
    rows = np.array([algorithm(point.nbytes, point.ranks, unit) for point in points])
    relative = rows / np.array([[point.seconds] for point in points])
    scale = np.maximum(relative.max(axis=0), 1e-300)  # nnls wants columns of one size
    weights, solved = np.ones(len(points)), np.zeros(2)
    for _round in range(ROUNDS):
        solved = nnls(weights[:, None] * relative / scale, weights)[0]
        weights = np.maximum(abs(relative / scale @ solved - 1), GOOD_ENOUGH) ** -0.5
    return Hop(*(float(value) for value in solved / scale))


def _with_error(name: str, points: Sequence[Point], pieces: tuple[Piece, ...]) -> Fitted:
    fitted = Fitted(name, pieces, 0.0)
    errors = [abs(fitted.cost(point.nbytes, point.ranks).seconds / point.seconds - 1) for point in points]
    return Fitted(name, pieces, sum(errors) / len(errors))
