"""The models of a calibration: those whose kernels it learns from, and those that it is judged on, never the same."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..train.models import GPT, MODELS
from ..train.task import cross_entropy
from ..train.tasks import adamw, sgd
from .subject import Subject
from .trace import Platform

CLASSES, CHARACTERS = 10, 65  # the fewest that a model here has
JUDGED_AT: Mapping[Platform, tuple[int, ...]] = {"cpu": (2, 8, 16, 32), "cuda": (16, 64, 128, 256)}  # batches


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What people train on such a device: with what keeps a CPU busy, a GPU would only wait for its host."""

    image: tuple[int, int, int]
    small_image: tuple[int, int, int]
    large_image: tuple[int, int, int]
    width: int  # of a perceptron
    length: int  # of a text
    head: int  # numbers in a head of attention


SCALES: Mapping[Platform, Scale] = {
    "cpu": Scale(image=(3, 32, 32), small_image=(1, 40, 40), large_image=(3, 96, 96), width=512, length=96, head=32),
    "cuda": Scale(
        image=(3, 64, 64), small_image=(3, 48, 48), large_image=(3, 224, 224), width=2048, length=256, head=64
    ),
}


class MixerBlock(nn.Module):
    """A perceptron over places, then one over channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.places, self.channels = _mlp(places), _mlp(width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.first(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.channels(self.second(x))
        return mixed


class Mixer(nn.Module):
    """MLP-Mixer (Tolstikhin et al. 2021)."""

    def __init__(self, side: int, classes: int, width: int = 128, blocks: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock((side // 4) ** 2, width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.patches(images).flatten(2).transpose(1, 2))
        scores: Tensor = self.head(x.mean(1))
        return scores


class Mobile(nn.Sequential):
    """Depthwise and pointwise convolutions in turns (MobileNet, Howard et al. 2017)."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU6()]
        for inner, outer in pairwise(widths):
            layers += [nn.Conv2d(inner, inner, 3, 2, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(),
                       nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU6()]  # fmt: skip
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


def learned_from(platform: Platform, autocast: torch.dtype | None = None) -> Iterator[Subject]:
    """Of the zoo, on other images and with other classes than the ones below, so that they share no layer."""
    small, large = SCALES[platform].small_image, SCALES[platform].large_image
    for name in ("cnn", "lenet", "mlp", "resnet18"):
        yield _images(name, partial(MODELS[name], small, 47), small, platform, autocast)
    yield _images("resnet18 large", partial(MODELS["resnet18"], large, 100), large, platform, autocast)
    yield _text("gpt", partial(GPT, 128, 65), 128, platform, autocast)
    yield _text("wide gpt", partial(GPT, 64, 1000, width=320, heads=5, blocks=1), 64, platform, autocast)


def held_out(platform: Platform, autocast: torch.dtype | None = None) -> Iterator[Subject]:
    """Other architectures; kernels that both have are not learned from."""
    scale = SCALES[platform]
    image, length, head = scale.image, scale.length, scale.head
    yield _images("cnn3m", partial(MODELS["cnn3m"], image, 10), image, platform, autocast)
    yield _images("resnet8", partial(MODELS["resnet8"], image, 10), image, platform, autocast)
    yield _images("resnet50", partial(MODELS["resnet50"], image, 10), image, platform, autocast)
    yield _images("vgg16", partial(MODELS["vgg16"], image, 10), image, platform, autocast)
    yield _images("mobile", partial(Mobile, 10), image, platform, autocast)
    yield _images("mixer", partial(Mixer, image[1], 10), image, platform, autocast)
    yield _images("deep mlp", partial(_deep_mlp, image, scale.width), image, platform, autocast)
    gpt = partial(GPT, length, 200, width=6 * head, heads=6, blocks=3)
    yield _text("gpt of 6", gpt, length, platform, autocast)


def references() -> list[tuple[Subject, int]]:
    """Short steps of many operations of many kinds, in which a CPU shows how fast it is just now, also as the host of a
    GPU: one of small convolutions, one of products of matrices."""
    image = SCALES["cpu"].image
    images = _images("resnet20", partial(MODELS["resnet20"], image, 10), image, "cpu", None)
    text = _text("wide gpt", partial(GPT, 64, 1000, width=320, heads=5, blocks=1), 64, "cpu", None)
    return [(images, 2), (text, 2)]


def _deep_mlp(image: tuple[int, int, int], width: int) -> nn.Module:
    layers = [part for _ in range(4) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(image), width), *layers, nn.Linear(width, 10))


def _images(name: str, build: Any, shape: tuple[int, ...], platform: Platform, autocast: torch.dtype | None) -> Subject:
    images, classes = torch.zeros(1, *shape, device="meta"), torch.zeros(1, dtype=torch.long, device="meta")
    return Subject(name=name, model=build, sample=(images, classes), loss=cross_entropy,
                   optimizer=partial(sgd, learning_rate=0.1), platform=platform, autocast=autocast,
                   classes=CLASSES)  # fmt: skip


def _text(name: str, build: Any, length: int, platform: Platform, autocast: torch.dtype | None) -> Subject:
    characters = torch.zeros(1, length, dtype=torch.long, device="meta")
    return Subject(name=name, model=build, sample=(characters, characters), loss=cross_entropy,
                   optimizer=partial(adamw, learning_rate=1e-3), platform=platform, autocast=autocast,
                   classes=CHARACTERS)  # fmt: skip
