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
from typing import NamedTuple

import torch
from torch import Tensor

from .comm import Average, Comm, Steps, Work
from .layout import Ranks
from .replica import GPU_CHUNK, Fragment, add_difference_, subtract_

WIRE_DTYPES = ("float32", "bfloat16", "float16")


def narrows(x: Tensor, wire_dtype: str | None) -> bool:
    """Whether x would be rounded on the wire."""
    wire = x.dtype if wire_dtype is None else getattr(torch, wire_dtype)
    return bool(wire != x.dtype and wire.itemsize <= x.dtype.itemsize)


class Parcel:
    """Two buffers of the part's size beside x (with a narrower wire: one, and two of the wire's).

    `reference`, for a narrower wire: pieces like those of the part, of the same values on all ranks, which are written
    to; none: x as it is now, which must be the same on all ranks.
    """

    def __init__(self, part: Fragment, wire_dtype: str | None = None, reference: Fragment | None = None) -> None:
        self.sent_at = 0  # the step of the latest snapshot
        alike: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor | None]]] = {}
        for x, shared in zip(part, reference or [None] * len(part), strict=True):
            alike.setdefault((x.dtype, x.device), []).append((x, shared))
        self._letters = [
            (GatheredLetter if gathers([x for x, _ in pieces]) else Letter)(pieces, wire_dtype)
            for pieces in alike.values()
        ]
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
    """The buffers of pieces of x of one dtype, which travel as one; the last number on the wire says whether the sender
    still trains."""

    def __init__(self, pieces: Sequence[tuple[Tensor, Tensor | None]], wire_dtype: str | None) -> None:
        first, narrow = pieces[0][0], narrows(pieces[0][0], wire_dtype)
        wire = getattr(torch, wire_dtype) if narrow and wire_dtype is not None else first.dtype
        sizes = [len(x) for x, _ in pieces]
        self._out, self._in = (torch.zeros(sum(sizes) + 1, dtype=wire, device=first.device) for _ in range(2))
        buffers = zip(*(torch.split(buffer[:-1], sizes) for buffer in (self._out, self._in)), strict=True)
        self._pieces = [
            Piece(x, (x.clone() if shared is None else shared) if narrow else None, sent, mean)
            for (x, shared), (sent, mean) in zip(pieces, buffers, strict=True)
        ]
        self._says_training = False

    def send(self, comm: Comm, ranks: Ranks, training: bool) -> Average:
        self._take_snapshot()
        if training != self._says_training:  # once or twice in a run: it is a kernel of its own
            self._out[-1] = float(training)
            self._says_training = training
        return comm.average(self._out, ranks, out=self._in)

    def _take_snapshot(self) -> None:
        for x, reference, sent, _ in self._pieces:
            if reference is None:
                sent.copy_(x)
            else:
                subtract_(x, reference, out=sent)

    def relay(self, comm: Comm, source: int, ranks: Ranks) -> Work[Tensor]:
        return comm.broadcast(self._in, source, ranks, out=self._in)

    @property
    def some_train(self) -> bool:
        return bool(self._in[-1] > 0)

    def merge(self) -> None:
        for x, reference, sent, mean in self._pieces:
            if reference is None:
                add_difference_(x, mean, sent)
            else:  # one after the other: their difference would be rounded to the wire's dtype again
                x.add_(mean).sub_(sent)
                reference.add_(mean)

    def adopt(self) -> None:
        for x, reference, _, mean in self._pieces:
            if reference is None:
                x.copy_(mean)
            else:
                reference.add_(mean)
                x.copy_(reference)

    def approach(self, weight: float) -> None:
        """Nothing moves, to the last bit, where the mean is x already."""
        for x, reference, _, mean in self._pieces:
            x.lerp_(mean if reference is None else reference.add_(mean), weight)


class GatheredLetter(Letter):
    """The same with a few kernels for all pieces together: on a GPU, one for each of many small ones takes longer to
    launch than to run. Sums are made in the dtype of x, so that one of 16 bits is rounded less often."""

    def __init__(self, pieces: Sequence[tuple[Tensor, Tensor | None]], wire_dtype: str | None) -> None:
        super().__init__(pieces, wire_dtype)
        self._xs = [piece.x for piece in self._pieces]
        self._references = [piece.reference for piece in self._pieces if piece.reference is not None]
        self._sizes = [len(x) for x in self._xs]

    def _take_snapshot(self) -> None:
        if not self._references:
            torch.cat(self._xs, out=self._out[:-1])
        else:
            self._out[:-1].copy_(torch.cat(torch._foreach_sub(self._xs, self._references)))

    def merge(self) -> None:
        mean = self._mean()
        torch._foreach_add_(self._xs, torch.split(mean - self._out[:-1], self._sizes))
        if self._references:
            torch._foreach_add_(self._references, torch.split(mean, self._sizes))

    def adopt(self) -> None:
        if self._references:
            torch._foreach_add_(self._references, torch.split(self._mean(), self._sizes))
        torch._foreach_copy_(self._xs, self._references or torch.split(self._mean(), self._sizes))

    def _mean(self) -> Tensor:
        """As wide as x, so that what is made of it is not rounded again."""
        return self._in[:-1].to(self._xs[0].dtype)


def gathers(xs: Sequence[Tensor]) -> bool:
    """Whether these are better handled together; what is large is busy for longer than it takes to launch, and would
    need a temporary of its size."""
    return xs[0].is_cuda and len(xs) > 1 and sum(map(len, xs)) <= GPU_CHUNK


class Piece(NamedTuple):
    """A contiguous piece of x and, of the same length, what belongs to it."""

    x: Tensor
    reference: Tensor | None  # with a narrower wire
    sent: Tensor
    mean: Tensor
