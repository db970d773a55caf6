"""Gather: every rank's JSON value on every rank or on the first, over torch.distributed; nothing is ever unpickled."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_json(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values of all ranks of the group (of all ranks, if None), in order. Blocks; all ranks must call it."""
    padded, sizes = _pad(value, group)
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return _read(parts, sizes)


def collect_json(value: Any) -> list[Any]:
    """The values of all ranks, in order, on rank 0, and nothing on the others. Blocks; all ranks must call it."""
    padded, sizes = _pad(value, None)
    parts = [torch.empty_like(padded) for _ in sizes] if dist.get_rank() == 0 else None
    dist.gather(padded, parts, dst=0)
    return _read(parts, sizes) if parts is not None else []


def _pad(value: Any, group: dist.ProcessGroup | None) -> tuple[Tensor, list[int]]:
    """The value as bytes, padded to the longest of all ranks, and the sizes of all."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
    padded[: len(data)] = data
    return padded, [int(size) for size in sizes]


def _read(parts: list[Tensor], sizes: list[int]) -> list[Any]:
    return [json.loads(bytes(part[:size].numpy()).decode()) for part, size in zip(parts, sizes, strict=True)]
