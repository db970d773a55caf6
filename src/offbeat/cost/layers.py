"""Layers of random size: what a calibration measures, beside the kernels of the zoo.

A layer is traced like a model, so its forward, backward and optimizer kernels come as torch issues them. Sizes are
log-uniform: a kernel's time is learned over decades, and small shapes are as frequent as large ones.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from .kernel import Kernel
from .trace import Platform, trace

Draw = Callable[["Sizes"], tuple[Callable[[], nn.Module], Tensor]]


@dataclass(frozen=True)
class Sizes:
    """Draws the numbers of a layer, so that none of its tensors has more than `most` elements."""

    random: Random
    most: int = 1 << 24

    def size(self, low: int, high: int) -> int:
        """A whole number between two, log-uniform; one in two is a multiple of 8 where it can be, as people choose."""
        drawn = round(math.exp(self.random.uniform(math.log(low), math.log(high))))
        return max(8, drawn // 8 * 8) if drawn >= 8 and self.random.random() < 0.5 else drawn

    def batch(self, elements_per_sample: int, high: int = 4096) -> int:
        return self.size(1, max(1, min(high, self.most // max(1, elements_per_sample))))


class Function(nn.Module):
    """A function of one tensor as a layer, with a parameter before it so that a gradient flows through."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x * self.scale)


def linear(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    inner, outer = sizes.size(8, 4096), sizes.size(8, 4096)
    bias = sizes.random.random() < 0.5
    shape = sizes.batch(max(inner, outer)), inner
    return lambda: nn.Sequential(nn.Linear(inner, inner, bias=False), nn.Linear(inner, outer, bias=bias)), _input(shape)


def convolution(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    kernel = sizes.random.choice((1, 1, 3, 3, 3, 5, 7))
    stride = sizes.random.choice((1, 1, 1, 2)) if kernel > 1 else 1
    side = max(sizes.size(4, 128), kernel)
    groups, inner = sizes.random.choice((1, 1, 1, 1, 0, 8)), sizes.size(8, 512)
    outer = sizes.size(8, 512)
    if groups != 1:
        inner = outer = -(-inner // 8) * 8
        groups = groups or inner  # 0: depthwise
    bias = sizes.random.random() < 0.3
    batch = sizes.batch(max(inner, outer) * side * side, 256)

    def build() -> nn.Module:
        first = nn.Conv2d(inner, inner, 1, groups=inner)  # so that the next one has a gradient of its input
        return nn.Sequential(first, nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=bias))

    return build, _input((batch, inner, side, side))


def image_layers(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    channels, side = sizes.size(4, 512), sizes.size(4, 128)
    batch = sizes.batch(channels * side * side, 256)
    pool = sizes.random.choice((nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.MaxPool2d(3, 2, 1)))
    norm = sizes.random.choice((nn.BatchNorm2d, nn.BatchNorm2d, lambda c: nn.GroupNorm(1, c)))
    return lambda: nn.Sequential(norm(channels), nn.ReLU(), pool), _input((batch, channels, side, side))


def row_layers(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    width = sizes.size(8, 8192)
    activation = sizes.random.choice((nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid))
    rows = sizes.batch(width, 1 << 16)
    softmax = sizes.random.choice((nn.Softmax(-1), nn.LogSoftmax(-1)))
    return lambda: nn.Sequential(nn.LayerNorm(width), activation(), nn.Dropout(0.1), softmax), _input((rows, width))


def attention(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    heads, width, length = sizes.size(1, 32), sizes.random.choice((16, 32, 64, 128)), sizes.size(8, 2048)
    batch = sizes.batch(heads * length * max(width, length), 64)
    causal = sizes.random.random() < 0.7

    def attend(x: Tensor) -> Tensor:
        query, key, value = x.unbind(0)
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return lambda: Function(attend), _input((3, batch, heads, length, width))


def embedding(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    width, rows = sizes.size(8, 2048), sizes.size(64, 65536)
    rows = max(2, min(rows, sizes.most // width))
    count = sizes.batch(width, 1 << 16)
    return lambda: nn.Embedding(rows, width), torch.zeros(count, dtype=torch.long, device="meta")


def arithmetic(sizes: Sizes) -> tuple[Callable[[], nn.Module], Tensor]:
    """Sums of tensors, copies in another order, casts and reductions, which every model has between its layers."""
    rows, width = sizes.size(1, 4096), sizes.size(8, 4096)
    rows = max(1, min(rows, sizes.most // width))

    def combine(x: Tensor) -> Tensor:
        turned = (x + x.mean(0)).t().contiguous() * 0.5
        return torch.cat((turned, turned.to(torch.bfloat16).float())).square()

    return lambda: Function(combine), _input((rows, width))


LAYERS: dict[str, Draw] = {
    "linear": linear, "convolution": convolution, "image_layers": image_layers, "row_layers": row_layers,
    "attention": attention, "embedding": embedding, "arithmetic": arithmetic,
}  # fmt: skip


def random_kernels(
    *, seed: int, most: int = 1 << 24, platform: Platform = "cpu", autocast: torch.dtype | None = None
) -> Iterator[Kernel]:
    """Kernels of layers of random size, each once, without end; the same seed gives the same ones."""
    random, seen = Random(seed), set[Kernel]()
    while True:
        for draw in LAYERS.values():
            build, inputs = draw(Sizes(random, most))
            optimizer: Any = random.choice((_sgd, AdamW))
            step = trace(build, inputs, None, loss=_mean, optimizer=optimizer, platform=platform, autocast=autocast)
            for op in step.ops:
                if op.kernel not in seen and op.nbytes > 0:
                    seen.add(op.kernel)
                    yield op.kernel


def _sgd(parameters: Any) -> SGD:
    return SGD(parameters, lr=0.1, momentum=0.9)


def _mean(outputs: Tensor, _targets: None) -> Tensor:
    return outputs.float().square().mean()


def _input(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, device="meta")
