"""ByteLetter: a letter on a wire of 8 bits.

What travels is the difference from a reference that all ranks share, in whole numbers of a step 2^e that they share
too; every block of numbers has its own. With n ranks no number is above 127 / n, so that their sum fits into 8 bits
again and is exact.

    send:     q_i <- round((x_i - r) / 2^e), cut off at +-(127 // n)
    merge:    x_i <- x_i + 2^e (mean q - q_i) ;  r <- r + 2^e mean q

What is rounded away or cut off stays in x_i - r, and travels later. With each block go two votes: how many doublings of
2^e this rank asks for, and whether half of it would do. One rank that asks is obeyed, in part at least; e falls only if
all agree, by one. So those that have nothing to send cannot silence the others.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .comm import Average, Comm
from .layout import Ranks
from .letter import Letter, Momentum, Pieces
from .replica import in_chunks

MOST_RANKS = 63  # with more, each could say no more than -1, 0 and 1
BLOCK = 1024  # numbers that share a step; a chunk has a whole number of them
REACH = 3.0  # times the root mean square of a block is what the numbers should reach, or up to twice that ...
OUTLIER = 0.5  # ... and of the largest number so much: it is all there after a few turns
FIRST, LEAST = -12, -24  # e, from the largest number of x in the block: at first, until they have voted, and always
OF_ZEROS = -8  # what stands for the exponent of a block of x that is zero


class ByteLetter(Letter):
    """On the wire: the numbers of all chunks, the votes up and down of their blocks, whether something is not finite,
    and whether the sender still trains."""

    def __init__(self, pieces: Pieces, momentum: float = 0.0) -> None:
        chunks = [chunk for x, shared in pieces for chunk in in_chunks(x, x.clone() if shared is None else shared)]
        sizes = [len(x) for x, _ in chunks]
        blocks = [-(-size // BLOCK) for size in sizes]
        lengths = [*sizes, *blocks, *blocks, 1, 1]
        self._out, self._in = (
            torch.zeros(sum(lengths), dtype=torch.int8, device=chunks[0][0].device) for _ in range(2)
        )
        out, back = (torch.split(buffer, lengths) for buffer in (self._out, self._in))
        count = len(chunks)
        self._chunks = []
        for k, (x, reference) in enumerate(chunks):
            size = largest(in_blocks(reference))
            exponents = torch.where(size > 0, torch.frexp(size).exponent, OF_ZEROS).to(size.dtype)
            wires = (Wire(buffer[k], buffer[count + k], buffer[2 * count + k]) for buffer in (out, back))
            self._chunks.append(Chunk(x, reference, exponents + FIRST, exponents + LEAST, *wires))
        self._broken, self._some_broken = out[-2], back[-2]
        self._momenta = [Momentum(momentum, [(chunk.x, chunk.reference)]) for chunk in self._chunks]
        self._says_training = False
        self._ranks = 1

    def send(self, comm: Comm, ranks: Ranks, training: bool) -> Average:
        self._ranks = len(ranks)
        broken = [chunk.write(127 // self._ranks) for chunk in self._chunks]
        self._broken.copy_(torch.stack(broken).any())
        self._say(training)
        return comm.add_up(self._out, ranks, out=self._in)

    def merge(self) -> None:
        poison = torch.where(self._some_broken > 0, math.nan, 0.0)  # so that all see it, as with any other wire
        for chunk, momentum in zip(self._chunks, self._momenta, strict=True):
            momentum.push([chunk.merge(self._ranks, poison)])

    def adopt(self) -> None:
        """The mean of what was sent: what was not, stays, also where nothing was learned meanwhile."""
        self.merge()

    def approach(self, weight: float) -> None:
        raise NotImplementedError("what was rounded away or cut off would be lost")


class Wire(NamedTuple):
    """What travels of a chunk: of this rank, or of all in the sum."""

    numbers: Tensor
    up: Tensor
    down: Tensor


class Chunk(NamedTuple):
    """Of x and, of the same length, its reference; of each block the exponent of its step, and the least it may be."""

    x: Tensor
    reference: Tensor
    exponents: Tensor
    least: Tensor
    own: Wire
    sum: Wire

    def write(self, most: int) -> Tensor:
        """Returns whether something is not finite: what is sent then does not matter."""
        difference = in_blocks(self.x - self.reference)
        reach = torch.maximum(mean_size(difference, len(self.x)).mul_(REACH), largest(difference).mul_(OUTLIER))
        broken = reach.isfinite().logical_not_()
        wanted = torch.log2(reach.div_(most)).ceil_().sub_(self.exponents)  # minus infinity where nothing differs
        wanted.nan_to_num_(nan=0.0, posinf=0.0, neginf=-1.0)
        self.own.up.copy_(wanted.clamp(0, most))
        self.own.down.copy_(wanted < 0)
        difference.mul_(torch.exp2(-self.exponents)[:, None]).round_().clamp_(-most, most)
        self.own.numbers.copy_(self._flat(difference.nan_to_num_(nan=0.0)))
        return broken.any()

    def merge(self, ranks: int, poison: Tensor) -> Tensor:
        """Returns the mean difference."""
        step = torch.exp2(self.exponents)
        mean = self._times(self.sum.numbers, step / ranks)
        self.reference.add_(mean)
        self.x.sub_(self._times(self.own.numbers, step + poison).sub_(mean))  # exactly zero where both are the same
        up, down = torch.ceil(self.sum.up / ranks), self.sum.down == ranks
        self.exponents.copy_(torch.maximum(self.exponents + up - down.to(up.dtype), self.least))
        return mean

    def _times(self, numbers: Tensor, steps: Tensor) -> Tensor:
        wide = in_blocks(numbers.to(steps.dtype))
        return self._flat(wide.mul_(steps[:, None]))

    def _flat(self, blocks: Tensor) -> Tensor:
        return blocks.view(-1)[: len(self.x)]


def in_blocks(numbers: Tensor) -> Tensor:
    """[blocks, BLOCK], the last one filled up with zeros, in float32 or wider."""
    wide = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
    return F.pad(wide, (0, missing)).view(-1, BLOCK) if (missing := -len(wide) % BLOCK) else wide.view(-1, BLOCK)


def mean_size(blocks: Tensor, numbers: int) -> Tensor:
    """The root mean square of each block; so many numbers are in all."""
    squares: Tensor = torch.linalg.vector_norm(blocks, dim=1).square_().div_(BLOCK)
    squares[-1] *= BLOCK / (numbers - BLOCK * (len(blocks) - 1))  # what the last one is filled up with does not count
    return squares.sqrt_()


def largest(blocks: Tensor) -> Tensor:
    """Of each block, regardless of sign; the same to the last bit on every machine. (A norm of order infinity takes
    twenty times as long.)"""
    return torch.maximum(blocks.amax(1), -blocks.amin(1))
