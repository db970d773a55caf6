"""shard: the part of a dataset that is this worker's own, for the user's own loop."""

import os
from collections.abc import Sized
from typing import TypeVar

import torch.distributed as dist
from torch.utils.data import Dataset, Subset

from .errors import BadInput

T_co = TypeVar("T_co", covariant=True)


def shard(dataset: Dataset[T_co]) -> Subset[T_co]:
    """Every n-th sample of a map-style dataset, from this rank on; all of it where there is one worker.

    The parts of all ranks are disjoint, cover the dataset and differ in size by at most one; order and shuffling
    are left to the DataLoader.
    """
    rank, workers = place()
    if not isinstance(dataset, Sized):
        raise BadInput(f"{type(dataset).__name__} has no len(): shard needs a map-style dataset")
    if len(dataset) < workers:
        raise BadInput(
            f"{len(dataset)} samples leave some of {workers} workers without any: "
            f"use {len(dataset)} workers or fewer, or more samples"
        )
    return Subset(dataset, range(rank, len(dataset), workers))


def place() -> tuple[int, int]:
    """This worker's rank and how many there are: of torch's process group, else from torchrun, else alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
