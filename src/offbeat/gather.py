"""Gather: every rank's JSON value on every rank, over torch.distributed; nothing is ever unpickled."""

import json
from typing import Any

import torch
import torch.distributed as dist


def gather_json(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all ranks of the group (of all ranks, if None), in order. Blocks; all ranks must call it."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = data
    parts = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [json.loads(bytes(part[: int(size)].numpy()).decode()) for part, size in zip(parts, sizes, strict=True)]
