"""What each rank does to time a collective: all make the same calls; the slowest rank counts.

All-reduces and the two phases of a hierarchical one are torch's, swaps are those of Offbeat's peers: over TCP between
hosts, over sockets and shared memory on one, from a GPU by way of pinned memory.
"""

import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..comm import Steps
from ..connect import check_reachable, own_address
from ..gather import gather_json
from ..layout import Layout
from ..peers import Peers, listen
from ..torch_comm import TorchComm
from .fit import Point
from .two_level import TwoLevelPoint

CALLS, CALL_SECONDS = 15, 1.0  # per size: so many, or as many as fit, but 3
WAIT_SECONDS = 60.0  # for a peer

# torch 2.13 has other names for them, and warns of these
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def time_all_reduces(sizes: Sequence[int], device: torch.device) -> list[Point]:
    """Of the default group, on every rank of it."""
    points = []
    for nbytes in sizes:
        x = torch.ones(max(1, nbytes // 4), device=device)
        points.append(Point(dist.get_world_size(), x.nbytes, _seconds(partial(dist.all_reduce, x), device)))
    return points


def time_two_levels(sizes: Sequence[int], device: torch.device, layouts: Sequence[Layout]) -> list[TwoLevelPoint]:
    """On nodes of as many ranks each."""
    points: list[TwoLevelPoint] = []
    for layout in layouts:
        with _groups(layout) as (inside, between):
            points += [_two_level(nbytes, device, layout, inside, between) for nbytes in sizes]
    return points


def time_swaps(sizes: Sequence[int], device: torch.device) -> list[Point]:
    """Of all ranks at once, in pairs: each with the one half of them further on, so on another node if there is one."""
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    with _comm() as comm:
        peer = None if rank >= 2 * half else rank + half if rank < half else rank - half  # the odd one only waits
        points = []
        for nbytes in sizes:
            x = torch.ones(max(1, nbytes // 4), device=device)
            out = torch.empty_like(x)

            def exchange(x: Tensor = x, out: Tensor = out) -> None:
                if peer is not None:
                    comm.run(_swap(comm, x, peer, out))

            points.append(Point(2, x.nbytes, _seconds(exchange, device)))
        dist.barrier()  # none goes while another still swaps
    return points


def _swap(comm: TorchComm, x: Tensor, peer: int, out: Tensor) -> Steps:
    yield comm.swap(x, peer, out)


def _two_level(
    nbytes: int, device: torch.device, layout: Layout, inside: dist.ProcessGroup, between: dist.ProcessGroup
) -> TwoLevelPoint:
    per_node = layout.workers // layout.nodes
    part = torch.ones(-(-max(1, nbytes // 4) // per_node), device=device)
    x = torch.ones(per_node * part.numel(), device=device)

    def within_nodes() -> None:
        _reduce_scatter(part, x, group=inside)
        _all_gather(x, part, group=inside)

    def across_nodes() -> None:
        dist.all_reduce(part, group=between)

    def whole() -> None:
        _reduce_scatter(part, x, group=inside)
        across_nodes()
        _all_gather(x, part, group=inside)

    times = [_seconds(call, device) for call in (within_nodes, across_nodes, whole)]
    return TwoLevelPoint(per_node, layout.nodes, x.nbytes, *times)


@contextmanager
def _groups(layout: Layout) -> Iterator[tuple[dist.ProcessGroup, dist.ProcessGroup]]:
    """This rank's: its node, and those of the same place on other nodes. All ranks make all groups, in one order."""
    nodes = [layout.on(node) for node in range(layout.nodes)]
    own: list[Any] = []
    made = []
    for side in (nodes, [*zip(*nodes, strict=True)]):
        for ranks in side:
            group = dist.new_group(list(ranks))
            made.append(group)
            if dist.get_rank() in ranks:
                own.append(group)
    try:
        yield own[0], own[1]
    finally:
        dist.barrier()
        for group in made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)


@contextmanager
def _comm() -> Iterator[TorchComm]:
    """Of all ranks, with peers and nothing else."""
    rank, control = dist.get_rank(), dist.new_group(backend="gloo")
    try:
        with listen() as listener:
            here = {"host": host_name(), "address": [own_address(), listener.port], "key": secrets.token_hex(16)}
            everyone = gather_json(here, control)
            check_reachable([place["host"] for place in everyone], [place["address"][0] for place in everyone])
            addresses = {other: (place["address"][0], place["address"][1]) for other, place in enumerate(everyone)}
            key = bytes.fromhex(everyone[0]["key"])
            peers = Peers(rank, addresses, listener, key=key, timeout_seconds=WAIT_SECONDS)
            comm = TorchComm(rank, Layout.of_hosts([place["host"] for place in everyone]), peers=peers)
            try:
                yield comm
            finally:
                comm.close()
    finally:
        dist.destroy_process_group(control)


def host_name() -> str:
    """As the launcher tells hosts apart."""
    return os.environ.get("GROUP_RANK", "") + socket.gethostname()


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median; all ranks must make as many calls: the first ones say how many."""
    took = [_once(call, device) for _ in range(3)]
    share = torch.tensor([CALL_SECONDS / max(took[1:])], dtype=torch.float64, device=device)
    dist.all_reduce(share, op=dist.ReduceOp.MIN)
    took = [_once(call, device) for _ in range(max(3, min(CALLS, int(share))))]
    slowest = torch.tensor([statistics.median(took)], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _once(call: Callable[[], object], device: torch.device) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
