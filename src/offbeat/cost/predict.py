"""predict: the time of each operation of a step on a device, what bounds it, and how sure that is.

    t = t_launch + max(flops / (F e_c), bytes / (B e_m)) * exp(g)

g is what a calibration learned of the operation's class; 0 for classes that it did not measure, and for devices of
which there is only a data sheet.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import Literal

import torch

from .buckets import in_buckets
from .device_profile import DeviceProfile
from .features import operator_of
from .kernel import Kernel
from .op import Op
from .roofline import Device, compute_seconds, memory_seconds
from .step import StepTime, time_step
from .trace import TracedStep

Bound = Literal["compute", "memory", "latency"]


@dataclass(frozen=True)
class OpTime:
    """One operation on the device."""

    seconds: float
    bound: Bound  # arithmetic, memory, or the launch
    learned: bool  # False: by the roofline alone
    measured: bool  # the very operator; else it is taken for another one of its class


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A step on a device: `ops[i]` is the time of the trace's operation i."""

    trace: TracedStep
    ops: tuple[OpTime, ...]
    time: StepTime
    band: tuple[float, float]  # factors: the step takes so many times the predicted, at least and at most
    profile: DeviceProfile

    @cached_property
    def bucketed(self) -> StepTime:
        """The step with DistributedDataParallel's copies."""
        return predict(in_buckets(self.trace), self.profile).time

    @cached_property
    def seconds_by_bound(self) -> Mapping[Bound, float]:
        found: dict[Bound, float] = defaultdict(float)
        for op in self.ops:
            found[op.bound] += op.seconds
        found["latency"] += max(0.0, self.time.seconds - sum(found.values()))  # the device waits for the host
        return found

    @property
    def bottleneck(self) -> Bound:
        return max(self.seconds_by_bound, key=lambda bound: self.seconds_by_bound[bound])

    @cached_property
    def estimated(self) -> Mapping[str, float]:
        """Classes of operations that the calibration did not measure, with their share of the time."""
        return self._shares_of({op.kernel: op.kind for op, time in self._timed if not time.learned})

    @cached_property
    def likened(self) -> Mapping[str, float]:
        """Operators that it did not measure, but others of their class, with their share of the time."""
        return self._shares_of(
            {op.kernel: operator_of(op.kernel) for op, time in self._timed if time.learned and not time.measured}
        )

    @property
    def _timed(self) -> Iterator[tuple[Op, OpTime]]:
        return zip(self.trace.ops, self.ops, strict=True)

    def _shares_of(self, names: Mapping[Kernel, str]) -> Mapping[str, float]:
        """By name, the largest first."""
        total = sum(op.seconds for op in self.ops)
        found: dict[str, float] = defaultdict(float)
        for op, time in self._timed:
            if op.kernel in names:
                found[names[op.kernel]] += time.seconds / total
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def predict(step: TracedStep, profile: DeviceProfile) -> Prediction:
    kernels = list(dict.fromkeys(op.kernel for op in step.ops))
    corrections = profile.kernels.corrections(kernels) if profile.kernels is not None else [None] * len(kernels)
    known = {
        kernel: _op_time(kernel, profile, correction if _precision_was_measured(kernel, profile.device) else None)
        for kernel, correction in zip(kernels, corrections, strict=True)
    }
    ops = tuple(known[op.kernel] for op in step.ops)
    if profile.platform == "cpu":  # host and device are one: nothing is hidden
        beside = profile.host.seconds_of(step.ops) if profile.host is not None else [0.0] * len(ops)
        time = time_step(step, [max(0.0, op.seconds + host) for op, host in zip(ops, beside, strict=True)])
    else:
        every = [profile.device.dispatch_seconds] * len(ops)
        issuing = every if profile.host is None else profile.host.seconds_of(step.ops)
        time = time_step(step, [op.seconds for op in ops], issuing)
    return Prediction(trace=step, ops=ops, time=time, band=_band(ops, profile), profile=profile)


def _precision_was_measured(kernel: Kernel, device: Device) -> bool:
    """What was learned of float32 says nothing of other widths, for which libraries have other kernels."""
    others = (torch.bfloat16, torch.float16, torch.float64)
    return kernel.dtype not in others or kernel.dtype in device.flops_per_second


def _op_time(kernel: Kernel, profile: DeviceProfile, correction: float | None) -> OpTime:
    device, learned = profile.device, correction is not None
    compute, memory = compute_seconds(kernel, device), memory_seconds(kernel, device)
    busy = max(compute, memory) * exp(correction or 0.0)
    bound: Bound = "latency" if device.launch_seconds > busy else "compute" if compute >= memory else "memory"
    measured = learned and profile.kernels is not None and profile.kernels.has_measured(kernel)
    return OpTime(device.launch_seconds + busy, bound, learned, measured)


def _band(ops: tuple[OpTime, ...], profile: DeviceProfile) -> tuple[float, float]:
    """The mean of what was measured and what was not, weighted by time: errors of many operations go together."""
    learned = profile.band if profile.kernels is None else profile.kernels.band
    total = sum(op.seconds for op in ops)
    share = sum(op.seconds for op in ops if op.measured) / total if total else 0.0
    low, high = (share * own + (1 - share) * rest for own, rest in zip(learned, profile.band, strict=True))
    return low, high
