"""Connect: from the environment that torchrun sets (or a single process) to a `TorchComm`.

all ranks: where am I (host, address, port) -> everybody knows everybody -> process groups, in one order everywhere
"""

import gc
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # its default arguments would hold a group that exists already
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from .errors import BadInput, LostPeer, OffbeatError, torch_story
from .gather import gather_json
from .layout import Layout, Ranks
from .peers import Peers, listen
from .strategy import Strategy
from .torch_comm import TorchComm
from .two_hops import TwoHops, lanes_beside

LOOPBACK = "127.0.0.1"
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PEER_SECONDS = 60.0  # a peer that is silent in an exchange for so long is lost; the others carry on
CLOSING_SECONDS = 1.0  # for connections to be closed, at most


@dataclass
class ProcessGroups:
    """The process groups that were made for this connection; those of the user's own script are left alone."""

    timeout_seconds: float
    owns_default: bool = False
    made: list[dist.ProcessGroup] = field(default_factory=list)

    def make(self, ranks: Ranks, backend: str) -> dist.ProcessGroup:
        """All ranks of the run call this, members or not, in the same order."""
        group: dist.ProcessGroup = dist.new_group(
            list(ranks), backend=backend, timeout=timedelta(seconds=self.timeout_seconds)
        )
        if dist.get_rank() in ranks:
            self.made.append(group)
        return group

    def destroy(self) -> None:
        """Close the connections, so that whoever waits for this rank learns at once that it is gone.

        torch closes them with the last reference, and first waits for what is in flight, without holding the
        interpreter's lock: threads may do that for us, and nobody has to wait for a peer that will not come.
        """
        holders: list[list[dist.ProcessGroup]] = []
        while self.made:
            holders.append([self.made.pop()])
            dist.destroy_process_group(holders[-1][0])
        if self.owns_default:
            assert dist.group.WORLD is not None
            holders.append([dist.group.WORLD])
            dist.destroy_process_group()
        gc.collect()  # DistributedDataParallel is part of a reference cycle, and holds its group
        threads = [threading.Thread(target=holder.clear, name="offbeat closing", daemon=True) for holder in holders]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + CLOSING_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


@dataclass
class Connection:
    """A worker's place among the others. `gradient_group` is None where nobody's gradients join its own."""

    comm: TorchComm
    process_groups: ProcessGroups
    gradient_ranks: Ranks
    gradient_group: dist.ProcessGroup | None = None
    control: dist.ProcessGroup | None = None  # all ranks; None: this worker is alone
    averaging: dict[Ranks, dist.ProcessGroup] = field(default_factory=dict)  # the comm's
    two_hops: dict[Ranks, TwoHops] = field(default_factory=dict)  # likewise

    def close(self, *, orderly: bool) -> None:
        """Orderly: after all ranks have agreed to end. Otherwise just let go, so that the others notice at once."""
        try:
            if orderly and self.control is not None:
                dist.barrier(self.control)
        except RuntimeError as error:
            raise LostPeer(None, f"not all ranks came to the end: {torch_story(error)}") from None
        finally:
            self.gradient_group = self.control = None
            self.averaging.clear()
            self.two_hops.clear()
            self.process_groups.destroy()
            self.comm.close()


def connect(
    strategy: Strategy,
    *,
    device: torch.device,
    layout: Layout | None = None,
    seed: int = 0,
    timeout_seconds: float = 1800.0,
    same: Mapping[str, str] | None = None,
) -> Connection:
    """Join the other workers of this run; alone if nothing says that there are others.

    same: what must be equal on all ranks, by what it is.
    """
    process_groups = ProcessGroups(timeout_seconds)
    if not dist.is_initialized() and all(name in os.environ for name in ENVIRONMENT):
        join_process_group(device, timeout_seconds)
        process_groups.owns_default = True
    try:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return _alone(process_groups, layout, seed)
        with ExitStack() as on_failure:
            connection = _connect(strategy, process_groups, device, layout, seed, same or {}, on_failure)
            on_failure.pop_all()
        return connection
    except BaseException:
        process_groups.destroy()
        raise


def _alone(process_groups: ProcessGroups, layout: Layout | None, seed: int) -> Connection:
    layout = _checked(layout or Layout((0,)), 1)
    return Connection(TorchComm(0, layout, seed=seed), process_groups, (0,))


def _connect(
    strategy: Strategy,
    process_groups: ProcessGroups,
    device: torch.device,
    layout: Layout | None,
    seed: int,
    same: Mapping[str, str],
    on_failure: ExitStack,
) -> Connection:
    rank = dist.get_rank()
    listener = on_failure.enter_context(listen()) if strategy.meets_peers else None
    control = process_groups.make(tuple(range(dist.get_world_size())), "gloo")
    here = {
        "host": os.environ.get("GROUP_RANK", "") + socket.gethostname(),
        "address": [own_address(), listener.port] if listener is not None else None,
        "gpu": _gpu(device),
        "key": secrets.token_hex(16),
        "same": {**same, "layout": str(layout and layout.node_of), "seed": str(seed)},
    }
    everyone = gather_json(here, control)
    _check_same([place["same"] for place in everyone])
    layout = _checked(layout or Layout.of_hosts([place["host"] for place in everyone]), len(everyone))
    groups = {ranks: process_groups.make(ranks, "gloo") for ranks in strategy.groups(layout) if len(ranks) > 1}
    everywhere_gpus = all(place["gpu"] is not None for place in everyone)
    two_hops = {
        ranks: TwoHops(groups[ranks], process_groups.make(ranks, "gloo"))
        for ranks in lanes_beside(layout, groups)
        if everywhere_gpus
    }
    mine = strategy.gradient_ranks(layout, rank)
    gradient_groups = {
        ranks: process_groups.make(ranks, gradient_backend([everyone[rank]["gpu"] for rank in ranks]))
        for ranks in sorted({strategy.gradient_ranks(layout, other) for other in layout.ranks})
        if len(ranks) > 1
    }
    peers = None
    if listener is not None:
        check_reachable([place["host"] for place in everyone], [place["address"][0] for place in everyone])
        addresses = {other: (place["address"][0], place["address"][1]) for other, place in enumerate(everyone)}
        key, seconds = bytes.fromhex(everyone[0]["key"]), min(PEER_SECONDS, process_groups.timeout_seconds)
        peers = Peers(rank, addresses, listener, key=key, timeout_seconds=seconds)
    comm = TorchComm(rank, layout, seed=seed, groups=groups, two_hops=two_hops, peers=peers)
    on_failure.callback(comm.close)
    dist.barrier(control)
    comm.restart_clock()
    return Connection(comm, process_groups, mine, gradient_groups.get(mine), control, groups, two_hops)


def join_process_group(device: torch.device, timeout_seconds: float) -> None:
    """torch's default process group, from torchrun's environment; may be destroyed and joined again."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store, rank, workers = _meeting_place(timeout)
        dist.init_process_group(backend, store=store, rank=rank, world_size=workers, timeout=timeout)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise OffbeatError(
            f"rank {os.environ['RANK']} could not join the others at {where}: {torch_story(error)}"
        ) from None


_met: dict[tuple[str, ...], tuple[Any, int, int]] = {}
_meetings = 0


def _meeting_place(timeout: timedelta) -> tuple[Any, int, int]:
    """A store that all ranks share, this rank, and how many there are.

    The store outlives a process group, under torchrun even the process. A second group would find the addresses of
    the first there and call where nobody listens, so each has names of its own.
    """
    global _meetings
    place = tuple(os.environ[name] for name in ENVIRONMENT)
    if place not in _met:
        _met.clear()
        _meetings = 0
        _met[place] = next(rendezvous("env://", timeout=timeout))
    store, rank, workers = _met[place]
    _meetings += 1
    return PrefixStore(f"offbeat/{_meetings}", store), rank, workers


def _checked(layout: Layout, workers: int) -> Layout:
    if layout.workers != workers:
        raise BadInput(f"the layout has {layout.workers} workers and this run has {workers}: both must be the same")
    return layout


def _check_same(claims: list[dict[str, str]]) -> None:
    for rank, claim in enumerate(claims):
        for what, value in claim.items():
            if value != claims[0].get(what):
                raise BadInput(
                    f"the {what} of rank {rank} is {value} and that of rank 0 {claims[0].get(what)}: "
                    f"all ranks must be given the same"
                )


def gradient_backend(gpus: Sequence[str | None]) -> str:
    """NCCL where every rank of the group has a GPU of its own (NCCL refuses two ranks on one), else gloo."""
    own = None not in gpus and len(set(gpus)) == len(gpus)
    return "nccl" if own and dist.is_nccl_available() else "gloo"


def _gpu(device: torch.device) -> str | None:
    """Tells GPUs apart, on all hosts; None for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def own_address() -> str:
    """The address under which the others reach this host: that of the interface towards the first rank."""
    with suppress(OSError):
        where = socket.getaddrinfo(os.environ.get("MASTER_ADDR", LOOPBACK), 9, type=socket.SOCK_DGRAM)
        for family, kind, _, _, numeric in where:
            with socket.socket(family, kind) as probe, suppress(OSError):
                probe.connect(numeric)  # sends nothing; picks the route
                return str(probe.getsockname()[0])
    return LOOPBACK


def check_reachable(hosts: Sequence[str], addresses: Sequence[str]) -> None:
    """Peers on other hosts cannot be met at an address that every host has for itself."""
    for rank, address in enumerate(addresses):
        if len(set(hosts)) > 1 and (address.startswith("127.") or address == "::1"):
            raise BadInput(
                f"rank {rank} on {hosts[rank]} would be called at {address}, which other hosts cannot reach: "
                f"set MASTER_ADDR to an address of the first host that all hosts can reach"
            )
