"""A worker as a torchft replica group of one: what both of torchft's methods need around them.

rank 0: lighthouse -> all ranks learn its address -> each: own store, own manager, gloo between all of them
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from offbeat.connect import own_address

TICK_MILLISECONDS = 10  # of the lighthouse; each average begins with a quorum, and its default of 100 is a long wait


@contextmanager
def replica(setup, *, averages: int) -> Iterator[Manager]:
    """averages: how many there must have been at the end; without them it would be fast for nothing."""
    here, workers, timeout = own_address(), setup.layout.workers, timedelta(seconds=setup.timeout_seconds)
    with ExitStack() as closing:
        lighthouse_address = None
        if setup.rank == 0:
            lighthouse = LighthouseServer(bind=f"{here}:0", min_replicas=workers, quorum_tick_ms=TICK_MILLISECONDS)
            closing.callback(lighthouse.shutdown)
            lighthouse_address = f"http://{here}:{lighthouse.address().rpartition(':')[2]}"
        said = [lighthouse_address]
        dist.broadcast_object_list(said, src=0)
        store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
        group = ProcessGroupGloo(timeout=timeout)
        manager = Manager(
            pg=group,
            load_state_dict=None,  # nobody joins late
            state_dict=None,
            min_replica_size=workers,
            use_async_quorum=False,  # required by DiLoCo; LocalSGD asks for a quorum and needs it at once
            timeout=timeout,
            quorum_timeout=timeout,
            connect_timeout=timeout,
            rank=0,
            world_size=1,
            store_addr=here,
            store_port=store.port,
            lighthouse_addr=said[0],
            replica_id=f"replica_{setup.rank}",
            hostname=here,
            init_sync=False,  # the same seed everywhere
            max_retries=0,  # an average that failed is an error, not a step without communication
        )
        closing.callback(group.shutdown)
        closing.callback(manager.shutdown)
        yield manager
        dist.barrier()  # nobody closes what another one still talks to
    if manager.current_step() != averages:
        raise RuntimeError(f"torchft averaged {manager.current_step()} times in {setup.steps} steps, not {averages}")
