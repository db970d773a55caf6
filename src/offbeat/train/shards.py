"""Shard: which samples one worker sees, in which order. A function of its five numbers alone.

Each epoch has one permutation of all samples, drawn from (seed, epoch) and shared by all ranks;
rank r of w takes every w-th of it, starting at r.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput


@lru_cache(maxsize=64)  # workers that run apart are rarely more than a few epochs apart
def permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of all samples in an epoch, [samples]; shared, so not to be written to."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The batches of one rank, step 0, 1, 2, ... through as many epochs as are asked for."""

    samples: int  # of all workers together
    rank: int
    workers: int
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.workers:
            raise BadInput(f"rank {self.rank} of {self.workers} workers: ranks are 0 to workers - 1")
        if self.batch < 1 or self.seed < 0:
            raise BadInput(f"batch {self.batch} must be at least 1, and seed {self.seed} at least 0")
        if self.samples < self.workers:
            raise BadInput(
                f"{self.samples} samples leave some of {self.workers} workers without any: "
                f"use {self.samples} workers or fewer, or more samples"
            )

    @cached_property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch; a shard smaller than a batch is one batch. Ranks may differ by one."""
        return max(1, len(range(self.rank, self.samples, self.workers)) // self.batch)

    @cached_property
    def size_of_batches(self) -> int:
        """All are of one size: `batch`, or that of a smaller shard."""
        return min(self.batch, len(range(self.rank, self.samples, self.workers)))

    def indices(self, step: int) -> Tensor:
        """The samples of a step, int64 [batch] (or the whole of a shard smaller than `batch`)."""
        epoch, index = divmod(step, self.steps_per_epoch)
        own = permutation(self.samples, self.seed, epoch)[self.rank :: self.workers]
        return own[index * self.batch : (index + 1) * self.batch].clone()


def stacked_indices(shards: Sequence[Shard], steps: Sequence[int]) -> Tensor:
    """`shard.indices(step)` of several shards of the same data, as one tensor [shards, batch], in a few operations."""
    first = shards[0]
    ranks = torch.tensor([shard.rank for shard in shards])
    epochs, numbers = zip(
        *(divmod(step, s.steps_per_epoch) for s, step in zip(shards, steps, strict=True)), strict=True
    )
    within = torch.tensor(numbers)[:, None] * first.batch + torch.arange(first.size_of_batches)
    positions = ranks[:, None] + first.workers * within
    if len(set(epochs)) == 1:
        return permutation(first.samples, first.seed, epochs[0])[positions]
    orders = {epoch: permutation(first.samples, first.seed, epoch) for epoch in set(epochs)}
    return torch.stack([orders[epoch][row] for epoch, row in zip(epochs, positions, strict=True)])
