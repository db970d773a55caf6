"""The roofline of a step: each kernel by its FLOPs per byte and the FLOP/s it reaches; the area is its time."""

from collections import defaultdict

import numpy as np
import torch
from matplotlib.figure import Figure

from ..cost.kernel import SHORT
from ..cost.plan import Answer
from .summary import FAINT, GRID, INK, style_axes
from .sweep_plots import PALETTE

AREA_POINTS = 9000.0  # of all time together
DEEPEST = 1e6  # below the roof: what counts to 1 now and then lies lower


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
    used = {op.kernel.dtype for op in prediction.trace.ops if op.kind in ("matmul", "convolution", "attention")}
    intensities = [x for _, x, _ in by_kernel] or [1.0]
    span = np.geomspace(min(intensities) / 2, max(*intensities, 1e3), 200)
    memory = device.bytes_per_second * device.memory_efficiency
    for dtype in used or {torch.float32}:
        rate = device.flops_per_second.get(dtype, device.flops_per_second[torch.float32]) * device.compute_efficiency
        axes.plot(span, np.minimum(span * memory, rate), color=INK, linewidth=1.1)
        axes.annotate(
            SHORT.get(dtype, str(dtype)), (span[-1], rate), fontsize=8.5, color=FAINT, ha="right", va="bottom"
        )
    style_axes(axes, f"Roofline: {answer.question.subject.name} on {device.name}, batch {answer.question.batch}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    highest = max(device.flops_per_second.values())
    axes.set_ylim(highest / DEEPEST, 3 * highest)
    axes.grid(color=GRID)
    axes.set_xlabel("FLOPs per byte", fontsize=9, color=FAINT)
    axes.set_ylabel("FLOP/s", fontsize=9, color=FAINT)
    legend = axes.legend(frameon=False, fontsize=8.5, loc="upper left", title="class, share of the time")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_sizes([40.0])  # type: ignore[attr-defined]
