"""Residual: g of features, as small MLPs, as boosted trees or as a Gaussian process, learned once, written in JSON.

They are fitted to y = log of (what was measured over what its law says).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .gaussian import Gaussian, learn_gaussian

Way = Literal["mlp", "trees", "gaussian"]
WIDTHS, MLPS = (48, 24), 3  # layers; how many, of which the mean is taken
STEPS, LEARNING_RATE, WEIGHT_DECAY = 1000, 0.01, 1e-3
TREES, DEPTH, SHRINKAGE, ROWS_OF_A_TREE = 150, 4, 0.08, 0.7
DIGITS = 5  # that are written down


class Residual(Protocol):
    def __call__(self, x: np.ndarray) -> np.ndarray:
        """[rows, features] -> [rows]"""
        ...

    def as_dict(self) -> dict[str, Any]: ...


Learn = Callable[[np.ndarray, np.ndarray, np.ndarray, int], Residual]  # x, y, weights, seed


@dataclass(frozen=True)
class MLP:
    """Layers with tanh between them, on standardised features."""

    mean: np.ndarray
    scale: np.ndarray
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]  # weight [out, in], bias [out]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        hidden = (x - self.mean) / self.scale
        for index, (weight, bias) in enumerate(self.layers):
            hidden = hidden @ weight.T + bias
            if index + 1 < len(self.layers):
                hidden = np.tanh(hidden)
        return np.asarray(hidden[:, 0])

    def as_dict(self) -> dict[str, Any]:
        layers = [[_down(weight), _down(bias)] for weight, bias in self.layers]
        return {"way": "mlp", "mean": _down(self.mean), "scale": _down(self.scale), "layers": layers}


@dataclass(frozen=True)
class Trees:
    """The sum of trees; a row of a tree: feature (-1: leaf), threshold or value, left, right."""

    start: float
    trees: tuple[np.ndarray, ...]  # [nodes, 4]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float32)  # as sklearn grew them
        total = np.full(len(x), self.start)
        rows = np.arange(len(x))
        for tree in self.trees:
            at = np.zeros(len(x), dtype=int)
            while (inner := tree[at, 0] >= 0).any():
                column = np.where(inner, tree[at, 0], 0).astype(int)
                below = np.where(x[rows, column] <= tree[at, 1], tree[at, 2], tree[at, 3]).astype(int)
                at = np.where(inner, below, at)
            total += tree[at, 1]
        return total

    def as_dict(self) -> dict[str, Any]:
        return {"way": "trees", "start": self.start, "trees": [_down(tree) for tree in self.trees]}


@dataclass(frozen=True)
class Mean:
    """Of several, which err in different places."""

    parts: tuple[Residual, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(sum(part(x) for part in self.parts) / len(self.parts))

    def as_dict(self) -> dict[str, Any]:
        return {"way": "mean", "parts": [part.as_dict() for part in self.parts]}


def from_dict(read: Mapping[str, Any]) -> Residual:
    if read["way"] == "mean":
        return Mean(tuple(map(from_dict, read["parts"])))
    if read["way"] == "gaussian":
        return Gaussian.from_dict(read)
    if read["way"] == "trees":
        return Trees(read["start"], tuple(np.array(tree) for tree in read["trees"]))
    layers = tuple((np.array(weight), np.array(bias)) for weight, bias in read["layers"])
    return MLP(np.array(read["mean"]), np.array(read["scale"]), layers)


def learn(way: Way, x: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int) -> Residual:
    """The same data and seed give the same model, on the same machine with as many threads."""
    ways: dict[Way, Learn] = {"mlp": learn_mlps, "trees": learn_trees, "gaussian": learn_gaussian}
    return ways[way](x, y, weights, seed)


def learn_mlps(x: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int) -> Mean:
    """Several that differ in how they begin, side by side; all rows at once; Huber, so that a few odd measurements do
    not bend them."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    inputs, targets, share = (torch.tensor(each, dtype=torch.float32) for each in ((x - mean) / scale, y, weights))
    share = share / share.sum()
    generator = torch.Generator().manual_seed(seed)
    layers: list[tuple[Tensor, Tensor]] = []  # weight [MLPS, in, out], bias [MLPS, 1, out]
    for width, next_width in pairwise((x.shape[1], *WIDTHS, 1)):
        weight = torch.rand(MLPS, width, next_width, dtype=torch.float32, generator=generator).mul_(2).sub_(1)
        layers.append((weight.div_(width**0.5), torch.zeros(MLPS, 1, next_width, dtype=torch.float32)))
    layers[-1][0].zero_()  # begins with the mean
    layers[-1][1].fill_(float(np.average(y, weights=weights)))
    parameters = [each.requires_grad_() for layer in layers for each in layer]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        hidden = inputs.expand(MLPS, -1, -1)
        for weight, bias in layers[:-1]:
            hidden = torch.baddbmm(bias, hidden, weight).tanh_()
        said = torch.baddbmm(layers[-1][1], hidden, layers[-1][0])[..., 0]
        errors = nn.functional.huber_loss(said, targets.expand(MLPS, -1), reduction="none", delta=0.3)
        (errors * share).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    found = [(weight.detach().numpy(), bias.detach().numpy()) for weight, bias in layers]
    return Mean(
        tuple(
            MLP(mean, scale, tuple((weight[number].T, bias[number, 0]) for weight, bias in found))
            for number in range(MLPS)
        )
    )


def learn_trees(x: np.ndarray, y: np.ndarray, weights: np.ndarray, seed: int) -> Trees:
    from sklearn.ensemble import GradientBoostingRegressor  # takes a second, and only learning needs it

    grown = GradientBoostingRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=SHRINKAGE,
        subsample=ROWS_OF_A_TREE,
        loss="huber",
        random_state=seed,
    ).fit(x, y, sample_weight=weights)
    trees = []
    for (each,) in grown.estimators_:
        tree = each.tree_
        inner = tree.children_left >= 0
        values = np.where(inner, tree.threshold, SHRINKAGE * tree.value[:, 0, 0])
        trees.append(np.stack([np.where(inner, tree.feature, -1), values, tree.children_left, tree.children_right], 1))
    start = float(grown.init_.predict(x[:1])[0])
    return Trees(start, tuple(trees))


def _down(values: np.ndarray) -> Any:
    """Lists of numbers, short ones."""
    rounded = [float(f"{value:.{DIGITS}g}") for value in values.flat]
    return np.array(rounded).reshape(values.shape).tolist()
