"""Visit: what a real step took, and each of its operations where it stands in the step.

Alone and over and over, a kernel finds its tensors either all in the caches or none of them. In a step it finds what
the operations before it left there: only there is its time the one that a step is made of. So real steps of models are
made, and every operation is timed on its way to its kernel:

    model, loss, optimizer  ->  autograd  ->  EachCall  ->  kernels
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .kernel import Kernel
from .recorder import Recorder

_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class Visit:
    """Medians, in seconds; `ops` in the order of the trace."""

    seconds: float  # of the whole step
    phases: tuple[float, float, float]  # forward, backward, optimizer: the host's seconds; a GPU may still be at work
    kernels: tuple[Kernel, ...]
    ops: tuple[float, ...]
    reference_seconds: float = 1.0  # of a step of the reference, meanwhile; 1 where there is none
    on_gpu: bool = False  # then the reference tells how fast the host is, and nothing of the device
    quiet: bool | None = None  # whether neighbours left the CPU alone meanwhile, where that was looked at

    def at_speed_of(self, reference_seconds: float) -> "Visit":
        """As it would have been with the reference taking so long."""
        share = reference_seconds / self.reference_seconds
        forward, backward, optimizer = (each * share for each in self.phases)
        if self.on_gpu:
            ops, seconds = self.ops, slower_host(self.seconds, sum(self.phases), sum(self.ops), share)
        else:
            ops, seconds = tuple(each * share for each in self.ops), self.seconds * share
        return replace(
            self,
            seconds=seconds,
            phases=(forward, backward, optimizer),
            ops=ops,
            reference_seconds=reference_seconds,
        )


def slower_host(seconds: float, host: float, device: float, times: float) -> float:
    """What a step of so many seconds takes with a host so many times as slow: it waits for the slower of the two."""
    return seconds * max(host * times, device) / max(host, device)


def medians(of: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    forward, backward, optimizer = (statistics.median(each) for each in zip(*of, strict=True))
    return forward, backward, optimizer


class Calls(Recorder):  # type: ignore[no-untyped-call]
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


class EachCall(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has every call of a step made by `timed`, which keeps its time by number.

    `split`: the gradients of a convolution are computed one by one, as a trace has them. At once they take less: so
    both is done in turns.
    """

    def __init__(self, *, split: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._split = split
        self._numbers: list[range] = []  # of each call
        self._count = 0

    def timed(self, number: int, call: Callable[[], Any]) -> Any:
        raise NotImplementedError

    def by_call(self, seconds: Sequence[float]) -> list[tuple[float, ...]]:
        """The times of all numbers, as those of each call."""
        return [tuple(seconds[number] for number in own) for own in self._numbers]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self._count
        if self._split and func is _CONVOLUTION_BACKWARD:
            result = self._gradients(*args)
        else:
            result = self._next(lambda: func(*args, **(kwargs or {})))
        self._numbers.append(range(before, self._count))
        return result

    def _next(self, call: Callable[[], Any]) -> Any:
        self._count += 1
        return self.timed(self._count - 1, call)

    def _gradients(self, *args: Any) -> Any:
        *others, wanted = args
        made: list[torch.Tensor | None] = []
        for place, want in enumerate(wanted):
            if not want:
                made.append(None)
            elif place == 2:  # as the libraries do it
                made.append(self._next(lambda: others[0].sum([i for i in range(others[0].dim()) if i != 1])))
            else:
                alone = partial(_CONVOLUTION_BACKWARD, *others, [i == place for i in range(3)])
                made.append(self._next(alone)[place])
        return tuple(made)


class CallTimes:
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
        total = sum(found)
        share = statistics.median(self._at_once) / total if self._at_once and total else 1.0
        return [share * each for each in found]
