"""learn: from measured kernels to a device's speeds, the laws of its operators, and what kernels take beyond these.

    y = log((t - t_launch) / law)      weighted by ((t - t_launch) / t)^2, so that errors of log t count alike

Small MLPs, boosted trees and Gaussian processes are fitted to the same kernels, and judged, with the mean of the last
two, on models of which no kernel was among them; what is best there is kept, and all errors are written down. It is one
way for all classes: which one is best for a single class is luck, with so few held-out kernels of it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any

import numpy as np
import torch

from .counts import bytes_of, flops_of
from .features import class_of, operator_of, table
from .kernel import SHORT, Kernel
from .kernel_model import ClassModel, KernelModel
from .laws import Law, beyond_roofline, fit_laws, own_seconds
from .profile import Timing
from .residual import Mean, Way, learn
from .roofline import MATRIX_KINDS, Device, compute_seconds, memory_seconds
from .trace import TracedStep

Timings = Mapping[Kernel, Timing]
FEWEST, MOST = 8, 5000  # kernels of a class: fewer tell nothing, and more take long to learn from
MOST_OF_A_KIND = 1500  # of a class that only stands in for those that were not measured
WAYS: tuple[Way, ...] = ("mlp", "trees", "gaussian")
BOTH = "both"  # the mean of trees and Gaussian processes: edges and slopes
CACHED_BYTES = 32 << 20  # a kernel that moves less may be served by caches
USUAL_ERROR = 0.3  # of a class that no held-out model has


@dataclass(frozen=True)
class Judged:
    """A way to learn, on models that it did not learn from."""

    errors: Mapping[str, float]  # of each model: the sum of all its kernels' times, relative
    by_class: Mapping[str, float]  # mean absolute log error, weighted by time

    @property
    def mean(self) -> float:
        return sum(map(abs, self.errors.values())) / len(self.errors) if self.errors else 0.0

    @property
    def spread(self) -> float:
        """The root of the mean square: one step that is far off is worse than several that are a little off."""
        return float(np.sqrt(np.mean(np.square([*self.errors.values()])))) if self.errors else 0.0

    @property
    def worst(self) -> float:
        return max(map(abs, self.errors.values()), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "worst": self.worst, "models": dict(self.errors)}


def measured_device(name: str, timings: Timings, *, memory_bytes: int, dispatch_seconds: float) -> Device:
    """Speeds that the fastest kernels reach, so that the roofline is one: hardly a kernel is faster."""
    matrix: dict[torch.dtype, list[float]] = defaultdict(list)
    vector, moved, shortest = [1.0], [1.0], []
    for kernel, timing in timings.items():
        shortest.append(timing.seconds)
        if kernel.kind in MATRIX_KINDS:
            matrix[kernel.dtype].append(flops_of(kernel) / timing.seconds)
        else:
            vector.append(flops_of(kernel) / timing.seconds)
        if bytes_of(kernel) >= CACHED_BYTES:
            moved.append(bytes_of(kernel) / timing.seconds)
    if len(moved) == 1:
        moved += [bytes_of(kernel) / timing.seconds for kernel, timing in timings.items()]
    rates = {dtype: _high(values) for dtype, values in matrix.items() if dtype in SHORT}
    rates.setdefault(torch.float32, max([*rates.values(), _high(vector)]))
    return Device(
        name=name,
        flops_per_second=rates,
        vector_flops_per_second=_high(vector),
        bytes_per_second=_high(moved),
        launch_seconds=0.9 * float(np.quantile(shortest, 0.01)),
        dispatch_seconds=dispatch_seconds,
        memory_bytes=memory_bytes,
    )


def learn_kernels(
    timings: Timings, device: Device, held_out: Mapping[str, TracedStep], *, seed: int = 0
) -> KernelModel:
    """The best of the ways, by the errors of held-out models."""
    known = learned_from_only(timings, held_out)
    laws = fit_laws(list(known), np.array([timing.seconds for timing in known.values()]), device)
    by_class = _by_class(known, device)
    found: dict[str, KernelModel] = {
        way: KernelModel(_learn_classes(way, by_class, known, laws, device, seed), {}, laws, device=device)
        for way in WAYS
    }
    found[BOTH] = _mean_of(found["trees"], found["gaussian"])
    judged = {way: judge(model, timings, device, held_out) for way, model in found.items()}
    kept = min(found, key=lambda way: judged[way].spread)
    errors = judged[kept].by_class
    classes = {name: replace(each, error=errors.get(name, USUAL_ERROR)) for name, each in found[kept].classes.items()}
    comparison: dict[str, Any] = {"roofline": judge(KernelModel({}, {}), timings, device, held_out).as_dict()}
    comparison |= {way: each.as_dict() for way, each in judged.items()}
    return KernelModel(classes, {"kept": kept, "kernels": len(known), **comparison}, laws, device=device)


def _mean_of(one: KernelModel, other: KernelModel) -> KernelModel:
    """Of two that have the same classes."""
    classes = {
        name: replace(each, residual=Mean((each.residual, other.classes[name].residual)))
        for name, each in one.classes.items()
    }
    return replace(one, classes=classes)


def learned_from_only(timings: Timings, held_out: Mapping[str, TracedStep]) -> Timings:
    """Without the kernels that held-out models have, wherever in a step they stand."""
    unseen = {kernel.call for step in held_out.values() for kernel in step.kernels}
    return {kernel: timing for kernel, timing in timings.items() if kernel.call not in unseen}


def judge(model: KernelModel, timings: Timings, device: Device, held_out: Mapping[str, TracedStep]) -> Judged:
    """On the kernels of held-out models that were measured, each as often as the model calls it."""
    errors: dict[str, float] = {}
    total, wrong = defaultdict[str, float](float), defaultdict[str, float](float)
    for name, step in held_out.items():
        kernels = [op.kernel for op in step.ops if op.kernel in timings]
        if not kernels:
            continue
        measured = np.array([timings[kernel].seconds for kernel in kernels])
        predicted = np.array(kernel_seconds(model, kernels, device))
        errors[name] = float(predicted.sum() / measured.sum() - 1)
        for own, was, said in zip(map(class_of, kernels), measured, predicted, strict=True):
            total[own] += was
            wrong[own] += was * abs(float(np.log(said / was)))
    return Judged(errors, {own: wrong[own] / total[own] for own in total})


def kernel_seconds(model: KernelModel, kernels: Sequence[Kernel], device: Device) -> list[float]:
    """What the model says that each takes."""
    corrections = model.corrections(kernels)
    return [
        device.launch_seconds + _roof(kernel, device) * exp(g or 0.0)
        for kernel, g in zip(kernels, corrections, strict=True)
    ]


def _by_class(timings: Timings, device: Device) -> dict[str, list[Kernel]]:
    """Those of which something can be learned. A kind whose classes were measured is one, too: it stands in for those
    of its classes that were not."""
    by_class: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in timings:
        if _roof(kernel, device) > 0:
            by_class[class_of(kernel)].append(kernel)
    for depth in (2, 1):
        for name in [name for name in by_class if name.count("/") == depth and len(by_class[name]) < FEWEST]:
            by_class[name.rpartition("/")[0]] += by_class.pop(name)  # better in a wider class than in none
    kinds: dict[str, list[Kernel]] = defaultdict(list)
    for name, kernels in by_class.items():
        kinds[name.partition("/")[0]] += kernels
    whole = {name: _some(kernels, MOST) for name, kernels in by_class.items() if len(kernels) >= FEWEST}
    return whole | {
        kind: _some(kernels, MOST_OF_A_KIND)
        for kind, kernels in kinds.items()
        if kind not in whole and len(kernels) >= FEWEST
    }


def _learn_classes(
    way: Way, by_class: Mapping[str, list[Kernel]], timings: Timings, laws: Mapping[str, Law], device: Device, seed: int
) -> dict[str, ClassModel]:
    return {
        name: _learn_class(way, kernels, np.array([timings[each].seconds for each in kernels]), laws, device, seed)
        for name, kernels in by_class.items()
    }


def _some(kernels: list[Kernel], most: int) -> list[Kernel]:
    """At most so many of them, from the first measured to the last."""
    return [kernels[place * len(kernels) // most] for place in range(most)] if len(kernels) > most else kernels


def _learn_class(
    way: Way, kernels: list[Kernel], seconds: np.ndarray, laws: Mapping[str, Law], device: Device, seed: int
) -> ClassModel:
    operators = tuple(sorted({operator_of(kernel) for kernel in kernels}))
    x = table(kernels, operators)
    own = own_seconds(seconds, device)
    beyond = np.log(own / np.array([_roof(kernel, device) for kernel in kernels]))
    y = beyond - beyond_roofline(kernels, laws, device)
    residual = learn(way, x, y, (own / seconds) ** 2, seed)
    return ClassModel(operators, x.min(axis=0), x.max(axis=0), residual, USUAL_ERROR, len(kernels))


def _roof(kernel: Kernel, device: Device) -> float:
    return max(compute_seconds(kernel, device), memory_seconds(kernel, device))


def _high(values: list[float]) -> float:
    """Near the highest, but not an outlier."""
    return float(np.quantile(values, 0.99))
