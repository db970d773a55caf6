"""Parcel: a part of x that is averaged while the worker trains on. Strategies with late merges are made of these.

    send:     s <- x                              a snapshot; its average over the ranks starts
    merge:    x <- x + (mean s - s)               keeps what was learned meanwhile; zero in the sum over all ranks
    adopt:    x <- mean s                         the exact average, where nothing was learned meanwhile
    approach: x <- x + weight (mean s - x)        part of the way, also on ranks that sent nothing: `relay` tells them

With a narrower dtype on the wire, what travels is not x but its difference from a reference r that all ranks share:
d = x - r, rounded once, and the same rounded d goes into the merge. So x itself is never rounded, and the mean only
by the rounding of a difference of a few steps:

    send:     d <- round(x - r)
    merge:    x <- x + (mean d - d) ;  r <- r + mean d
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .comm import Average, Comm, Steps, Work
from .layout import Ranks
from .replica import Fragment, add_difference_, subtract_

WIRE_DTYPES = ("float32", "bfloat16", "float16")


class Parcel:
    """Two buffers of the part's size beside x (with a narrower wire: one, and two of the wire's)."""

    def __init__(self, part: Fragment, wire_dtype: str | None = None) -> None:
        self.sent_at = 0  # the step of the latest snapshot
        self._letters = [Letter(x, wire_dtype) for x in part]
        self._works: Sequence[Average] = ()

    @property
    def in_flight(self) -> bool:
        return bool(self._works)

    @property
    def done(self) -> bool:
        """Whether its average is there, or none is under way."""
        return all(work.done for work in self._works)

    @property
    def found_idle(self) -> bool:
        """Whether the wire may have waited for this rank before the average that is under way."""
        return bool(self._works) and self._works[0].found_idle

    def send(self, comm: Comm, ranks: Ranks, step: int, *, training: bool) -> None:
        """Start the average of a snapshot; `training` says that this rank still learns."""
        self.sent_at = step
        self._works = [letter.send(comm, ranks, training) for letter in self._letters]

    def receive(self) -> Steps:
        """Wait for the average."""
        for work in self._works:
            yield work
        self._works = ()

    def relay(self, comm: Comm, source: int, ranks: Ranks) -> Steps:
        """Pass the average on, from `source`, which has received it, to all `ranks`."""
        if len(ranks) > 1:
            for work in [letter.relay(comm, source, ranks) for letter in self._letters]:
                yield work

    @property
    def some_train(self) -> bool:
        """Whether some rank still trained when the average that is there was sent. Waits for a GPU, so ask seldom."""
        return any(letter.some_train for letter in self._letters)

    def merge(self) -> None:
        for letter in self._letters:
            letter.merge()

    def adopt(self) -> None:
        for letter in self._letters:
            letter.adopt()

    def approach(self, weight: float) -> None:
        for letter in self._letters:
            letter.approach(weight)


class Letter:
    """The buffers of one contiguous piece of x; the last number on the wire says whether the sender still trains."""

    def __init__(self, x: Tensor, wire_dtype: str | None) -> None:
        wire = x.dtype if wire_dtype is None else getattr(torch, wire_dtype)
        self._x = x
        self._reference = x.clone() if wire != x.dtype and wire.itemsize <= x.dtype.itemsize else None
        if self._reference is None:
            wire = x.dtype
        self._out, self._in = (torch.zeros(len(x) + 1, dtype=wire, device=x.device) for _ in range(2))
        self._sent, self._mean = self._out[:-1], self._in[:-1]
        self._says_training = False

    def send(self, comm: Comm, ranks: Ranks, training: bool) -> Average:
        if self._reference is None:
            self._sent.copy_(self._x)
        else:
            subtract_(self._x, self._reference, out=self._sent)
        if training != self._says_training:  # once or twice in a run: it is a kernel of its own
            self._out[-1] = float(training)
            self._says_training = training
        return comm.average(self._out, ranks, out=self._in)

    def relay(self, comm: Comm, source: int, ranks: Ranks) -> Work[Tensor]:
        return comm.broadcast(self._in, source, ranks, out=self._in)

    @property
    def some_train(self) -> bool:
        return bool(self._in[-1] > 0)

    def merge(self) -> None:
        if self._reference is None:
            add_difference_(self._x, self._mean, self._sent)
        else:  # one after the other: their difference would be rounded to the wire's dtype again
            self._x.add_(self._mean).sub_(self._sent)
            self._reference.add_(self._mean)

    def adopt(self) -> None:
        if self._reference is None:
            self._x.copy_(self._mean)
        else:
            self._reference.add_(self._mean)
            self._x.copy_(self._reference)

    def approach(self, weight: float) -> None:
        """Nothing moves, to the last bit, where the mean is x already."""
        if self._reference is None:
            self._x.lerp_(self._mean, weight)
        else:
            self._x.lerp_(self._reference.add_(self._mean), weight)
