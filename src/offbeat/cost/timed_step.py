"""visit: how long a real step takes, and each of its operations where it stands in the step.

Alone and over and over, a kernel finds its tensors either all in the caches or none of them. In a step it finds what
the operations before it left there: only there is its time the one that a step is made of. So real steps of models are
made, and every operation is timed on its way to its kernel:

    model, loss, optimizer  ->  autograd  ->  Timed  ->  kernels

A shared CPU is not always as fast: its neighbours take cycles and bandwidth, for seconds or minutes. So every visit
also makes steps of models that are always the same, in turns with its own: their time tells how fast the CPU was.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .kernel import Kernel
from .measured_step import RealStep
from .recorder import Recorder

WARM, FEWEST, MOST, SECONDS = 2, 4, 16, 0.5  # turns of a visit

_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class Visit:
    """Medians, in seconds; `ops` in the order of the trace."""

    seconds: float  # of the whole step
    kernels: tuple[Kernel, ...]
    ops: tuple[float, ...]
    reference_seconds: float  # of a step of the reference, meanwhile

    def at_speed_of(self, reference_seconds: float) -> "Visit":
        """As it would have been with the reference taking so long."""
        share = reference_seconds / self.reference_seconds
        return Visit(self.seconds * share, self.kernels, tuple(each * share for each in self.ops), reference_seconds)


class _Calls(Recorder):  # type: ignore[no-untyped-call]
    """Also says which operations each call is: a view none, a convolution's backward up to three."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.places: list[range] = []

    @property
    def kernels(self) -> list[Kernel]:
        return [kernel for kernel, _phase, _path in self._calls]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = len(self._calls)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.places.append(range(before, len(self._calls)))
        return result


class _Timed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Only looks at the clock. What it takes to call the operation from Python is counted, a microsecond or two; `Host`
    makes up for it.

    `split`: the gradients of a convolution are computed one by one, as a trace has them. At once they take less: so
    both is done in turns.
    """

    def __init__(self, *, split: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: list[tuple[float, ...]] = []  # of each call
        self._split = split

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._split and func is _CONVOLUTION_BACKWARD:
            return self._gradients(*args)
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self.seconds.append((time.perf_counter() - start,))
        return result

    def _gradients(self, *args: Any) -> Any:
        *others, wanted = args
        made, seconds = list[torch.Tensor | None](), list[float]()
        for place, want in enumerate(wanted):
            if not want:
                made.append(None)
                continue
            start = time.perf_counter()
            if place == 2:  # as the libraries do it
                gradient = others[0]
                made.append(gradient.sum([i for i in range(gradient.dim()) if i != 1]))
            else:
                made.append(_CONVOLUTION_BACKWARD(*others, [i == place for i in range(3)])[place])
            seconds.append(time.perf_counter() - start)
        self.seconds.append(tuple(seconds))
        return tuple(made)


def visit(
    step: RealStep,
    reference: Callable[[], None],
    *,
    fewest: int = FEWEST,
    most: int = MOST,
    at_most_seconds: float = SECONDS,
) -> Visit:
    """The step, the step with its operations timed, and the reference, in turns."""
    step()  # makes the optimizer's state
    recorder = _Calls(step.model)
    with recorder:
        step()
    whole, beside, calls = list[float](), list[float](), [_Call(own) for own in recorder.places]
    began = time.perf_counter()
    for turn in range(-WARM, most):
        timed = _Timed(split=turn % 2 == 0)
        reference()
        reference_taken = _seconds_of(reference)
        step()  # so that what is timed finds the caches as a step leaves them
        if turn % 4 < 2:  # neither is always the first
            taken = _seconds_of(step)
        with timed:
            step()
        if turn % 4 >= 2:
            taken = _seconds_of(step)
        if turn >= 0:
            whole.append(taken)
            beside.append(reference_taken)
            for call, seconds in zip(calls, timed.seconds, strict=True):
                call.add(seconds)
        if turn + 1 >= fewest and time.perf_counter() - began > at_most_seconds:
            break
    ops = tuple(seconds for call in calls for seconds in call.ops())
    return Visit(statistics.median(whole), tuple(recorder.kernels), ops, statistics.median(beside))


class _Call:
    """One call of a step, over all turns: no operation (a view), one, or the parts of a convolution's backward."""

    def __init__(self, places: range) -> None:
        self._parts: list[list[float]] = [[] for _ in places]
        self._at_once: list[float] = []

    def add(self, seconds: tuple[float, ...]) -> None:
        if len(seconds) < len(self._parts):
            self._at_once += seconds
            return
        for part, each in zip(self._parts, seconds, strict=False):  # a view takes time too, and is nothing
            part.append(each)

    def ops(self) -> list[float]:
        """Medians; of parts such that their sum is what they take at once."""
        found = [statistics.median(part) for part in self._parts]
        share = statistics.median(self._at_once) / sum(found) if self._at_once else 1.0
        return [share * each for each in found]


def _seconds_of(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
