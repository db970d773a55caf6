"""fit_steps: what kernels cost inside a step, against alone.

Alone, a kernel reads tensors that nothing has touched for long; inside a step many were written just before, and lie in
a cache. Between kernels the host does its own work. So, over real steps of the models that were learned from, by
relative least squares, with scales held near 1:

    step = n (t_launch + host) + s_matrix sum(products of matrices) + s_rest sum(all else)

A scale never leaves [LEAST, MOST]: no cache does more than that, but a machine that was busy while kernels were timed
can look like it, and a scale of 0 would make their time nothing.

On a GPU host and device work at the same time, and its caches are small: there this is not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from .kernel_model import KernelModel
from .learn import kernel_seconds
from .roofline import MATRIX_KINDS, Device
from .trace import TracedStep

LEAST, MOST = 0.25, 4.0
HOLD = 0.2  # how strongly a scale stays at 1, against the relative error of a step


@dataclass(frozen=True)
class StepFit:
    """What a step adds to its kernels."""

    host_seconds: float  # per kernel
    scales: Mapping[str, float]  # of "matrix" kernels, and of the "rest"


def fit_steps(steps: Sequence[tuple[TracedStep, float]], device: Device, kernels: KernelModel) -> StepFit:
    """`steps`: a trace, and the seconds that it really took."""
    rows, totals = [], []
    for step, seconds in steps:
        sums = {True: 0.0, False: 0.0}
        for op, taken in zip(step.ops, kernel_seconds(kernels, [op.kernel for op in step.ops], device), strict=True):
            sums[op.kind in MATRIX_KINDS] += taken - device.launch_seconds
        launches = device.launch_seconds * len(step.ops)
        rows.append([len(step.ops) * 1e-6 / seconds, sums[True] / seconds, sums[False] / seconds])
        totals.append(1 - launches / seconds)
    rows += [[0.0, HOLD, 0.0], [0.0, 0.0, HOLD]]
    totals += [HOLD, HOLD]
    bounds = [0.0, LEAST, LEAST], [np.inf, MOST, MOST]
    microseconds, matrix, rest = lsq_linear(np.array(rows), np.array(totals), bounds).x
    return StepFit(1e-6 * float(microseconds), {"matrix": float(matrix), "rest": float(rest)})
