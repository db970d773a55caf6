"""A task of your own for the command line: which of three spirals does a point of the plane lie on?

    offbeat train --task examples/own_task.py:task --workers 2
    offbeat simulate --task examples/own_task.py:task --workers 8

A task is a model, its optimizer and loss, and the data; it knows nothing about workers.
"""

import math

import torch
from torch import nn

from offbeat import Samples, Task, cross_entropy

ARMS = 3


def spirals(samples: int, seed: int) -> Samples:
    """Points on the arms, with a little noise."""
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(ARMS, (samples,), generator=draw)
    radius = torch.rand(samples, generator=draw).sqrt()
    angle = 2 * math.pi * (radius + arm / ARMS)
    points = radius.unsqueeze(1) * torch.stack((angle.cos(), angle.sin()), dim=1)
    return Samples(inputs=2 * points + 0.05 * torch.randn(samples, 2, generator=draw), targets=arm)


def task() -> Task:
    return Task(
        name="spirals",
        model=lambda: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ARMS)),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        loss=cross_entropy,
        train=spirals(2048, seed=1),
        test=spirals(512, seed=2),
        batch=32,
        epochs=10,
    )
