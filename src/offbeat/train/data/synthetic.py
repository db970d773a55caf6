"""synthetic: gaussian inputs, labelled by a random teacher network; any size, no files."""

import torch

from ..task import Samples
from .parts import Parts


def synthetic(
    *, seed: int, train: int = 4096, test: int = 1024, features: int = 32, classes: int = 10, hidden: int = 32
) -> Parts:
    """The teacher is argmax(tanh(x A) B) with gaussian A and B, so its labels hold no noise."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randn(features, hidden, generator=draw) / features**0.5
    second = torch.randn(hidden, classes, generator=draw)
    inputs = torch.randn(train + test, features, generator=draw)
    labels = ((inputs @ first).tanh() @ second).argmax(-1)
    return Parts(
        train=Samples(inputs=inputs[:train], targets=labels[:train]),
        test=Samples(inputs=inputs[train:], targets=labels[train:]),
        classes=classes,
    )
