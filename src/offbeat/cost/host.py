"""Host: what a CPU does beside the operations of a step, learned from real ones.

Python, modules and views in forward, autograd's engine in backward, and the allocator, in proportion to what is made:

    step = sum of operations + sum over phases of n h + bytes made * m        (m >= 0)

by least relative deviations, since some steps are disturbed. h may be a little below 0: operations were timed with
what it takes to call them from Python, which autograd does not do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .op import PHASES, Op

LEAST_MICROSECONDS = -4.0
ROUNDS, LEAST_ERROR = 30, 0.01  # of reweighting: an error below counts as that one


@dataclass(frozen=True)
class StepTiming:
    """A real step, and what it consists of."""

    seconds: float
    ops_seconds: float  # of its operations, one by one
    ops: tuple[int, ...]  # in each phase
    made_bytes: int  # of fresh tensors
    reference_seconds: float  # of the references' steps, meanwhile


@dataclass(frozen=True)
class Host:
    forward_seconds: float  # per operation
    backward_seconds: float
    optimizer_seconds: float
    made_seconds: float  # per byte

    def seconds_of(self, op: Op) -> float:
        per_op = {"forward": self.forward_seconds, "backward": self.backward_seconds}
        made = sum(spec.nbytes for spec in op.kernel.outputs)
        return per_op.get(op.phase, self.optimizer_seconds) + made * self.made_seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, read: Mapping[str, float]) -> "Host":
        return cls(**read)


def step_timing(ops: Sequence[Op], seconds: float, ops_seconds: float, reference_seconds: float) -> StepTiming:
    counts = tuple(sum(op.phase == phase for op in ops) for phase in PHASES)
    made = sum(spec.nbytes for op in ops for spec in op.kernel.outputs)
    return StepTiming(seconds, ops_seconds, counts, made, reference_seconds)


def fit_host(steps: Sequence[StepTiming]) -> Host:
    from scipy.optimize import lsq_linear  # half a second that only fitting needs

    if not steps:
        return Host(0.0, 0.0, 0.0, 0.0)
    seconds = np.array([step.seconds for step in steps])
    rows = np.array([[*(1e-6 * count for count in step.ops), 1e-9 * step.made_bytes] for step in steps])
    rows /= seconds[:, None]
    wanted = 1 - np.array([step.ops_seconds for step in steps]) / seconds
    weights, found = np.ones(len(steps)), np.zeros(4)
    least = [LEAST_MICROSECONDS] * len(PHASES) + [0.0]
    for _ in range(ROUNDS):
        found = lsq_linear(rows * weights[:, None], wanted * weights, (least, np.inf)).x
        weights = 1 / np.sqrt(np.maximum(LEAST_ERROR, np.abs(rows @ found - wanted)))
    forward, backward, optimizer, made = (float(value) for value in found)
    return Host(1e-6 * forward, 1e-6 * backward, 1e-6 * optimizer, 1e-9 * made)
