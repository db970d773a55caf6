"""Two hops: the sum of a short message over many ranks, by way of one rank for each share of it.

    every rank -> every other:  the share that is theirs to add up
    every rank -> every other:  the sum of its own share

On a ring a message is passed on 2 (p - 1) times, and each time waits behind whatever else is on that wire; here twice,
with as many bytes. A share is added up by one rank and rounded once, so all ranks have the same bits.

It is for lanes beside the one that all ranks share in order: there the large parts travel, one after another, and what
an average takes is to tell how fast the wire is.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .layout import Layout, Ranks

SHORT_NBYTES = 512 << 10
FEWEST_RANKS = 3  # with two a ring has two hops as well


class TwoHops(NamedTuple):
    """Hops of a lane that begin in different threads each need an order of their own: two process groups."""

    outward: dist.ProcessGroup
    back: dist.ProcessGroup

    def begin(self, x: Tensor) -> tuple[dist.Work, Callable[[], None]]:
        """Add x, a vector on the host, up over the ranks, in place. Returns the first hop, and what waits for it and
        makes the second."""
        ranks = dist.get_world_size(self.outward)
        share = -(-len(x) // ranks)
        sent, received = torch.zeros(ranks * share, dtype=x.dtype), torch.empty(ranks, share, dtype=x.dtype)
        sent[: len(x)] = x
        first: dist.Work = dist.all_to_all_single(received.view(-1), sent, group=self.outward, async_op=True)

        def finish() -> None:
            first.wait()
            wide = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
            own = received.sum(0, dtype=wide).to(x.dtype)
            dist.all_to_all_single(sent, own.repeat(ranks), group=self.back)
            x.copy_(sent[: len(x)])

        return first, finish


def lanes_beside(layout: Layout, groups: Iterable[Ranks]) -> list[Ranks]:
    """Of all ranks, but in another order than theirs."""
    return [
        ranks
        for ranks in groups
        if ranks != layout.ranks and len(ranks) >= FEWEST_RANKS and tuple(sorted(ranks)) == layout.ranks
    ]


def is_short(x: Tensor) -> bool:
    return x.ndim == 1 and x.nbytes <= SHORT_NBYTES
