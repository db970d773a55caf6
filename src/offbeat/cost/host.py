"""Host: what the host does in a step beside the kernels, learned from real ones.

Python, modules and views in forward, autograd's engine in backward, the allocator in proportion to what is made, lists
of tensors in an optimizer. On a CPU that comes on top of the operations; a GPU does them meanwhile:

    CPU:  a phase's seconds - the sum of its operations = host         GPU:  what the host takes to issue a phase = host
    host = h0[phase] + sum over operations of (h[phase] + g[phase, class]) + bytes made * m + tensors in lists * l
           + bytes from memory * f[phase] + cold * (c0[phase] + c[phase] * operations) on a CPU

by least deviations, relative to the step, since some steps are disturbed; g is kept small where steps tell little about
it. On a CPU h may be below 0: operations were timed with what a call from Python takes, which autograd does not do.
What comes from memory was seen to take longer in a step than where each operation is timed; perhaps since memory has no
rest between them. And a step that moves more than the last-level cache has takes Python, autograd and the optimizer out
of it: of 38 us that an optimizer's Python took in a small step, 270 were seen in the same model's with a larger batch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from .counts import read_bytes_of
from .op import PHASES, Op
from .reuse import PARTS
from .trace import Platform
from .visits import Visit, slower_host

LEAST_MICROSECONDS: Mapping[Platform, float] = {"cpu": -4.0, "cuda": 0.0}  # of h
LEAST_OF_A_CLASS = -30.0  # microseconds, of g
PULL = 0.0003  # on g, per microsecond: as a relative error of every step
ROUNDS, LEAST_ERROR = 30, 0.005  # of reweighting: an error below counts as that one
LISTS = ("foreach", "optimizer")
# Bulk of a step up to which the host finds all in caches, and from which on nothing: 32 and 190 MB, as seen on a CPU
# with a last-level cache of 32 MB, for all CPUs.
COLD_FROM, COLD_AT = 50, 55


@dataclass(frozen=True)
class PhaseTiming:
    """The host's part in one phase of a real step, and what the phase consists of."""

    host_seconds: float
    calls: Mapping[str, int]  # of each class
    made_bytes: int  # of fresh tensors
    listed: int  # tensors in lists
    far_bytes: int  # that are read and that no cache has any more


@dataclass(frozen=True)
class StepTiming:
    """A real step."""

    seconds: float
    phases: Mapping[str, PhaseTiming]
    reference_seconds: float  # of the references' steps, meanwhile
    bulk: int  # how much it moves: see `reuse`
    device_seconds: float | None = None  # of all operations, on a GPU: they do not depend on the host's speed

    def slower(self, times: float) -> "StepTiming":
        """With a host so many times as slow."""
        phases = {name: replace(each, host_seconds=each.host_seconds * times) for name, each in self.phases.items()}
        seconds = self.seconds * times
        if self.device_seconds is not None:
            host = sum(each.host_seconds for each in self.phases.values())
            seconds = slower_host(self.seconds, host, self.device_seconds, times)
        return replace(self, seconds=seconds, phases=phases)


@dataclass(frozen=True)
class Host:
    """In seconds."""

    phases: Mapping[str, float] = field(default_factory=dict)  # once in a step
    calls: Mapping[str, float] = field(default_factory=dict)  # per operation, by phase
    classes: Mapping[str, float] = field(default_factory=dict)  # beside that, by phase and class
    made_seconds: float = 0.0  # per byte
    listed_seconds: float = 0.0  # per tensor
    far_seconds: Mapping[str, float] = field(default_factory=dict)  # per far byte, by phase
    cold_phases: Mapping[str, float] = field(default_factory=dict)  # once in a step whose caches are cold
    cold_calls: Mapping[str, float] = field(default_factory=dict)  # per operation of such a step, by phase

    def seconds_of(self, ops: Sequence[Op]) -> list[float]:
        """Of each operation of a step; what a phase takes once is in its first."""
        found, begun, cold = list[float](), set[str](), _cold(_bulk(ops))
        for op in ops:
            once = self.phases.get(op.phase, 0.0) + cold * self.cold_phases.get(op.phase, 0.0)
            once = 0.0 if op.phase in begun else once
            begun.add(op.phase)
            own = self.calls.get(op.phase, 0.0) + self.classes.get(f"{op.phase} {_class(op)}", 0.0)
            own += cold * self.cold_calls.get(op.phase, 0.0)
            far = _far(op) * self.far_seconds.get(op.phase, 0.0)
            found.append(once + own + _made(op) * self.made_seconds + _listed(op) * self.listed_seconds + far)
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> "Host":
        return cls(**read)


def step_timing(ops: Sequence[Op], found: Visit, platform: Platform, reference_seconds: float) -> StepTiming:
    phases: dict[str, PhaseTiming] = {}
    for phase, seconds in zip(PHASES, found.phases, strict=True):
        own = [op for op in ops if op.phase == phase]
        busy = sum(taken for op, taken in zip(ops, found.ops, strict=True) if op.phase == phase)
        phases[phase] = PhaseTiming(
            seconds - busy if platform == "cpu" else seconds,
            dict(sorted(Counter(map(_class, own)).items())),
            sum(map(_made, own)),
            sum(map(_listed, own)),
            sum(map(_far, own)) if platform == "cpu" else 0,
        )
    device_seconds = sum(found.ops) if platform == "cuda" else None
    return StepTiming(found.seconds, phases, reference_seconds, _bulk(ops), device_seconds)


def fit_host(steps: Sequence[StepTiming], platform: Platform) -> Host:
    from scipy.optimize import lsq_linear  # half a second that only fitting needs

    if not steps:
        return Host()
    once = [f"once {phase}" for phase in PHASES]
    each = [f"each {phase}" for phase in PHASES]
    classes = sorted({f"{phase} {name}" for step in steps for phase, own in step.phases.items() for name in own.calls})
    beside = [f"{what} {phase}" for what in ("far", "cold", "cold each") for phase in PHASES]
    names = [*once, *each, *classes, "made", "listed", *beside]
    rows, wanted = list[list[float]](), list[float]()
    for step in steps:
        for phase, timing in step.phases.items():
            amounts = _amounts(phase, timing, _cold(step.bulk))
            rows.append([amounts.get(name, 0.0) / step.seconds for name in names])
            wanted.append(timing.host_seconds / step.seconds)
    pull = PULL * np.sqrt(len(rows)) * np.eye(len(names))[[name in classes for name in names]]
    least = [_least(name, platform) for name in names]
    table, goal = np.array(rows), np.array(wanted)
    weights, found = np.ones(len(rows)), np.zeros(len(names))
    for _ in range(ROUNDS):
        weighted = np.concatenate([table * weights[:, None], pull])
        aims = np.concatenate([goal * weights, np.zeros(len(pull))])
        # bvls: trf stops far off where classes are hard to tell apart
        found = lsq_linear(weighted, aims, (least, np.inf), method="bvls", max_iter=10 * len(names)).x
        weights = 1 / np.sqrt(np.maximum(LEAST_ERROR, np.abs(table @ found - goal)))
    seconds = dict(zip(names, (1e-6 * float(value) for value in found), strict=True))
    return Host(
        {phase: seconds[f"once {phase}"] for phase in PHASES},
        {phase: seconds[f"each {phase}"] for phase in PHASES},
        {name: seconds[name] for name in classes},
        1e-3 * seconds["made"],
        seconds["listed"],
        {phase: 1e-3 * seconds[f"far {phase}"] for phase in PHASES},
        {phase: seconds[f"cold {phase}"] for phase in PHASES},
        {phase: seconds[f"cold each {phase}"] for phase in PHASES},
    )


def _amounts(phase: str, timing: PhaseTiming, cold: float) -> dict[str, float]:
    """In microseconds, or nanoseconds per byte, so that all unknowns are of about the same size."""
    calls = {f"{phase} {name}": 1e-6 * count for name, count in timing.calls.items()}
    all_calls = 1e-6 * sum(timing.calls.values())
    shared = {f"once {phase}": 1e-6, f"each {phase}": all_calls}
    shared |= {f"cold {phase}": 1e-6 * cold, f"cold each {phase}": cold * all_calls}
    amounts = {
        "made": 1e-9 * timing.made_bytes,
        f"far {phase}": 1e-9 * timing.far_bytes,
        "listed": 1e-6 * timing.listed,
    }
    return calls | shared | amounts


def _least(name: str, platform: Platform) -> float:
    if name.startswith("each "):
        return LEAST_MICROSECONDS[platform]
    return 0.0 if name.startswith(("once ", "far ", "cold ")) or name in ("made", "listed") else LEAST_OF_A_CLASS


def _bulk(ops: Sequence[Op]) -> int:
    return max((op.kernel.bulk for op in ops), default=0)


def _cold(bulk: int) -> float:
    """How much of what the host needs no cache has any more, in a step that moves so much."""
    return min(1.0, max(0.0, (bulk - COLD_FROM) / (COLD_AT - COLD_FROM)))


def _class(op: Op) -> str:
    """The parts of a convolution's backward are one call, so they are told apart."""
    return f"{op.kind}/{op.kernel.part}" if op.kernel.part else op.kind


def _made(op: Op) -> int:
    return sum(spec.nbytes for spec in op.kernel.outputs)


def _far(op: Op) -> int:
    """Bytes that it reads and that come from memory, as `reuse` has it."""
    return read_bytes_of(op.kernel) * (PARTS - sum(op.kernel.near)) // PARTS


def _listed(op: Op) -> int:
    return len(op.kernel.inputs) if op.kind in LISTS else 0
