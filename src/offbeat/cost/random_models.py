"""random_models: small networks of random layers; a calibration makes real steps of them.

Sizes are log-uniform, so that a kernel's time is learned over decades. Layers come in the company they usually keep
(convolution, norm, activation; norm, attention, perceptron), several of them in a row, so that what they read was
sometimes just written and sometimes long ago.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from ..train.models import GPT
from ..train.task import cross_entropy
from ..train.tasks import adamw, sgd
from .random_sizes import ON_A_CPU, ON_A_GPU, Sizes
from .subject import Subject
from .trace import Platform

CLASSES, FEWEST_CHARACTERS = 10, 30
KEPT_SIDES, HEAD_WIDTHS = (2, 3, 4), (128, 1024)  # of perceptrons that follow convolutions
MOST_FLOPS = {"cpu": 1e10, "cuda": 3e12}  # of a step; on a CPU, for each thread
BUSY_FLOPS, MOST_BATCH = 2e11, 2048  # of one step in two of a GPU, if such a batch is enough
Drawn = tuple[Callable[[], nn.Module], Tensor, Tensor]  # builds it; inputs and targets of one sample


class Around(nn.Module):
    """x + inner(x), as residual networks have it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        around: Tensor = x + self.inner(x)
        return around


class Turned(nn.Module):
    """inner(x), over another dimension than the last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        turned: Tensor = self.inner(x.transpose(1, 2)).transpose(1, 2)
        return turned


class Mean(nn.Module):
    """Over all but the batch and the features."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).mean(2) if x.dim() == 4 else x.mean(1)


def _convolutional(sizes: Sizes) -> Drawn:
    random = sizes.random
    side, channels = sizes.side(8, sizes.most_side), random.choice((1, 3, 3, 3, 8, 16))
    image = (channels, side, side)
    bias, norm = random.random() < 0.4, random.choice((nn.BatchNorm2d, nn.BatchNorm2d, None, _group_norm))
    activation = random.choice((nn.ReLU, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU))
    layers: list[Callable[[], nn.Module]] = []

    def convolve(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
        made: list[Any] = [
            partial(nn.Conv2d, inner, outer, kernel, stride, kernel // 2, groups=groups, bias=bias or norm is None)
        ]
        return [*made, *([partial(norm, outer)] if norm is not None else []), activation]

    width = sizes.width(8, min(128, sizes.most_channels))
    layers += convolve(channels, width, random.choice((3, 3, 5, 7)), random.choice((1, 1, 2)))
    for _ in range(random.randint(1, 4)):
        shape = random.choice(("plain", "plain", "residual", "bottleneck", "separable", "separable", "grouped"))
        if shape == "plain":
            outer = sizes.width(8, sizes.most_channels)
            layers += convolve(width, outer, random.choice((1, 3, 3, 5)), random.choice((1, 1, 2)))
            width = outer
        elif shape == "residual":
            inner = [*convolve(width, width, 3), *convolve(width, width, 3)[:-1]]
            layers.append(partial(_around, inner))
            layers.append(activation)
        elif shape == "bottleneck":
            narrow = max(4, width // random.choice((2, 4)))
            inner = [*convolve(width, narrow, 1), *convolve(narrow, narrow, 3), *convolve(narrow, width, 1)[:-1]]
            layers.append(partial(_around, inner))
            layers.append(activation)
        elif shape == "separable":
            outer = sizes.width(8, sizes.most_channels)
            layers += convolve(width, width, random.choice((3, 5)), random.choice((1, 2)), groups=width)
            layers += convolve(width, outer, 1)
            width = outer
        else:
            width_of_8 = -(-width // 8) * 8
            layers += [*convolve(width, width_of_8, 1), *convolve(width_of_8, width_of_8, 3, groups=8)]
            width = width_of_8
        if random.random() < 0.4:
            layers.append(
                random.choice((partial(nn.MaxPool2d, 2, ceil_mode=True), partial(nn.AvgPool2d, 2, ceil_mode=True),
                               partial(nn.MaxPool2d, 3, 2, 1)))
            )  # fmt: skip
    if random.random() < 1 / 3:
        kept, wide = random.choice(KEPT_SIDES), sizes.width(*HEAD_WIDTHS)
        layers += [
            partial(nn.AdaptiveAvgPool2d, kept),
            nn.Flatten,
            partial(nn.Linear, width * kept**2, wide),
            activation,
        ]
        width = wide
    else:
        layers.append(random.choice((Mean, partial(nn.Sequential, nn.AdaptiveAvgPool2d(1), nn.Flatten()))))
    layers.append(partial(nn.Linear, width, CLASSES))
    return partial(_chain, layers), _floats(image), _classes()


def _perceptron(sizes: Sizes) -> Drawn:
    random, inner = sizes.random, sizes.width(16, sizes.most_width)
    layers: list[Callable[[], nn.Module]] = []
    first, activation = inner, random.choice((nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid))
    outer, alike = sizes.width(16, sizes.most_width // 2), random.random() < 0.5
    for _ in range(random.randint(1, 5)):
        outer = outer if alike else sizes.width(16, sizes.most_width // 2)
        layers.append(partial(nn.Linear, inner, outer, bias=random.random() < 0.8))
        if random.random() < 0.3:
            layers.append(partial(random.choice((nn.BatchNorm1d, nn.LayerNorm)), outer))
        layers.append(activation)
        if random.random() < 0.3:
            layers.append(partial(nn.Dropout, 0.1))
        inner = outer
    layers.append(partial(nn.Linear, inner, CLASSES))
    return partial(_chain, layers), _floats((first,)), _classes()


def _sequence(sizes: Sizes) -> Drawn:
    """Rows of features: norms and perceptrons over features and over places."""
    random, length = sizes.random, sizes.size(8, sizes.most_length // 2)
    width = sizes.width(16, sizes.most_width // 8)
    activation, drop = random.choice((nn.GELU, nn.GELU, nn.ReLU, nn.SiLU)), random.random() < 0.4

    def mix(size: int) -> list[Callable[[], nn.Module]]:
        wide = size * random.choice((1, 2, 4))
        dropped = [partial(nn.Dropout, 0.1)] if drop else []
        return [partial(nn.Linear, size, wide), activation, partial(nn.Linear, wide, size), *dropped]

    layers: list[Callable[[], nn.Module]] = []
    for _ in range(random.randint(1, 4)):
        layers.append(partial(_around, [partial(nn.LayerNorm, width), *mix(width)]))
        if random.random() < 0.5:
            layers.append(partial(_around, [partial(nn.LayerNorm, width), partial(_turned, mix(length))]))
    layers += [partial(nn.LayerNorm, width), Mean, partial(nn.Linear, width, CLASSES)]
    return partial(_chain, layers), _floats((length, width)), _classes()


def _language(sizes: Sizes) -> Drawn:
    random, length = sizes.random, sizes.size(16, sizes.most_length)
    vocabulary = sizes.size(FEWEST_CHARACTERS, 8000)
    heads, each, blocks = sizes.size(1, 8), random.choice((16, 24, 32, 64)), random.randint(1, 3)
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    build = partial(GPT, length, vocabulary, width=heads * each, heads=heads, blocks=blocks)
    return build, tokens, tokens


CONVOLUTIONAL, PERCEPTRON, SEQUENCE, LANGUAGE, SMALL = (
    (_convolutional, False), (_perceptron, False), (_sequence, False), (_language, False), (_convolutional, True),
)  # fmt: skip
FAMILIES: Mapping[Platform, Sequence[tuple[Callable[[Sizes], Drawn], bool]]] = {  # and whether its sizes are small
    # On a CPU products of few rows are the least alike, and small convolutions take the longest beside their
    # arithmetic; their steps are short.
    "cpu": (CONVOLUTIONAL, PERCEPTRON, SMALL, SEQUENCE, SMALL, PERCEPTRON, CONVOLUTIONAL, SMALL, LANGUAGE),
    "cuda": (CONVOLUTIONAL, PERCEPTRON, CONVOLUTIONAL, SEQUENCE, CONVOLUTIONAL, LANGUAGE),
}


def random_models(
    *,
    seed: int,
    platform: Platform,
    autocast: torch.dtype | None = None,
    most_flops: float | None = None,
    most_bytes: float = math.inf,
) -> Iterator[tuple[Subject, int]]:
    """Models with a batch size each, without end; the same seed, limits and threads give the same ones."""
    if most_flops is None:
        most_flops = MOST_FLOPS[platform] * (torch.get_num_threads() if platform == "cpu" else 1)
    sizes = (ON_A_CPU if platform == "cpu" else ON_A_GPU)(Random(seed))
    number = 0
    while True:
        for family, small in FAMILIES[platform]:
            own_sizes = sizes.small() if small else sizes
            build, inputs, targets = family(own_sizes)
            optimizer = sizes.random.choice((partial(sgd, learning_rate=0.01), partial(adamw, learning_rate=1e-3)))
            number += 1
            subject = Subject(
                name=f"random model {seed}.{number}", model=build, sample=(inputs, targets), loss=cross_entropy,
                optimizer=optimizer, platform=platform, autocast=autocast,
                classes=CLASSES if inputs.is_floating_point() else FEWEST_CHARACTERS,
            )  # fmt: skip
            batch = own_sizes.batch()
            if platform == "cuda" and sizes.random.random() < 0.5:
                more = max(1.0, BUSY_FLOPS / subject.at(batch).flops)
                batch = min(MOST_BATCH, batch * 2 ** math.ceil(math.log2(more)))
            while batch > 2 and (subject.at(batch).flops > most_flops or subject.at(batch).memory.peak > most_bytes):
                batch = max(2, batch // 4)
            yield subject, batch


def _chain(layers: list[Callable[[], nn.Module]]) -> nn.Module:
    return nn.Sequential(*(build() for build in layers))


def _around(layers: list[Callable[[], nn.Module]]) -> nn.Module:
    return Around(_chain(layers))


def _turned(layers: list[Callable[[], nn.Module]]) -> nn.Module:
    return Turned(_chain(layers))


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(1, channels)


def _floats(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(1, *shape, device="meta")


def _classes() -> Tensor:
    return torch.zeros(1, dtype=torch.long, device="meta")
