"""measured_collectives: how long real ones take, among local processes or under torchrun, fitted.

Local processes are of one kind each, so that one that fails takes no other along. Under torchrun all kinds share the
launcher's: there a failure ends the measurement, since the ranks would be at different places.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from ..errors import BadInput, OffbeatError
from ..layout import Layout
from .failed import Failed
from .fit import Fitted, Point, fit
from .timed_collectives import time_all_reduces, time_swaps, time_two_levels
from .two_level import TwoLevel, TwoLevelPoint, fit_two_level

SIZES = tuple(1 << power for power in range(10, 27, 2))  # 1 KiB to 64 MiB
PATIENCE = timedelta(seconds=60)
ALL_REDUCE, HIERARCHICAL, SWAP = "all-reduce", "hierarchical all-reduce", "swap"

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is measured, so many points, of so many


@dataclass(frozen=True)
class Collectives:
    """As they were measured; None where they were not. `failed`: what could not be, and why."""

    all_reduce: Fitted | None = None
    hierarchical: TwoLevel | None = None  # takes two nodes of two workers at least
    swap: Fitted | None = None
    failed: Mapping[str, str] = field(default_factory=dict)


def measured_collectives(
    workers: int, device: torch.device, *, sizes: Sequence[int] = SIZES, progress: Progress | None = None
) -> Collectives:
    """Among `workers` processes on this machine; on GPUs one each, with NCCL. Nodes are groups of them."""
    _check(workers, device)
    note: Progress = progress or (lambda _what, _done, _wanted: None)
    layouts = splits(workers)
    return _fitted(
        lambda: measured_all_reduces(workers, device, sizes=sizes, progress=partial(note, "all-reduces")),
        lambda: measured_two_levels(layouts, device, sizes=sizes, progress=partial(note, "two levels")),
        lambda: measured_swaps(workers, device, sizes=sizes, progress=partial(note, "swaps")),
        bool(layouts),
    )


def collectives_of_launcher(layout: Layout, device: torch.device, *, sizes: Sequence[int] = SIZES) -> Collectives:
    """Of the default group, on every rank of it; where it has one node, nodes are groups of its workers."""
    even = len({len(layout.on(node)) for node in range(layout.nodes)}) == 1
    if layout.nodes == 1:
        layouts = splits(layout.workers)
    else:
        layouts = [layout] if even and layout.nodes < layout.workers else []
    return Collectives(
        fit(time_all_reduces(sizes, device)),
        fit_two_level(time_two_levels(sizes, device, layouts)) if layouts else None,
        fit(time_swaps(sizes, device), ["swap"]),
    )


def splits(workers: int) -> list[Layout]:
    """All ways to make nodes of as many workers each, more than one of more than one."""
    return [Layout.even(workers, nodes) for nodes in range(2, workers // 2 + 1) if workers % nodes == 0]


def measured_all_reduces(
    workers: int,
    device: torch.device,
    *,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """Among 2, 4, ... `workers` processes on this machine."""
    _check(workers, device)
    counts = [*(1 << power for power in range(1, (workers - 1).bit_length())), workers]
    points: list[Point] = []
    for ranks in counts:
        points += [Point(*row) for row in _among(ranks, device.type, partial(time_all_reduces, sizes))]
        if progress is not None:
            progress(len(points), len(counts) * len(sizes))
    return points


def measured_two_levels(
    layouts: Sequence[Layout],
    device: torch.device,
    *,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[int, int], None] | None = None,
) -> list[TwoLevelPoint]:
    """Among processes on this machine, nodes being groups of them."""
    points: list[TwoLevelPoint] = []
    for layout in layouts:
        rows = _among(layout.workers, device.type, partial(time_two_levels, sizes, layouts=[layout]))
        points += [TwoLevelPoint(*row) for row in rows]
        if progress is not None:
            progress(len(points), len(layouts) * len(sizes))
    return points


def measured_swaps(
    workers: int,
    device: torch.device,
    *,
    sizes: Sequence[int] = SIZES,
    progress: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """Among `workers` processes on this machine, all at once, in pairs."""
    points = [Point(*row) for row in _among(workers, device.type, partial(time_swaps, sizes))]
    if progress is not None:
        progress(len(points), len(sizes))
    return points


def _fitted(
    all_reduces: Callable[[], list[Point]],
    two_levels: Callable[[], list[TwoLevelPoint]],
    swaps: Callable[[], list[Point]],
    has_nodes: bool,
) -> Collectives:
    failed: dict[str, str] = {}

    def tried(name: str, measure: Callable[[], T]) -> T | None:
        try:
            return measure()
        except Exception as error:
            failed[name] = Failed.of(error).why
            return None

    all_reduce = tried(ALL_REDUCE, lambda: fit(all_reduces()))
    hierarchical = tried(HIERARCHICAL, lambda: fit_two_level(two_levels())) if has_nodes else None
    swap = tried(SWAP, lambda: fit(swaps(), ["swap"]))
    return Collectives(all_reduce, hierarchical, swap, failed)


def _check(workers: int, device: torch.device) -> None:
    if workers < 2:
        raise BadInput(f"--workers {workers} does not fit: an all-reduce takes at least 2")
    if device.type == "cuda" and torch.cuda.device_count() < workers:
        raise BadInput(f"--workers {workers} does not fit: this machine has {torch.cuda.device_count()} GPUs")


def _among(ranks: int, kind: str, measure: Callable[..., Sequence[Any]]) -> list[list[Any]]:
    """What `measure` finds on the first of so many ranks, as rows."""
    with tempfile.TemporaryDirectory() as folder:
        context = spawn(_worker, (ranks, kind, measure, folder), nprocs=ranks, join=False)  # type: ignore[no-untyped-call]
        try:
            while not context.join():
                pass
        except ProcessRaisedException as error:
            raise OffbeatError(f"among {ranks} workers: {str(error).strip().splitlines()[-1]}") from error
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
                process.join()
        rows: list[list[Any]] = json.loads((Path(folder) / "points").read_text())
    return rows


def _worker(rank: int, ranks: int, kind: str, measure: Callable[..., Sequence[Any]], folder: str) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=FileStore(f"{folder}/store", ranks),
        rank=rank,
        world_size=ranks,
        timeout=PATIENCE,
    )
    try:
        points = measure(device=device)
        if rank == 0:
            (Path(folder) / "points").write_text(json.dumps(points))
        dist.barrier()
    finally:
        dist.destroy_process_group()
