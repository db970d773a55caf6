"""Letter: the buffers of a part of x that travels, and what is done with its mean. A `Parcel` is made of these.

With a narrower dtype on the wire, what travels is not x but its difference from a reference r that all ranks share:
d = x - r, rounded once, and the same rounded d goes into the merge. So x itself is never rounded, and the mean only
by the rounding of a difference of a few steps:

    send:     d <- round(x - r)
    merge:    x <- x + (mean d - d) ;  r <- r + mean d

With momentum m what the ranks have learned together goes on a little, the same on all of them (Nesterov's, between one
average and the next; a difference travels also where nothing is rounded):

    merge:    v <- m v + mean d ;  x <- x + (mean d - d) + m v ;  r <- r + mean d + m v
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .comm import Average, Comm, Work
from .layout import Ranks
from .replica import GPU_CHUNK, add_difference_, subtract_

Pieces = Sequence[tuple[Tensor, Tensor | None]]  # of x, each with its reference where differences travel


def narrows(x: Tensor, wire_dtype: str | None) -> bool:
    """Whether x would be rounded on the wire."""
    wire = x.dtype if wire_dtype is None else getattr(torch, wire_dtype)
    return bool(wire != x.dtype and wire.itemsize <= x.dtype.itemsize)


class Letter:
    """Pieces of x of one dtype, which travel as one; the last number there says whether the sender still trains."""

    def __init__(self, pieces: Pieces, wire_dtype: str | None, momentum: float = 0.0) -> None:
        first, narrow = pieces[0][0], narrows(pieces[0][0], wire_dtype)
        wire = getattr(torch, wire_dtype) if narrow and wire_dtype is not None else first.dtype
        differs = narrow or momentum > 0
        sizes = [len(x) for x, _ in pieces]
        self._out, self._in = (torch.zeros(sum(sizes) + 1, dtype=wire, device=first.device) for _ in range(2))
        buffers = zip(*(torch.split(buffer[:-1], sizes) for buffer in (self._out, self._in)), strict=True)
        self._pieces = [
            Piece(x, (x.clone() if shared is None else shared) if differs else None, sent, mean)
            for (x, shared), (sent, mean) in zip(pieces, buffers, strict=True)
        ]
        self._says_training = False
        self._momentum = Momentum(momentum, [(piece.x, piece.reference) for piece in self._pieces])

    def send(self, comm: Comm, ranks: Ranks, training: bool) -> Average:
        self._take_snapshot()
        self._say(training)
        return comm.average(self._out, ranks, out=self._in)

    def _say(self, training: bool) -> None:
        if training != self._says_training:  # once or twice in a run: it is a kernel of its own
            self._out[-1] = training
            self._says_training = training

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
        self._momentum.push([piece.mean for piece in self._pieces])

    def adopt(self) -> None:
        for x, reference, _, mean in self._pieces:
            if reference is None:
                x.copy_(mean)
            else:
                reference.add_(mean)
                x.copy_(reference)
        self._momentum.push([piece.mean for piece in self._pieces])

    def approach(self, weight: float) -> None:
        """Nothing moves, to the last bit, where the mean is x already."""
        for x, reference, _, mean in self._pieces:
            x.lerp_(mean if reference is None else reference.add_(mean), weight)


class GatheredLetter(Letter):
    """The same with a few kernels for all pieces together: on a GPU, one for each of many small ones takes longer to
    launch than to run. Sums are made in the dtype of x, so that one of 16 bits is rounded less often."""

    def __init__(self, pieces: Pieces, wire_dtype: str | None, momentum: float = 0.0) -> None:
        super().__init__(pieces, wire_dtype, momentum)
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
        self._momentum.push(torch.split(mean, self._sizes))

    def adopt(self) -> None:
        means = torch.split(self._mean(), self._sizes)
        if self._references:
            torch._foreach_add_(self._references, means)
        torch._foreach_copy_(self._xs, self._references or means)
        self._momentum.push(means)

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
    reference: Tensor | None  # where differences travel
    sent: Tensor
    mean: Tensor


class Momentum:
    """Of what is learned from average to average; with 0 there is none, and nothing is kept."""

    def __init__(self, momentum: float, pieces: Pieces) -> None:
        self._momentum = momentum
        kept = [(x, shared) for x, shared in pieces if momentum > 0 and shared is not None]
        self._moved = [tensor for pair in kept for tensor in pair]
        self._velocities = [torch.zeros_like(shared) for _, shared in kept]

    def push(self, means: Sequence[Tensor]) -> None:
        """x and its reference, by the momentum of the mean differences that have come."""
        if self._velocities:
            torch._foreach_mul_(self._velocities, self._momentum)
            torch._foreach_add_(
                self._velocities, [mean.to(v.dtype) for mean, v in zip(means, self._velocities, strict=True)]
            )
            twice = [velocity for velocity in self._velocities for _ in range(2)]
            torch._foreach_add_(self._moved, twice, alpha=self._momentum)
