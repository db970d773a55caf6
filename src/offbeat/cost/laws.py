"""laws: what the kernels of one operator take, as a straight line.

    t = l + a * flops / F + m * bytes / B        l, a, m >= 0, by least deviations, relative to t

A call has a cost of its own beside the launch: a small convolution on a CPU takes 50 us where a roofline says half a
microsecond, and a smaller one hardly less. So g is learned as what kernels are beyond the law of their operator, in
their precision, and not beyond the roofline. Operators that were measured seldom or never have the law of their kind.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .kernel import Kernel
from .roles import is_depthwise
from .roofline import Device, compute_seconds, memory_seconds

Law = tuple[float, float, float]  # l, in seconds, a and m
FEWEST = 20  # kernels
ROUNDS, LEAST_ERROR = 30, 0.05  # of reweighting: an error below counts as that one
FLOOR = 0.02  # of the time at least is the kernel's own, the rest may be the launch


def law_names(kernel: Kernel) -> tuple[str, str]:
    """Who has a law in common, and whose law stands in where there is none: the kind's. For convolutions of each
    channel by itself, and with a stride, libraries have others."""
    name = f"{kernel.operator}/{kernel.part}" if kernel.part else kernel.operator
    name += f" {kernel.dtype.itemsize}"
    if kernel.kind == "convolution":
        stride = kernel.argument("stride")
        name += " depthwise" if is_depthwise(kernel) else ""
        name += " strided" if isinstance(stride, tuple) and prod(stride) > 1 else ""
    return name, f"any {kernel.kind} {kernel.dtype.itemsize}"


def fit_laws(kernels: Sequence[Kernel], seconds: np.ndarray, device: Device) -> dict[str, Law]:
    """Of all that were measured often enough."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, kernel in enumerate(kernels):
        for name in law_names(kernel):
            places[name].append(place)
    return {
        name: _fit([kernels[place] for place in own], seconds[own], device)
        for name, own in places.items()
        if len(own) >= FEWEST
    }


def beyond_roofline(kernels: Sequence[Kernel], laws: Mapping[str, Law], device: Device) -> np.ndarray:
    """log of what the law says, without the launch, over what the roofline says; 0 where there is no law."""
    found = np.zeros(len(kernels))
    for place, kernel in enumerate(kernels):
        law = next((laws[name] for name in law_names(kernel) if name in laws), None)
        compute, memory = compute_seconds(kernel, device), memory_seconds(kernel, device)
        if law is not None and max(compute, memory) > 0:
            seconds = law[0] + law[1] * compute + law[2] * memory
            found[place] = np.log(own_seconds(seconds, device) / max(compute, memory))
    return found


def own_seconds(seconds: Any, device: Device) -> Any:
    """What a kernel takes without the launch; a number or an array of them."""
    return np.maximum(seconds - device.launch_seconds, FLOOR * seconds)


def _fit(kernels: Sequence[Kernel], seconds: np.ndarray, device: Device) -> Law:
    from scipy.optimize import nnls  # half a second that only fitting needs

    terms = [(1e-6, compute_seconds(kernel, device), memory_seconds(kernel, device)) for kernel in kernels]
    table, weights = np.array(terms) / seconds[:, None], np.ones(len(seconds))
    found = np.zeros(3)
    for _ in range(ROUNDS):
        found, _error = nnls(table * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(LEAST_ERROR, np.abs(table @ found - 1)))
    launch, compute, memory = (float(f"{value:.6g}") for value in found * np.array([1e-6, 1.0, 1.0]))
    return launch, compute, memory
