"""A2CiD2: gossip with continuous momentum (Nabli, Belilovsky, Oyallon 2023).

Beside x every worker keeps x~, and the two flow into each other at rate eta, time counted in the worker's own steps:

    mix, e = exp(-2 eta tau):   x <- (1+e)/2 x + (1-e)/2 x~ ;  x~ <- (1-e)/2 x + (1+e)/2 x~      since its last event
    gradient event:             mix ;  x += delta ;  x~ += delta
    exchange (i, j):            mix ;  m = x_i - x_j ;  x_i -= alpha m ;  x~_i -= alpha~ m ;  likewise at j

eta and alpha~ come from the graph: on a ring the momentum does what doubling the rate would do, on the complete graph
x~ = x and the method is plain gossip. What is stored is d = x~ - x, which gradients do not touch:

    mix:   x += (1-e)/2 d ;  d *= e            exchange:   d -= (alpha~ - alpha) m

eta grows with the rate of exchanges, alpha~ does not depend on it. Where the wire carries fewer exchanges than asked
for, eta follows those that there were: momentum that outruns the exchanges would drive workers apart.

x + x~ of a worker changes by gradients and exchanges alone, so the sum of all (x_i + x~_i) / 2 = x_i + d_i / 2 is kept
exactly, whatever the moments at which workers mixed last: that is what the final average takes.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..comm import Comm, Steps
from ..options import option
from ..replica import Replica
from ..topology import TOPOLOGIES, Momentum, momentum, neighbours
from .gossip import Gossip, Section

BELIEVED_STEPS = 10.0  # for which the rate asked for counts as seen, before it was


@dataclass(kw_only=True)
class A2CiD2(Gossip):
    """Gossip that spreads twice as fast on sparse graphs, for one more copy of x and no more bytes."""

    name: ClassVar[str] = "a2cid2"
    topology: str = option("ring", f"who may exchange with whom: {', '.join(TOPOLOGIES)}, or a file of edges")

    @property
    def copies(self) -> float:
        return super().copies + 1

    def start(self, replica: Replica, comm: Comm) -> Steps:
        self._momentum = momentum(neighbours(self.topology, comm.layout.workers), self.rate)
        self._slowdown = 1.0
        yield from super().start(replica, comm)

    def after_step(self, step: int) -> Steps:
        yield from super().after_step(step)
        seen = self.exchanges + self._turn / len(self._sections)
        rate = (seen + self.rate * BELIEVED_STEPS) / (self.steps + BELIEVED_STEPS)
        self._slowdown = min(1.0, rate / self.rate)
        for section in self._sections:
            assert isinstance(section, MomentumSection)
            section.slowdown = self._slowdown

    def section(self, weights: Tensor) -> "MomentumSection":
        return MomentumSection(weights, self._momentum)

    def lose(self, peers: set[int]) -> None:
        super().lose(peers)
        self._momentum = momentum(self._graph, self.rate)
        for section in self._sections:
            assert isinstance(section, MomentumSection)
            section.change(self._momentum, self.steps_gone_by())

    def report(self) -> dict[str, float]:
        eta = self._momentum.eta * self._slowdown
        return {**super().report(), "eta": eta, "alpha_tilde": self._momentum.alpha_tilde}


class MomentumSection(Section):
    """d is kept as a tensor and a factor: to let it decay costs nothing."""

    def __init__(self, weights: Tensor, numbers: Momentum) -> None:
        super().__init__(weights)
        self._numbers = numbers
        self._d, self._factor = torch.zeros_like(weights), 1.0
        self._mixed_at = 0.0
        self.slowdown = 1.0  # of eta, where exchanges are fewer than asked for

    def settle(self, now: float) -> None:
        super().settle(now)
        self.weights.add_(self._d, alpha=self._flow(now))

    def mix(self, now: float) -> None:
        self.add(self._d, self._flow(now))

    def receive(self, difference: Tensor, now: float) -> None:
        self.mix(now)
        super().receive(difference, now)
        self._d.mul_(self._factor).add_(difference, alpha=self._numbers.alpha_tilde - self.alpha)
        self._factor = 1.0

    def end(self) -> None:
        self.weights.add_(self._d, alpha=self._factor / 2)
        self._d.zero_()

    def change(self, numbers: Momentum, now: float) -> None:
        """Another graph, from now on."""
        self.mix(now)
        self._numbers = numbers

    def _flow(self, now: float) -> float:
        """How much of the stored d flows into x."""
        tau, self._mixed_at = max(0.0, now - self._mixed_at), max(now, self._mixed_at)
        e = math.exp(-2 * self._numbers.eta * self.slowdown * tau)
        before, self._factor = self._factor, self._factor * e
        return (1 - e) / 2 * before
