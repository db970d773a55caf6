"""Connect: from the environment that torchrun sets (or a single process) to a `TorchComm`.

all ranks: where am I (host, address, port) -> everybody knows everybody -> process groups, in one order everywhere
"""

import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from .errors import BadInput, OffbeatError
from .gather import gather_json
from .layout import Layout, Ranks
from .peers import Peers, listen
from .strategy import Strategy
from .torch_comm import TorchComm

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Connection:
    """A worker's place among the others. `gradient_group` is None where nobody's gradients join its own."""

    comm: TorchComm
    gradient_ranks: Ranks
    gradient_group: dist.ProcessGroup | None
    owns_process_group: bool

    def close(self, *, orderly: bool) -> None:
        """Orderly: after all ranks have agreed to end. Otherwise just let go, so that the others notice at once."""
        if orderly and self.comm.layout.workers > 1:
            dist.barrier()
        self.comm.close()
        if orderly and self.owns_process_group:
            dist.destroy_process_group()


def connect(
    strategy: Strategy,
    *,
    device: torch.device,
    layout: Layout | None = None,
    seed: int = 0,
    timeout_seconds: float = 300.0,
) -> Connection:
    """Join the other workers of this run; alone if nothing says that there are others."""
    owns = False
    if not dist.is_initialized() and all(name in os.environ for name in ENVIRONMENT):
        join_process_group(device, timeout_seconds)
        owns = True
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Connection(TorchComm(0, Layout((0,)), seed=seed), (0,), None, owns)

    rank = dist.get_rank()
    control = _group(tuple(range(dist.get_world_size())), "gloo", timeout_seconds)
    listener = listen() if strategy.meets_peers else None
    here = {
        "host": os.environ.get("GROUP_RANK", "") + socket.gethostname(),
        "address": [own_address(), listener.getsockname()[1]] if listener is not None else None,
        "key": secrets.token_hex(16),
    }
    everyone = gather_json(here, control)
    layout = layout or Layout.of_hosts([place["host"] for place in everyone])
    if layout.workers != len(everyone):
        raise BadInput(
            f"the layout has {layout.workers} workers and this run has {len(everyone)}: both must be the same"
        )
    groups = {ranks: _group(ranks, "gloo", timeout_seconds) for ranks in strategy.groups(layout) if len(ranks) > 1}
    mine = strategy.gradient_ranks(layout, rank)
    gradient_groups = {
        ranks: _group(ranks, _gradient_backend(device, layout), timeout_seconds)
        for ranks in sorted({strategy.gradient_ranks(layout, other) for other in layout.ranks})
        if len(ranks) > 1
    }
    peers = None
    if listener is not None:
        addresses = {other: (place["address"][0], place["address"][1]) for other, place in enumerate(everyone)}
        peers = Peers(rank, addresses, listener, key=bytes.fromhex(everyone[0]["key"]), timeout_seconds=timeout_seconds)
    comm = TorchComm(rank, layout, seed=seed, groups=groups, peers=peers)
    dist.barrier(control)
    comm.restart_clock()
    return Connection(comm, mine, gradient_groups.get(mine), owns)


def join_process_group(device: torch.device, timeout_seconds: float) -> None:
    """torch's default process group, from torchrun's environment."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        first = str(error).splitlines()[0]
        raise OffbeatError(f"rank {os.environ['RANK']} could not join the others at {where}: {first}") from None


def _gradient_backend(device: torch.device, layout: Layout) -> str:
    """NCCL where every rank of a node has a GPU of its own (NCCL refuses two ranks on one), else gloo."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return "gloo"
    most = max(len(layout.on(node)) for node in range(layout.nodes))
    return "nccl" if most <= torch.cuda.device_count() else "gloo"


def _group(ranks: Ranks, backend: str, timeout_seconds: float) -> dist.ProcessGroup:
    """All ranks of the run call this, members or not, in the same order."""
    group: dist.ProcessGroup = dist.new_group(list(ranks), backend=backend, timeout=timedelta(seconds=timeout_seconds))
    return group


def own_address() -> str:
    """The address under which the others reach this host: that of the interface towards the first rank."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # sends nothing; picks the route
        return str(probe.getsockname()[0])
    return "127.0.0.1"
