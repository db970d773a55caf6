"""Cluster: the hardware of the virtual world."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import BadInput
from ..layout import Layout
from .network import Link, Swaps
from .shape import StepShape

ETHERNET = Link(bytes_per_second=125e6, seconds=100e-6)
INSIDE_A_NODE = Link(bytes_per_second=10e9, seconds=5e-6)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes, links, and how long a worker computes for one step."""

    layout: Layout
    step_seconds: float = 0.1
    shape: StepShape | None = None  # of a step; None: the usual one
    link: Link = ETHERNET  # of each node, both directions at once
    local: Link = INSIDE_A_NODE  # of each rank inside its node
    swaps: Swaps = ()  # as they were measured by themselves; without, by the links
    stragglers: Mapping[int, float] = field(default_factory=dict)  # rank -> its steps take so many times longer
    jitter: float = 0.0  # standard deviation of a step's time, relative to it

    def __post_init__(self) -> None:
        if not (self.step_seconds > 0 and math.isfinite(self.step_seconds)):
            raise BadInput(f"step_seconds={self.step_seconds} does not fit: a step takes more than 0 seconds")
        if not (self.jitter >= 0 and math.isfinite(self.jitter)):
            raise BadInput(f"jitter={self.jitter} does not fit: it must be at least 0, such as 0.1")
        for rank, factor in self.stragglers.items():
            if rank not in self.layout.ranks:
                raise BadInput(f"straggler {rank} is not a rank: ranks go from 0 to {self.layout.workers - 1}")
            if not (factor > 0 and math.isfinite(factor)):
                raise BadInput(f"straggler {rank}:{factor} does not fit: the factor must be above 0, such as 2")

    def pace(self, rank: int, seed: int) -> "Pace":
        return Pace(
            self.step_seconds * self.stragglers.get(rank, 1.0), self.jitter, random.Random(f"pace {seed} {rank}")
        )


@dataclass(frozen=True)
class Pace:
    """How long the next step of one worker takes."""

    step_seconds: float
    jitter: float
    draws: random.Random

    def next_step(self) -> float:
        if self.jitter == 0:
            return self.step_seconds
        sigma = math.sqrt(math.log1p(self.jitter**2))  # log-normal: mean 1, never negative
        return self.step_seconds * self.draws.lognormvariate(-sigma * sigma / 2, sigma)
