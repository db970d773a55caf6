"""Stopwatch: how long a kernel takes on this machine, on data that is not in its caches.

Calls go round over copies of their tensors which together are larger than the caches. Writing over the caches between
two calls instead would also throw out the code of torch: on a CPU a small kernel then takes 30 us instead of 3.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

from .counts import bytes_of
from .kernel import Kernel
from .replay import replay

CACHE_BYTES = 128 << 20  # more than any last-level cache that we know, of a CPU or of a GPU
MOST_COPIES = 16  # of tiny tensors; in a real step, too, these are often in the caches
COVER_CYCLES = 200_000  # a GPU sleeps so long, about 0.1 ms, while the host queues what is timed


@dataclass(frozen=True)
class Timing:
    """The median of several calls, and how far they lie apart."""

    seconds: float
    spread: float  # half the distance of the quartiles, relative to the median
    calls: int


@dataclass(frozen=True, kw_only=True)
class Stopwatch:
    """Times kernels on one device: `calls` times, or fewer, but 3, if that takes longer than `at_most_seconds`."""

    device: torch.device
    calls: int = 15
    at_most_seconds: float = 1.0

    def time(self, kernel: Kernel) -> Timing:
        copies = min(MOST_COPIES, max(1, CACHE_BYTES // max(1, bytes_of(kernel))))
        return self.time_calls([replay(kernel, self.device, seed=copy) for copy in range(copies)])

    def time_calls(self, calls: Sequence[Callable[[], Any]]) -> Timing:
        """The time of any one of these calls, which do the same."""
        once = _once_on_gpu if self.device.type == "cuda" else _once
        for call in calls[:3]:  # libraries choose and compile their kernels at the first calls
            once(call)
        start, seconds = time.perf_counter(), list[float]()
        for call in cycle(calls):
            seconds.append(once(call))
            late = time.perf_counter() - start > self.at_most_seconds
            if len(seconds) >= self.calls or (late and len(seconds) >= 3):
                break
        middle = statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4)
        return Timing(middle, (high - low) / 2 / middle, len(seconds))


def _once(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _once_on_gpu(call: Callable[[], Any]) -> float:
    """The device's own time: the launch is queued behind a pause, so that the device never waits for the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(COVER_CYCLES)  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3
