"""The small zoo: `MODELS[name](input shape without batch, classes or vocabulary)` builds a model.

Image models take [batch, channels, height, width] and `gpt` takes characters [batch, length];
`mlp` flattens whatever it gets. Only the resnets and vggs have BatchNorm.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import BadInput, unknown

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]

SMALL_IMAGE_PIXELS = 64  # up to this side an image gets a CIFAR stem (stride 1), above it ImageNet's


def mlp(shape: Shape, classes: int, hidden: int = 128) -> nn.Module:
    """One hidden layer over the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions and a hidden layer: 0.2 M parameters at 28x28, 0.28 M at 3x32x32."""
    return _plain_cnn("cnn", shape, classes, stages=((32,), (64,)), hidden=64)


def cnn3m(shape: Shape, classes: int) -> nn.Module:
    """Six convolutions and a hidden layer: 3 M parameters at 3x32x32."""
    return _plain_cnn("cnn3m", shape, classes, stages=((64, 64), (128, 128), (256, 256)), hidden=448)


def lenet(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions and a wide hidden layer, after LeNet-5: 3 M parameters at 28x28 and little to compute, which
    is hard on a network."""
    return _plain_cnn("lenet", shape, classes, stages=((32,), (64,)), hidden=960)


def _plain_cnn(name: str, shape: Shape, classes: int, *, stages: tuple[Shape, ...], hidden: int) -> nn.Module:
    channels, height, width = _image(name, shape)
    layers: list[nn.Module] = []
    for stage in stages:
        for wide in stage:
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # ceil: an image of any size keeps a pixel
        height, width = -(-height // 2), -(-width // 2)
    layers += [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()]
    for layer in layers:
        _he(layer)
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


def vgg11(shape: Shape, classes: int) -> nn.Module:
    """VGG-11 (Simonyan & Zisserman 2014) with BatchNorm and a single linear head, as used on CIFAR."""
    return _vgg("vgg11", shape, classes, convolutions=(1, 1, 2, 2, 2))


def vgg16(shape: Shape, classes: int) -> nn.Module:
    """VGG-16 with BatchNorm and a single linear head."""
    return _vgg("vgg16", shape, classes, convolutions=(2, 2, 3, 3, 3))


def _vgg(name: str, shape: Shape, classes: int, *, convolutions: Shape) -> nn.Module:
    channels = _image(name, shape)[0]
    layers: list[nn.Module] = []
    for count, wide in zip(convolutions, (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [_conv(channels, wide, 3), nn.BatchNorm2d(wide), nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*layers, SpatialMean(), nn.Linear(channels, classes))


def resnet8(shape: Shape, classes: int) -> nn.Module:
    """The CIFAR ResNet (He et al. 2015, section 4.2) of 6n + 2 layers, n = 1."""
    return _cifar_resnet("resnet8", shape, classes, blocks=1)


def resnet20(shape: Shape, classes: int) -> nn.Module:
    """The CIFAR ResNet of 6n + 2 layers, n = 3: 0.27 M parameters."""
    return _cifar_resnet("resnet20", shape, classes, blocks=3)


def _cifar_resnet(name: str, shape: Shape, classes: int, *, blocks: int) -> nn.Module:
    channels = _image(name, shape)[0]
    stem = _conv(channels, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
    return nn.Sequential(
        *stem, *_stages(BasicBlock, 16, (16, 32, 64), (blocks,) * 3), SpatialMean(), nn.Linear(64, classes)
    )


def resnet18(shape: Shape, classes: int) -> nn.Module:
    """ResNet-18: 11.2 M parameters at 10 classes."""
    return _imagenet_resnet("resnet18", shape, classes, block=BasicBlock, blocks=(2, 2, 2, 2))


def resnet50(shape: Shape, classes: int) -> nn.Module:
    """ResNet-50: 23.5 M parameters at 10 classes."""
    return _imagenet_resnet("resnet50", shape, classes, block=Bottleneck, blocks=(3, 4, 6, 3))


def _imagenet_resnet(
    name: str, shape: Shape, classes: int, *, block: "type[BasicBlock | Bottleneck]", blocks: Shape
) -> nn.Module:
    channels, height, width = _image(name, shape)
    stem: list[nn.Module]
    if max(height, width) <= SMALL_IMAGE_PIXELS:
        stem = [_conv(channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU()]
    else:
        stem = [_conv(channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    stages = _stages(block, 64, (64, 128, 256, 512), blocks)
    return nn.Sequential(*stem, *stages, SpatialMean(), nn.Linear(512 * block.expansion, classes))


def _stages(block: "type[BasicBlock | Bottleneck]", channels: int, widths: Shape, blocks: Shape) -> list[nn.Module]:
    """Stages of residual blocks; every stage but the first halves the image."""
    layers: list[nn.Module] = []
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for index in range(count):
            layers.append(block(channels, width, stride=2 if stage > 0 and index == 0 else 1))
            channels = width * block.expansion
    return layers


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(),
            _conv(width, width, 3), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 convolutions around a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * self.expansion
        self.body = nn.Sequential(
            _conv(channels, width, 1), nn.BatchNorm2d(width), nn.ReLU(),
            _conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(),
            _conv(width, wide, 1), nn.BatchNorm2d(wide),
        )  # fmt: skip
        self.shortcut = _shortcut(channels, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class SpatialMean(nn.Module):
    """[batch, channels, height, width] -> [batch, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


class GPT(nn.Module):
    """A decoder with pre-norm blocks, learned positions and no dropout; the head is the embedding."""

    def __init__(self, length: int, vocabulary: int, *, width: int = 128, heads: int = 4, blocks: int = 4) -> None:
        super().__init__()
        self.length = length
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # GPT-2: the layers that write to the residual stream start smaller, the deeper the smaller.
                scale = 1 / math.sqrt(2 * blocks) if name.endswith("out.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, characters: Tensor) -> Tensor:
        """[batch, length] -> scores of the next character [batch, length, vocabulary]."""
        x = self.token(characters) + self.position[: characters.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


class GPTBlock(nn.Module):
    """Causal self-attention, then a two-layer perceptron, each added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.attention_in(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(-3, -2) for part in heads.unbind(-3))  # [batch, head, length, -1]
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(seen.transpose(-3, -2).flatten(-2))
        added: Tensor = self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x))))
        return x + added


def gpt(shape: Shape, classes: int) -> nn.Module:
    """A character GPT of 4 blocks, 4 heads and width 128: 0.8 M parameters."""
    if len(shape) != 1:
        raise BadInput(
            f"model gpt reads characters [length], not an input of shape {shape}: "
            f"choose an image model such as cnn, or the task text"
        )
    return GPT(shape[0], classes)


MODELS: dict[str, Builder] = {
    "mlp": mlp,
    "cnn": cnn,
    "cnn3m": cnn3m,
    "lenet": lenet,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vgg11": vgg11,
    "vgg16": vgg16,
    "gpt": gpt,
}


def find_model(name: str) -> Builder:
    """The builder of that name."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def _image(name: str, shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise BadInput(
            f"model {name} reads images [channels, height, width], not an input of shape {shape}: "
            f"choose mlp, or a task with images"
        )
    return shape[0], shape[1], shape[2]


def _conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Module:
    """A convolution before a BatchNorm: no bias."""
    conv = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    return _he(conv)


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(_conv(channels, width, 1, stride), nn.BatchNorm2d(width))


def _he(layer: nn.Module) -> nn.Module:
    """He et al. 2015: keeps the scale of activations through ReLUs, which torch's default does not."""
    if isinstance(layer, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer
