"""Kernels to learn from, and to tell apart."""

import itertools
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.optim import SGD

from offbeat.cost import Kernel, trace
from offbeat.cost.random_models import random_models


def drawn_kernels(models: int, seed: int = 0) -> list[Kernel]:
    cases = itertools.islice(random_models(seed=seed, platform="cpu", most_flops=1e9), models)
    kernels = (op.kernel for subject, batch in cases for op in subject.at(batch).ops if op.nbytes)
    return list(dict.fromkeys(replace(kernel, near=(0, 0), warm=0, bulk=0) for kernel in kernels))


def convolutions_of(model: nn.Module, channels: int, dtype: torch.dtype = torch.float32) -> list[Kernel]:
    step = trace(
        lambda: model, torch.zeros(2, channels, 8, 8, dtype=dtype), None, loss=lambda out, _: out.sum(),
        optimizer=partial(SGD, lr=0.1),
    )  # fmt: skip
    return [op.kernel for op in step.ops if op.kind == "convolution"]
