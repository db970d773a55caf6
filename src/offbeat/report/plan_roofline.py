"""The roofline of a step: each kernel by its FLOPs per byte and the FLOP/s it reaches; the area is its time."""

from collections import defaultdict

import numpy as np
import torch
from matplotlib.figure import Figure

from ..cost.kernel import SHORT
from ..cost.plan import Answer
from ..cost.roofline import MATRIX_KINDS
from .summary import FAINT, GRID, INK, style_axes
from .sweep_plots import PALETTE

AREA_POINTS = 9000.0  # of all time together
DEEPEST = 1e6  # below the roof: what counts to 1 now and then lies lower


def roofs(answer: Answer) -> dict[str, float]:
    """FLOP/s of each kind of arithmetic that the step does, by name."""
    device = answer.question.profile.device
    found: dict[str, float] = {}
    for kernel in (op.kernel for op in answer.prediction.trace.ops if op.flops):
        rate = device.flops_rate(kernel)
        in_tf32 = kernel.dtype == torch.float32 and rate == device.tf32_flops_per_second
        precision = "tf32" if in_tf32 else SHORT.get(kernel.dtype, str(kernel.dtype))
        found[precision if kernel.kind in MATRIX_KINDS else "all but products"] = rate
    return found


def draw_roofline(answer: Answer, figure: Figure) -> None:
    prediction, device = answer.prediction, answer.question.profile.device
    by_kernel: dict[tuple[str, float, float], float] = defaultdict(float)  # class, intensity, FLOP/s -> seconds
    total = sum(time.seconds for time in prediction.ops)
    for op, time in zip(prediction.trace.ops, prediction.ops, strict=True):
        if op.flops and op.nbytes and time.seconds > 0:
            by_kernel[op.kind, op.flops / op.nbytes, op.flops / time.seconds] += time.seconds
    axes = figure.add_subplot()
    by_kind: dict[str, float] = defaultdict(float)
    for (kind, _, _), seconds in by_kernel.items():
        by_kind[kind] += seconds
    for place, kind in enumerate(sorted(by_kind, key=lambda kind: -by_kind[kind])):
        points = [(x, y, seconds) for (own, x, y), seconds in by_kernel.items() if own == kind]
        x, y, seconds = np.array(points).T
        axes.scatter(
            x, y, s=AREA_POINTS * seconds / total, color=PALETTE[place % len(PALETTE)], alpha=0.55, linewidths=0.4,
            edgecolors="white", label=f"{kind}, {100 * by_kind[kind] / total:.0f} %",
        )  # fmt: skip
    intensities = [x for _, x, _ in by_kernel] or [1.0]
    span = np.geomspace(min(intensities) / 2, max(*intensities, 1e3), 200)
    memory = device.bytes_per_second * device.memory_efficiency
    highest = 0.0
    for name, flops_per_second in roofs(answer).items():
        rate = flops_per_second * device.compute_efficiency
        highest = max(highest, rate)
        axes.plot(span, np.minimum(span * memory, rate), color=INK, linewidth=1.1)
        axes.annotate(name, (span[-1], rate), fontsize=8.5, color=FAINT, ha="right", va="bottom")
    style_axes(axes, f"Roofline: {answer.question.subject.name} on {device.name}, batch {answer.question.batch}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(highest / DEEPEST, 3 * highest)
    axes.grid(color=GRID)
    axes.set_xlabel("FLOPs per byte", fontsize=9, color=FAINT)
    axes.set_ylabel("FLOP/s", fontsize=9, color=FAINT)
    legend = axes.legend(frameon=False, fontsize=8.5, loc="upper left", title="class, share of the time")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_sizes([40.0])  # type: ignore[attr-defined]
