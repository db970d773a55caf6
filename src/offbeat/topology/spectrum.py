"""The continuous momentum of A2CiD2 (Nabli, Belilovsky, Oyallon 2023), from the spectrum of the graph.

    Lambda = sum over edges of rate_ij (e_i - e_j)(e_i - e_j)^T,    rate_ij = r/2 (1/deg i + 1/deg j)
    chi_1 = 1 / lambda_2(Lambda)        chi_2 = max over edges of 1/2 (e_i - e_j)^T Lambda^+ (e_i - e_j)
    eta = 1 / (2 sqrt(chi_1 chi_2))     alpha = 1/2     alpha~ = 1/2 sqrt(chi_1 / chi_2)

rate_ij is how often the edge is used in a step when every rank asks r/2 times for a neighbour, each of `Graph.draws` as
likely as the others. Where all have as many, Lambda = r (I - W) with W_ij = 1/deg i, as in the paper.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import BadInput
from ..layout import Ranks
from .graph import Graph

LEAST_RATE = 1e-6  # exchanges per worker and step
ALL_EIGENVALUES_UP_TO = 1024  # workers; with more, only the one that is asked for


@dataclass(frozen=True)
class Momentum:
    """How a worker mixes x and x~, and what they take of an exchange. Time is counted in steps."""

    chi_1: float  # steps
    chi_2: float  # steps
    eta: float  # per step; 0: no momentum
    alpha: float
    alpha_tilde: float


def momentum(graph: Graph, rate: float) -> Momentum:
    """Of the ranks that have neighbours: those that a healed graph has lost do not count.

    In expectation the slowest difference between workers shrinks to 1/e in 1 / eta steps, and in 2 chi_1 steps by
    plain gossip (eta = 0, alpha = alpha~ = 1/2), which is also what a single worker gets.
    """
    if not LEAST_RATE <= rate < math.inf:
        raise BadInput(f"rate={rate} does not fit: rate must be at least {LEAST_RATE} and finite, such as 1")
    chi_1, chi_2 = _chis(graph.draws)
    if abs(chi_1 - chi_2) < 1e-9 * chi_1:  # a complete graph, up to rounding: there the momentum must vanish exactly
        chi_2 = chi_1
    if not chi_1:
        return Momentum(chi_1=0.0, chi_2=0.0, eta=0.0, alpha=0.5, alpha_tilde=0.5)
    return Momentum(
        chi_1=chi_1 / rate,
        chi_2=chi_2 / rate,
        eta=rate / (2 * math.sqrt(chi_1 * chi_2)),
        alpha=0.5,
        alpha_tilde=0.5 * math.sqrt(chi_1 / chi_2),
    )


@lru_cache(maxsize=16)  # every worker asks for the same
def _chis(graph: Graph) -> tuple[float, float]:
    """chi_1 and chi_2 at rate 1. Here and below neighbours may be named twice, as in `Graph.draws`."""
    graph = graph.joined
    if not graph:
        return 0.0, 0.0
    if not graph.connected:
        raise BadInput("a graph in several parts never comes to agree: join the parts")
    chi_1, resistances = by_inverse(graph) if graph.offsets is None else by_symmetry(len(graph), graph.offsets)
    return chi_1, float(resistances.max()) / 2


def edge_rates(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The edges, one a row, and how often each is used in a step at rate 1."""
    edges, degrees = np.array(graph.edges), np.array(graph.degrees)
    return edges, (0.5 / degrees[edges]).sum(axis=1)


def by_symmetry(workers: int, offsets: Ranks) -> tuple[float, np.ndarray]:
    """chi_1 and the resistance of each edge of a rank, where all ranks have neighbours at the same offsets.

    Lambda is circulant then: Fourier's waves are its eigenvectors.
    """
    row = np.bincount(offsets, minlength=workers) / len(offsets)
    inverse = np.zeros(workers)
    inverse[1:] = 1 / (1 - np.fft.fft(row).real[1:])
    pseudo_row = np.fft.ifft(inverse).real
    return float(inverse.max()), 2 * (pseudo_row[0] - pseudo_row[list(offsets)])


def by_inverse(graph: Graph) -> tuple[float, np.ndarray]:
    """chi_1 and the resistance of every edge, in their order, of any connected graph; 4 s for 4,096 workers."""
    from scipy.linalg.lapack import dpotrf, dpotri
    from scipy.sparse.linalg import eigsh

    workers = len(graph)
    edges, rates = edge_rates(graph)
    one, other = edges.T
    # Lambda + 11^T / n is positive definite, and its inverse is Lambda^+ + 11^T / n.
    shifted = np.full((workers, workers), 1 / workers, order="F")
    for row, column, signed in ((one, other, -rates), (other, one, -rates), (one, one, rates), (other, other, rates)):
        np.add.at(shifted, (row, column), signed)
    lower, _ = dpotri(dpotrf(shifted, lower=1, overwrite_a=1)[0], lower=1, overwrite_c=1)
    pseudo = np.tril(lower)
    pseudo += np.tril(pseudo, -1).T
    pseudo -= 1 / workers
    diagonal = pseudo.diagonal()
    resistances = diagonal[one] + diagonal[other] - 2 * pseudo[one, other]
    if workers <= ALL_EIGENVALUES_UP_TO:
        return float(np.linalg.eigvalsh(pseudo)[-1]), resistances
    start = np.random.default_rng(0).standard_normal(workers)
    return float(eigsh(pseudo, k=1, which="LA", v0=start, return_eigenvectors=False)[0]), resistances
