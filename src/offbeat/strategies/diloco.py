"""DiLoCo: an outer optimizer over many local steps (Douillard et al. 2023), streaming if asked for (2025).

    every step:             x_i <- x_i + delta_i
    every H steps:          d_i = x_i - x ;  the mean of all d_i starts              -d is the outer gradient
    `delay` steps later:    v <- mu v + d ;  x <- x + lr (d + mu v)                   Nesterov, as in torch.optim.SGD
                            x_i <- alpha x_i + (1 - alpha) x                          without delay x_i <- x

Streaming: each of the fragments of x has its own turn within the H steps, so that the wire is used evenly, and is
merged while the worker trains on. Buffers, such as the statistics of BatchNorm, are averaged with the last fragment:
extrapolated, a variance could become negative.

What is kept is not x but the position p that Nesterov looks ahead from, x = p + lr mu v. Then

    send:       v <- mu v + d_i = mu (1 - lr) v + (x_i - p)       v was alike on all ranks: the mean is the new v
    receive:    p <- p + lr v

so that v itself travels and p and v are all there is beside the model: twice x. A narrower wire carries d_i, rounded
once, in a buffer of its own: less than x once more. p and v are alike on all ranks, and the model is never rounded.
"""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..comm import Comm, Steps, Work
from ..errors import BadInput
from ..layout import Ranks
from ..options import option
from ..parcel import WIRE_DTYPES, wire_share
from ..replica import Replica, add_difference_, in_chunks
from ..strategy import Strategy, training_flag

MERGE_WEIGHT = 0.5  # of the worker's own x in a late merge, as published


@dataclass(kw_only=True)
class DiLoCo(Strategy):
    """Talks as seldom as local_sgd and makes more of what it hears. One worker alone has the outer optimizer too."""

    name: ClassVar[str] = "diloco"
    every: int = option(16, "steps between two averages of the same part of x", at_least=1)
    outer_lr: float = option(0.7, "learning rate of the outer optimizer", above=0)
    outer_momentum: float = option(0.9, "Nesterov momentum of the outer optimizer, below 1", at_least=0)
    fragments: int | None = option(None, "parts of x that take turns within `every` steps (none: x whole)", at_least=1)
    delay: int = option(0, "steps from the start of an average to its merge, below `every`; 0: wait", at_least=0)
    merge_weight: float | None = option(
        None, f"share of the worker's own x in a late merge, 0 to 1 (none: {MERGE_WEIGHT})", at_least=0
    )
    wire_dtype: str | None = option(None, "dtype of what travels (none: that of x)", one_of=WIRE_DTYPES)
    merges: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outer_momentum >= 1:
            raise BadInput(
                f"outer_momentum={self.outer_momentum} does not fit: from 1 on nothing is ever forgotten, so use less, "
                f"such as 0.9"
            )
        if self.delay >= self.every:
            raise BadInput(
                f"delay={self.delay} does not fit every={self.every}: an average must be merged before the next of the "
                f"same part starts, so use a shorter delay or average less often"
            )
        if self.merge_weight is not None and self.merge_weight > 1:
            raise BadInput(f"merge_weight={self.merge_weight} does not fit: it is a share, so use 0 to 1")
        if self.merge_weight is not None and self.delay == 0:
            raise BadInput(
                f"merge_weight={self.merge_weight} has no meaning with delay=0, where workers adopt the result: "
                f"leave it out, or give a delay"
            )

    @property
    def copies(self) -> float:
        share = wire_share(self.wire_dtype)
        return super().copies + 2 + (share if share < 1 else 0.0)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        parts = Replica(replica.parameters).fragments(self.fragments or 1)
        self._parts = [
            [Outer(x, self.outer_lr, self.outer_momentum, self.wire_dtype) for x in part] for part in parts
        ]  # fmt: skip
        self._parts[-1] += [Outer(x, 1.0, 0.0, self.wire_dtype) for x in replica.buffers]
        self._in_flight: deque[InFlight] = deque()
        self._steps = 0

    def after_step(self, step: int) -> Steps:
        yield from self._boundary(training=True)

    def finish(self) -> Steps:
        while (yield from self._boundary(training=False)):
            pass
        while self._in_flight:
            yield from self._merge_oldest()
        yield from super().finish()

    def report(self) -> dict[str, float]:
        parts = self.fragments or 1
        return {"averages": self.merges // parts, "delay": float(self.delay), "fragments": parts}

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._steps,
            "position": [outer.position for outer in self._outers()],
            "velocity": [outer.velocity for outer in self._outers()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """After `start`, with the weights that were saved with it."""
        if set(state) != {"steps", "position", "velocity"}:
            raise ValueError(f"{self.name} keeps steps, position and velocity, but was given {sorted(state)}")
        sizes, mine = [len(piece) for piece in state["position"]], [len(outer.position) for outer in self._outers()]
        if sizes != mine:
            raise BadInput(
                f"a state of {sum(sizes)} numbers in {len(sizes)} pieces does not fit x, which is {sum(mine)} in "
                f"{len(mine)}: resume with the model and the fragments with which it was saved"
            )
        self._steps = state["steps"]
        for outer, position, velocity in zip(self._outers(), state["position"], state["velocity"], strict=True):
            outer.position.copy_(position)
            outer.velocity.copy_(velocity)

    def _outers(self) -> list["Outer"]:
        return [outer for part in self._parts for outer in part]

    def _boundary(self, *, training: bool) -> Generator[Work[Any], Any, bool]:
        """A step has gone by; for a rank that is done this takes no time, but the turns go on. False: all are done.

        A rank that trains knows that some rank does, and sends without waiting for the flag; the others wait for it.
        """
        self._steps += 1
        yield from self._merge_due()
        everyone = self.comm.layout.ranks
        for index, part in enumerate(self._parts):
            turn = -(-(index + 1) * self.every // len(self._parts))  # ceil: 1 to `every`, the last at `every`
            if self._steps % self.every == turn % self.every:
                flag = self.comm.average(training_flag(training), everyone)
                if not training and not (yield flag).item() > 0:
                    return False
                works = [outer.send(self.comm, everyone) for outer in part]
                self._in_flight.append(InFlight(self._steps + self.delay, part, works))
        yield from self._merge_due()
        return True

    def _merge_due(self) -> Steps:
        while self._in_flight and self._in_flight[0].due <= self._steps:
            yield from self._merge_oldest()

    def _merge_oldest(self) -> Steps:
        _, part, works = self._in_flight.popleft()
        for work in works:
            yield work
        weight = 0.0 if self.delay == 0 else MERGE_WEIGHT if self.merge_weight is None else self.merge_weight
        for outer in part:
            outer.receive(weight)
        self.merges += 1


class Outer:
    """The outer optimizer of one contiguous piece of x."""

    def __init__(self, x: Tensor, lr: float, momentum: float, wire_dtype: str | None) -> None:
        self.position, self.velocity = x.clone(), torch.zeros_like(x)
        self._x, self._lr, self._momentum = x, lr, momentum
        wire = x.dtype if wire_dtype is None else getattr(torch, wire_dtype)
        self._narrow = wire != x.dtype and wire.itemsize <= x.dtype.itemsize
        self._wire = torch.zeros_like(x, dtype=wire) if self._narrow else self.velocity

    def send(self, comm: Comm, ranks: Ranks) -> Work[Tensor]:
        if self._narrow:
            ahead = self._lr * self._momentum
            for d, x, position, velocity in in_chunks(self._wire, self._x, self.position, self.velocity):
                d.copy_((x - position).sub_(velocity, alpha=ahead))
        else:
            self.velocity.mul_(self._momentum * (1 - self._lr))
            add_difference_(self.velocity, self._x, self.position)
        return comm.average(self._wire, ranks, out=self._wire)

    def receive(self, weight: float) -> None:
        """weight: of what the worker has learned by itself."""
        if self._narrow:
            self.velocity.mul_(self._momentum).add_(self._wire)
        self.position.add_(self.velocity, alpha=self._lr)
        ahead = self._lr * self._momentum
        if weight == 0:
            torch.add(self.position, self.velocity, alpha=ahead, out=self._x)
        else:
            self._x.lerp_(self.position, 1 - weight).add_(self.velocity, alpha=(1 - weight) * ahead)


class InFlight(NamedTuple):
    due: int  # the step at which it is merged
    part: Sequence[Outer]
    works: Sequence[Work[Tensor]]
