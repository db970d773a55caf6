"""Local SGD: every worker steps on its own; an exact blocking average of x every so many steps.

all ranks, every H steps:  x_i <- mean_j x_j
"""

from dataclasses import dataclass, field
from typing import ClassVar

from ..comm import Steps
from ..layout import Layout, Ranks
from ..options import option
from ..strategy import Strategy


@dataclass(kw_only=True)
class LocalSGD(Strategy):
    """The baseline that talks less, but still waits for the slowest worker and for the wire."""

    name: ClassVar[str] = "local_sgd"
    every: int = option(8, "steps between two averages", at_least=1)
    warmup_steps: int = option(0, "first steps with gradients averaged instead, as in ddp", at_least=0)
    averages: int = field(default=0, init=False)

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        return layout.ranks if self.warmup_steps else (rank,)

    def averages_gradients(self, step: int) -> bool:
        return step <= self.warmup_steps

    def after_step(self, step: int) -> Steps:
        local_steps = step - self.warmup_steps
        if local_steps > 0 and local_steps % self.every == 0:
            yield from self.average_exactly(training=True)
            self.averages += 1

    def report(self) -> dict[str, float]:
        return {"averages": self.averages, "delay": 0.0}
