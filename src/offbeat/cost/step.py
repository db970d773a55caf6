"""StepTime: one step of one worker in time, and what synchronous SGD makes of it.

On a GPU the host issues operation after operation, step after step, and the device does them: each begins when both the
device is free and the host has come to it. Gradients are reduced in buckets as torch's DistributedDataParallel has them
(1 MiB first, then 25 MiB, in the order in which gradients are ready) while backward goes on; what it copies is part of
the step (`in_buckets`):

    T = sum fwd; A = 0; for each bucket: T += backward of its ops; A = max(T, A) + t_allreduce(bucket)
    step = max(T, A) + optimizer
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..sim.shape import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, StepShape
from .op import PHASES, Phase
from .trace import TracedStep

STEPS_IN_A_ROW = 4  # the last of which counts: by then the host is as far ahead as it gets


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """When things happen in a step of one worker alone, in seconds since it began."""

    forward_seconds: float  # until the loss is there
    backward_seconds: float  # of backward alone
    optimizer_seconds: float
    ready: tuple[tuple[int, float], ...]  # of each bucket its bytes, and when its last gradient is there

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    def shape(self) -> StepShape:
        """The same for the virtual world, as shares of the step."""
        return StepShape(
            buckets=tuple(Bucket(nbytes, at / self.seconds) for nbytes, at in self.ready),
            optimizer_share=self.optimizer_seconds / self.seconds,
        )

    def scaled(self, times: float) -> "StepTime":
        return StepTime(
            forward_seconds=self.forward_seconds * times,
            backward_seconds=self.backward_seconds * times,
            optimizer_seconds=self.optimizer_seconds * times,
            ready=tuple((nbytes, at * times) for nbytes, at in self.ready),
        )


@dataclass(frozen=True)
class Synchronous:
    """A step that ends when all gradients are averaged."""

    seconds: float
    exposed_seconds: float  # the worker waits for the wire
    busy: tuple[tuple[float, float], ...]  # of each bucket: from when to when it is on the wire

    @property
    def critical_wire_seconds(self) -> float:
        """How much shorter the step would be with an infinitely fast wire and compute that starts no bucket earlier:
        the wire's last stretch without a gap, if the worker has to wait for its end."""
        if not self.exposed_seconds:
            return 0.0
        begin = self.busy[-1][0]
        for start, end in reversed(self.busy[:-1]):
            if end < begin:
                break
            begin = start
        return self.busy[-1][1] - begin


def time_step(step: TracedStep, seconds: Sequence[float], host_seconds: Sequence[float] | None = None) -> StepTime:
    """`seconds[i]` is what operation i takes on the device, `host_seconds[i]` what the host needs to issue it."""
    issued = [0.0] * len(step.ops) if host_seconds is None else host_seconds
    host = device = began = 0.0
    ended: dict[Phase, float] = {}
    ready_at: dict[str, float] = {}
    for _ in range(STEPS_IN_A_ROW if any(issued) else 1):
        began = device
        for op, taken, issuing in zip(step.ops, seconds, issued, strict=True):
            host += issuing
            device = max(device, host) + taken
            ended[op.phase] = device - began
            for name in op.completes:
                ready_at[name] = device - began
    ends = [0.0]
    for phase in PHASES:
        ends.append(max(ends[-1], ended.get(phase, 0.0)))
    return StepTime(
        forward_seconds=ends[1],
        backward_seconds=ends[2] - ends[1],
        optimizer_seconds=ends[3] - ends[2],
        ready=tuple(_buckets(step, ready_at)),
    )


def synchronous(step: StepTime, all_reduce: Callable[[int], float]) -> Synchronous:
    """One step with the gradients averaged; `all_reduce(nbytes)` in seconds."""
    wire_free, busy = 0.0, list[tuple[float, float]]()
    for nbytes, ready in step.ready:
        begin = max(ready, wire_free)
        wire_free = begin + all_reduce(nbytes)
        busy.append((begin, wire_free))
    computed = step.forward_seconds + step.backward_seconds
    exposed = max(0.0, wire_free - computed)
    return Synchronous(step.seconds + exposed, exposed, tuple(busy))


def _buckets(step: TracedStep, ready_at: dict[str, float]) -> Iterator[tuple[int, float]]:
    """A bucket is full when its limit is reached, so that it may be larger, as in torch."""
    nbytes, ready, limit = 0, 0.0, FIRST_BUCKET_BYTES
    for name in step.gradient_order:
        nbytes += step.parameters[name].nbytes
        ready = max(ready, ready_at[name])
        if nbytes >= limit:
            yield nbytes, ready
            nbytes, limit = 0, BUCKET_BYTES
    if nbytes:
        yield nbytes, ready
