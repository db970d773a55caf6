"""Gaussian: g as the mean of a Gaussian process: kernels that are alike are as far from their law.

    g(x) = start + sum over places z of weight(z) * k(x, z),     k(x, z) = size * m(|(x - z) / lengths|)
    m(r) = (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r)             Matern 5/2

after Rasmussen and Williams, Gaussian Processes for Machine Learning (2006). The lengths, one for each feature, the
size and the noise are those under which the measurements of some kernels are likeliest: so it learns by itself which
features matter. Where there are many kernels, the places are those that tell most of all the others (a pivoted Cholesky
decomposition), and the weights are fitted to all (the projected process, 8.3.4 there). Odd measurements are not told
apart: to count them less gained nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

LIKELY_KERNELS, LIKELY_STEPS, LIKELY_RATE = 500, 60, 0.08  # for the lengths, size and noise
START_LENGTH, USUAL_LENGTH, SPREAD = 3.0, 10.0, 1.5  # in standard deviations; at first, likely, and how sure (of logs)
PLACES = 800
JITTER = 1e-6
DIGITS, WEIGHT_DIGITS = 5, 10  # that are written down; weights are large, and of both signs
AT_ONCE = 4000  # rows


@dataclass(frozen=True)
class Gaussian:
    """`columns` are the features that are not always the same."""

    columns: np.ndarray
    lengths: np.ndarray
    size: float
    start: float
    places: np.ndarray  # [places, columns]
    weights: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        places, weights = torch.tensor(self.places / self.lengths), torch.tensor(self.weights)
        rows = torch.tensor(x[:, self.columns] / self.lengths)
        found = [_like(some, places, self.size) @ weights for some in torch.split(rows, AT_ONCE)]
        return np.asarray(torch.cat(found).numpy() + self.start)

    def as_dict(self) -> dict[str, Any]:
        return {
            "way": "gaussian",
            "columns": self.columns.tolist(),
            "lengths": self.lengths.tolist(),
            "size": self.size,
            "start": self.start,
            "places": [[int(value) if value == int(value) else value for value in row] for row in self.places.tolist()],
            "weights": [float(f"{value:.{WEIGHT_DIGITS}g}") for value in self.weights],
        }

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> "Gaussian":
        return cls(
            np.array(read["columns"], dtype=int), np.array(read["lengths"], dtype=float), read["size"], read["start"],
            np.array(read["places"], dtype=float).reshape(len(read["weights"]), len(read["columns"])),
            np.array(read["weights"]),
        )  # fmt: skip


def learn_gaussian(x: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int) -> Gaussian:
    """The same data and seed give the same model, on the same machine with as many threads."""
    start, deviation = float(np.average(y, weights=weights)), x.std(axis=0)
    columns = np.flatnonzero(deviation > 1e-9)
    targets, shares = torch.tensor(y - start), torch.tensor(np.maximum(weights, 1e-3))
    rows = torch.tensor(x[:, columns] / deviation[columns])
    lengths, size, noise = _likeliest(rows, targets, shares, seed)
    own_lengths = _rounded(lengths.numpy() * deviation[columns])
    own = _rounded(x[:, columns])
    rows = torch.tensor(own / own_lengths)
    chosen = _telling(rows, size, PLACES)
    places_weights = _weights(rows, rows[chosen], targets, noise / shares, size)
    return Gaussian(columns, own_lengths, size, start, own[chosen.numpy()], places_weights.numpy())


def _likeliest(rows: Tensor, targets: Tensor, shares: Tensor, seed: int) -> tuple[Tensor, float, float]:
    """Lengths in standard deviations, size and noise, by the marginal likelihood of some kernels (5.8 there)."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:LIKELY_KERNELS]
    rows, targets, shares = rows[order], targets[order], shares[order]
    variance = float(targets.var(correction=0)) + 1e-3
    lengths = torch.full((rows.shape[1],), log(START_LENGTH), dtype=rows.dtype, requires_grad=True)
    size, noise = (torch.tensor(log(value), dtype=rows.dtype, requires_grad=True) for value in (variance, 0.02))
    optimizer = torch.optim.Adam([lengths, size, noise], lr=LIKELY_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LIKELY_STEPS)
    for _ in range(LIKELY_STEPS):
        optimizer.zero_grad()
        scaled = rows / lengths.exp()
        covariance = size.exp() * _like(scaled, scaled, 1.0) + torch.diag(noise.exp() / shares + JITTER)
        lower = torch.linalg.cholesky(covariance)
        half = torch.linalg.solve_triangular(lower, targets[:, None], upper=False)
        unlikely = half.square().sum() / 2 + lower.diagonal().log().sum()
        unusual = ((lengths - log(USUAL_LENGTH)) / SPREAD).square().sum() / 2
        (unlikely + unusual).backward()
        optimizer.step()
        schedule.step()
    return lengths.detach().exp(), float(size.detach().exp()), float(noise.detach().exp())


def _telling(rows: Tensor, size: float, most: int) -> Tensor:
    """The places of rows that together tell most of all; always the one of which least is known."""
    if len(rows) <= most:
        return torch.arange(len(rows))
    unknown, known = torch.full((len(rows),), size, dtype=rows.dtype), rows.new_zeros(most, len(rows))
    chosen = []
    for number in range(most):
        place = int(unknown.argmax())
        chosen.append(place)
        own = _like(rows, rows[place : place + 1], size)[:, 0] - known[:number, place] @ known[:number]
        known[number] = own / max(float(unknown[place]), JITTER) ** 0.5
        unknown = (unknown - known[number].square()).clamp_min(0.0)
        unknown[chosen] = 0.0
    return torch.tensor(chosen)


def _weights(rows: Tensor, places: Tensor, targets: Tensor, noise: Tensor, size: float) -> Tensor:
    """Of the places, such that all rows are met as nearly as their noise asks for."""
    between, among = _like(places, rows, size), _like(places, places, size)
    among.diagonal().add_(JITTER * size)
    shared = between / (noise + JITTER)
    weights: Tensor = torch.linalg.solve(among + shared @ between.T, shared @ targets)
    return weights


def _like(first: Tensor, second: Tensor, size: float) -> Tensor:
    """k of rows that are scaled already."""
    squares = first.square().sum(1)[:, None] + second.square().sum(1) - 2 * first @ second.T
    r = (5 * squares.clamp_min(1e-12)).sqrt()
    return size * (1 + r + r.square() / 3) * torch.exp(-r)


def _rounded(values: np.ndarray) -> np.ndarray:
    """As they are written down, so that what is read is what was learned."""
    digits = np.vectorize(lambda value: float(f"{value:.{DIGITS}g}"), otypes=[float])
    return np.asarray(digits(values)) if values.size else values
