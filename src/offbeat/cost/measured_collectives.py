"""measured_all_reduces: how long real all-reduces take, among local processes or under torchrun."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from ..errors import BadInput, OffbeatError
from .fit import Point

SIZES = tuple(1 << power for power in range(10, 27, 2))  # 1 KiB to 64 MiB
CALLS, CALL_SECONDS = 15, 1.0  # per size: so many, or as many as fit, but 3
PATIENCE = timedelta(seconds=60)

Progress = Callable[[int, int], None]  # points measured, points wanted


def measured_all_reduces(
    workers: int, device: torch.device, *, sizes: Sequence[int] = SIZES, progress: Progress | None = None
) -> list[Point]:
    """Among 2, 4, ... `workers` processes on this machine; on GPUs one each, with NCCL."""
    if workers < 2:
        raise BadInput(f"--workers {workers} does not fit: an all-reduce takes at least 2")
    if device.type == "cuda" and torch.cuda.device_count() < workers:
        raise BadInput(f"--workers {workers} does not fit: this machine has {torch.cuda.device_count()} GPUs")
    counts = [*(1 << power for power in range(1, (workers - 1).bit_length())), workers]
    points: list[Point] = []
    for ranks in counts:
        points += _among(ranks, device.type, sizes)
        if progress is not None:
            progress(len(points), len(counts) * len(sizes))
    return points


def time_all_reduces(sizes: Sequence[int], device: torch.device) -> list[Point]:
    """Of the default group, on every rank of it; the slowest rank counts."""
    points = []
    for nbytes in sizes:
        x = torch.ones(max(1, nbytes // 4), device=device)
        seconds = _median_seconds(x)
        slowest = torch.tensor([seconds], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        points.append(Point(dist.get_world_size(), x.nbytes, float(slowest)))
    return points


def _median_seconds(x: Tensor) -> float:
    """All ranks must make as many calls: the first ones say how many."""
    took = [_once(x) for _ in range(3)]
    share = torch.tensor([CALL_SECONDS / max(took[1:])], dtype=torch.float64, device=x.device)
    dist.all_reduce(share, op=dist.ReduceOp.MIN)
    took = [_once(x) for _ in range(max(3, min(CALLS, int(share))))]
    return statistics.median(took)


def _once(x: Tensor) -> float:
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(x)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start


def _among(ranks: int, kind: str, sizes: Sequence[int]) -> list[Point]:
    with tempfile.TemporaryDirectory() as folder:
        context = spawn(_worker, (ranks, kind, tuple(sizes), folder), nprocs=ranks, join=False)  # type: ignore[no-untyped-call]
        try:
            while not context.join():
                pass
        except ProcessRaisedException as error:
            raise OffbeatError(
                f"all-reduces among {ranks} workers failed: {str(error).strip().splitlines()[-1]}"
            ) from error
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()
        rows = (Path(folder) / "points").read_text().split()
    return [Point(int(p), int(n), float(t)) for p, n, t in (row.split(",") for row in rows)]


def _worker(rank: int, ranks: int, kind: str, sizes: tuple[int, ...], folder: str) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=FileStore(f"{folder}/store", ranks),
        rank=rank,
        world_size=ranks,
        timeout=PATIENCE,
    )
    try:
        points = time_all_reduces(sizes, device)
        if rank == 0:
            text = "\n".join(f"{point.ranks},{point.nbytes},{point.seconds!r}" for point in points)
            (Path(folder) / "points").write_text(text)
        dist.barrier()
    finally:
        dist.destroy_process_group()
