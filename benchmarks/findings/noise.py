"""A landscape without curvature: the gradient is noise, the same everywhere, so workers are drawn apart and nothing but
exchanges brings them together. The control of the finding on A2CiD2.
"""

from functools import partial

import torch
from torch import Tensor, nn

from offbeat.train.task import Samples, Task
from offbeat.train.tasks import sgd

DIMENSIONS, SAMPLES = 256, 16_000


def mean_output(outputs: Tensor, _targets: Tensor) -> Tensor:
    """Its gradient is the mean of the inputs."""
    return outputs.mean()


def task() -> Task:
    draws = torch.Generator().manual_seed(0)
    samples = Samples(inputs=torch.randn(SAMPLES, DIMENSIONS, generator=draws), targets=torch.zeros(SAMPLES, 1))
    few = Samples(inputs=samples.inputs[:10], targets=samples.targets[:10])
    return Task(
        name="noise",
        model=lambda: nn.Linear(DIMENSIONS, 1, bias=False),
        optimizer=partial(sgd, learning_rate=0.02),
        loss=mean_output,
        train=samples,
        test=few,
    )
