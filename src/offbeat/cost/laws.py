"""laws: what the kernels of one operator take, as a straight line.

    t = l + a * flops / F + m * bytes / B        l, a, m >= 0, by least deviations, relative to t

A call has a cost of its own beside the launch: a convolution on a CPU takes 50 us where a roofline says one. Small
kernels take hardly more. So g is learned as what kernels are beyond the law of their operator, in their precision, and
not beyond the roofline, of which they are a hundredfold.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from .kernel import Kernel
from .roles import is_depthwise
from .roofline import Device, compute_seconds, memory_seconds

Law = tuple[float, float, float]  # l, in seconds, a and m
FEWEST = 20  # kernels
ROUNDS, LEAST_ERROR = 30, 0.05  # of reweighting: an error below counts as that one
SHORTEST = 1e-9  # seconds, beside the launch


def law_name(kernel: Kernel) -> str:
    """Who has a law in common. For convolutions of each channel by itself, and with a stride, libraries have others."""
    name = f"{kernel.operator}/{kernel.part}" if kernel.part else kernel.operator
    name += f" {kernel.dtype.itemsize}"
    if kernel.kind == "convolution":
        stride = kernel.argument("stride")
        name += " depthwise" if is_depthwise(kernel) else ""
        name += " strided" if isinstance(stride, tuple) and prod(stride) > 1 else ""
    return name


def fit_laws(kernels: Sequence[Kernel], seconds: np.ndarray, device: Device) -> dict[str, Law]:
    """Of all that were measured often enough."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, kernel in enumerate(kernels):
        places[law_name(kernel)].append(place)
    return {
        name: _fit([kernels[place] for place in own], seconds[own], device)
        for name, own in places.items()
        if len(own) >= FEWEST
    }


def beyond_roofline(kernels: Sequence[Kernel], laws: Mapping[str, Law], device: Device) -> np.ndarray:
    """log of what the law says, without the launch, over what the roofline says; 0 where there is no law."""
    found = np.zeros(len(kernels))
    for place, kernel in enumerate(kernels):
        law = laws.get(law_name(kernel))
        compute, memory = compute_seconds(kernel, device), memory_seconds(kernel, device)
        if law is not None and max(compute, memory) > 0:
            own = law[0] + law[1] * compute + law[2] * memory - device.launch_seconds
            found[place] = np.log(max(SHORTEST, own) / max(compute, memory))
    return found


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
