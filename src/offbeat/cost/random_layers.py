"""random_layers: many random layers in one step, each with an input of its own.

A GPU needs a hundredth of a second for a step, and the profiler a second to tell of it: a step of many layers tells
more in that time than one of a few. On a CPU the time goes to the references and the warm-up of a visit, and some
kernels are far from their like (a depthwise convolution with a stride, its gradient in 16 bits), so that many are
needed. A layer is a convolution, a product of matrices or attention, with the norm and the activation that usually come
with it; sizes are log-uniform, up to the largest that networks have. Most are large enough to keep a GPU busy: those
are what a step waits for.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import torch
from torch import Tensor, nn

from ..train.task import cross_entropy
from ..train.tasks import sgd
from .random_sizes import ON_A_CPU, ON_A_GPU, Sizes
from .subject import Subject
from .trace import Platform

CLASSES = 10
KERNELS, STRIDES = (1, 1, 3, 3, 3, 5), (1, 1, 1, 2)
HEADS, OF_A_HEAD = (1, 16), (16, 32, 64, 64, 128)
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The layers of a step for a device; pairs are from least to most."""

    sizes: Callable[[Random], Sizes]
    layers: int  # of a step
    convolutions: float  # this share of them,
    products: float  # and this one of matrices; the rest is attention
    most_flops: float  # of a layer's forward
    most_numbers: int  # of its input, and of its output
    follows: bool  # an activation comes before each layer, which finds its input in the caches, as in a network
    busy: float  # this share of products and attention
    busy_convolutions: float  # and this one of convolutions
    busy_flops: float  # has so much to do,
    busy_numbers: int  # or so much to read or write
    depthwise: float  # share, of convolutions that look around
    depthwise_strides: tuple[int, ...]  # one of these
    single: float  # share, of products that have one row of features for a sample
    sides: tuple[int, int]
    channels: tuple[int, int]
    rows: tuple[int, int]
    widths: tuple[int, int]
    single_widths: tuple[int, int]  # of products with one row


SCALES: Mapping[Platform, Scale] = {
    "cpu": Scale(
        sizes=ON_A_CPU, layers=16, convolutions=0.4, products=0.5, most_flops=3e9, most_numbers=1 << 22, follows=True,
        busy=0.25, busy_convolutions=0.5, busy_flops=1e7, busy_numbers=1 << 17, depthwise=0.6, depthwise_strides=(1, 2),
        single=0.5, sides=(2, 64), channels=(8, 1024), rows=(1, 512), widths=(16, 2048),
        single_widths=(64, 4096),
    ),
    "cuda": Scale(
        sizes=ON_A_GPU, layers=24, convolutions=0.6, products=0.3, most_flops=1e11, most_numbers=1 << 28, follows=False,
        busy=0.75, busy_convolutions=0.75, busy_flops=3e9, busy_numbers=1 << 25, depthwise=0.15,
        depthwise_strides=STRIDES, single=0.3, sides=(4, 128), channels=(8, 2048), rows=(1, 1024), widths=(16, 8192),
        single_widths=(16, 8192),
    ),
}  # fmt: skip


class Attend(nn.Module):
    """Attention among the rows of a sample, which are queries, keys and values of all heads, side by side."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(*x.shape[:-1], 3, self.heads, -1)
        query, key, value = (part.transpose(-3, -2) for part in heads.unbind(-3))
        seen: Tensor = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return seen.transpose(-3, -2).flatten(-2)


class Apart(nn.Module):
    """Each layer makes a number of its own input, for every sample; the scores are of their sum."""

    def __init__(self, layers: Sequence["Layer"]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(*(build() for build in layer.parts)) for layer in layers)
        self.head = nn.Linear(1, CLASSES)

    def forward(self, *inputs: Tensor) -> Tensor:
        # With a gradient, as what comes from another layer has.
        made = [layer(x.detach().requires_grad_()) for layer, x in zip(self.layers, inputs, strict=True)]
        scores: Tensor = self.head(torch.stack([each.flatten(1).mean(1) for each in made], 1).sum(1, keepdim=True))
        return scores


@dataclass(frozen=True)
class Layer:
    parts: Sequence[Callable[[], nn.Module]]
    shape: tuple[int, ...]  # of a sample of its input
    flops: float  # of a sample, forward
    numbers: int  # of a sample of its input or of its output


def random_layers(
    *, seed: int, platform: Platform, autocast: torch.dtype | None = None, most_bytes: float = math.inf
) -> Iterator[tuple[Subject, int]]:
    """Steps with a batch size each, without end; the same seed and limit give the same ones."""
    scale, number = SCALES[platform], 0
    sizes = scale.sizes(Random(seed))
    while True:
        batch, number = sizes.batch(), number + 1
        layers = [_layer(scale, sizes, batch) for _ in range(scale.layers)]
        inputs = tuple(torch.zeros(1, *layer.shape, device="meta") for layer in layers)
        subject = Subject(
            name=f"random layers {seed}.{number}", model=partial(Apart, layers), loss=cross_entropy,
            sample=(inputs, torch.zeros(1, dtype=torch.long, device="meta")),
            optimizer=partial(sgd, learning_rate=0.01), platform=platform, autocast=autocast, classes=CLASSES,
        )  # fmt: skip
        while batch > 2 and subject.at(batch).memory.peak > most_bytes:
            batch = max(2, batch // 4)
        yield subject, batch


def _layer(scale: Scale, sizes: Sizes, batch: int) -> Layer:
    chance, kind = sizes.random.random(), sizes.random.random()
    draw = _attention
    if kind < scale.convolutions + scale.products:
        draw = _convolution if kind < scale.convolutions else _product
    busy = chance < (scale.busy_convolutions if draw is _convolution else scale.busy)
    while True:
        layer = draw(scale, sizes)
        if scale.follows:
            layer = replace(layer, parts=[sizes.random.choice(ACTIVATIONS), *layer.parts])
        flops, numbers = batch * layer.flops, batch * layer.numbers
        small = flops < scale.busy_flops and numbers < scale.busy_numbers
        if flops <= scale.most_flops and numbers <= scale.most_numbers and not (busy and small):
            return layer


def _convolution(scale: Scale, sizes: Sizes) -> Layer:
    random = sizes.random
    side, kernel, stride = sizes.side(*scale.sides), random.choice(KERNELS), random.choice(STRIDES)
    block = sizes.block()
    inner, outer, groups = sizes.width(*scale.channels, block), sizes.width(*scale.channels, block), 1
    shape = random.random()
    if shape < 0.1:
        inner = 3  # an image
    elif shape < 0.1 + scale.depthwise and kernel > 1:
        outer, groups, stride = inner, inner, random.choice(scale.depthwise_strides)
    norm = random.choice((nn.BatchNorm2d, nn.BatchNorm2d, nn.BatchNorm2d, None))
    parts: list[Callable[[], nn.Module]] = [
        partial(nn.Conv2d, inner, outer, kernel, stride, kernel // 2, groups=groups, bias=random.random() < 0.3),
        *([partial(norm, outer)] if norm is not None else []),
        random.choice(ACTIVATIONS),
    ]
    places = math.ceil(side / stride) ** 2
    flops = 2.0 * places * outer * inner / groups * kernel**2
    return Layer(parts, (inner, side, side), flops, max(side**2 * inner, places * outer))


def _product(scale: Scale, sizes: Sizes) -> Layer:
    """Of rows of features, or of a single one, as perceptrons have it."""
    random = sizes.random
    single = random.random() < scale.single
    rows, widths = (1, scale.single_widths) if single else (sizes.size(*scale.rows), scale.widths)
    block = sizes.block()
    inner, outer = sizes.width(*widths, block), sizes.width(*widths, block)
    parts: list[Callable[[], nn.Module]] = [
        *([partial(nn.LayerNorm, inner)] if random.random() < 0.6 else []),
        partial(nn.Linear, inner, outer, bias=random.random() < 0.8),
        random.choice(ACTIVATIONS),
    ]
    return Layer(parts, (rows, inner) if rows > 1 else (inner,), 2.0 * rows * inner * outer, rows * max(inner, outer))


def _attention(scale: Scale, sizes: Sizes) -> Layer:
    random = sizes.random
    rows, heads, causal = max(2, sizes.size(*scale.rows)), sizes.size(*HEADS), random.random() < 0.5
    width = heads * random.choice(OF_A_HEAD)
    parts: list[Callable[[], nn.Module]] = [partial(nn.Linear, width, 3 * width), partial(Attend, heads, causal)]
    return Layer(parts, (rows, width), rows * width * (6.0 * width + 4.0 * rows), 3 * rows * width)
