"""Synchronous SGD: gradients of all ranks are averaged in every backward, by torch's DistributedDataParallel."""

from dataclasses import dataclass
from typing import ClassVar

from ..layout import Layout, Ranks
from ..strategy import Strategy


@dataclass(kw_only=True)
class DDP(Strategy):
    """The baseline: every worker waits for the slowest and for the wire, in every step."""

    name: ClassVar[str] = "ddp"

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        return layout.ranks
