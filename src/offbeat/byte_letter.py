"""ByteLetter: a letter on a wire of 8 bits.

What travels is the difference from a reference that all ranks share, in whole numbers of a step 2^e that they share
too; every block of numbers has its own. With n ranks no number is above 127 / n, so that their sum fits into 8 bits
again, and it is exact: the corrections of all ranks add up to zero.

    send:     q_i <- round((x_i - r) / 2^e), cut off at +-(127 // n) ;  v_i <- how many doublings of 2^e rank i asks for
    merge:    x_i <- x_i + 2^e (mean q - q_i) ;  r <- r + 2^e mean q ;  e <- e + round(mean v)

Nothing is lost: what is rounded away or cut off stays in x_i - r, and travels later.
"""

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
REACH = 3.0  # times the root mean square of a block is what the numbers should reach, or up to twice that
FIRST_SHARE = 1 / 4096  # of x is the first step, until the ranks have voted
LEAST, MOST = -40.0, 40.0  # e


class ByteLetter(Letter):
    """The numbers of all pieces, the votes of all blocks, and the one that says whether the sender still trains."""

    def __init__(self, pieces: Pieces, momentum: float = 0.0) -> None:
        chunks = [chunk for x, shared in pieces for chunk in in_chunks(x, x.clone() if shared is None else shared)]
        sizes = [len(x) for x, _ in chunks]
        blocks = [-(-size // BLOCK) for size in sizes]
        self._out, self._in = (
            torch.zeros(sum(sizes) + sum(blocks) + 1, dtype=torch.int8, device=chunks[0][0].device) for _ in range(2)
        )
        out, back = (torch.split(buffer, [*sizes, *blocks, 1]) for buffer in (self._out, self._in))
        count = len(chunks)
        self._chunks = [
            Chunk(x, reference, exponents_for(reference), out[k], out[count + k], back[k], back[count + k])
            for k, (x, reference) in enumerate(chunks)
        ]
        self._says_training = False
        self._momentum = Momentum(momentum, [(chunk.x, chunk.reference) for chunk in self._chunks])
        self._ranks = 1

    def send(self, comm: Comm, ranks: Ranks, training: bool) -> Average:
        self._ranks = len(ranks)
        for chunk in self._chunks:
            chunk.write(127 // self._ranks)
        self._say(training)
        return comm.add_up(self._out, ranks, out=self._in)

    def merge(self) -> None:
        self._momentum.push([chunk.merge(self._ranks) for chunk in self._chunks])

    def adopt(self) -> None:
        """The mean of what was sent: what was not, stays, also where nothing was learned meanwhile."""
        self.merge()

    def approach(self, weight: float) -> None:
        raise NotImplementedError("what was rounded away or cut off would be lost")


class Chunk(NamedTuple):
    """Of x and, of the same length, what belongs to it; of each block the exponent and votes."""

    x: Tensor
    reference: Tensor
    exponents: Tensor
    sent: Tensor
    vote: Tensor
    total: Tensor
    all_votes: Tensor

    def write(self, most: int) -> None:
        difference = in_blocks(self.x - self.reference)
        reach = mean_size(difference, len(self.x)).mul_(REACH / most)
        wanted = torch.log2(reach).ceil_()  # minus infinity where nothing differs
        self.vote.copy_(wanted.sub_(self.exponents).clamp_(-most, most))
        difference.mul_(torch.exp2(-self.exponents)[:, None]).round_().clamp_(-most, most)
        self.sent.copy_(self._flat(difference))

    def merge(self, ranks: int) -> Tensor:
        """Returns the mean difference."""
        mean = self._scaled(self.total, ranks)
        self.reference.add_(mean)
        self.x.add_(mean - self._scaled(self.sent, 1))
        self.exponents.add_((self.all_votes / ranks).round_()).clamp_(LEAST, MOST)
        return mean

    def _scaled(self, numbers: Tensor, divisor: int) -> Tensor:
        wide = in_blocks(numbers.to(self.exponents.dtype))
        return self._flat(wide.mul_((torch.exp2(self.exponents) / divisor)[:, None]))

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


def exponents_for(reference: Tensor) -> Tensor:
    """The first, of the same values on all ranks."""
    sizes = mean_size(in_blocks(reference), len(reference))
    return torch.log2(sizes.mul_(FIRST_SHARE)).ceil_().clamp_(LEAST, MOST)
