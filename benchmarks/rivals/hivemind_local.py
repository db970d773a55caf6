"""hivemind.Optimizer with local updates: parameters are averaged in the background, about every `every` steps.

Best here: fp16 on the wire, groups of all workers, the shortest matchmaking that finds them (1 s): `every` steps must
take well over that second. A local step waits for a round that is under way, as its delta rule demands.
"""

from contextlib import ExitStack
from pathlib import Path
from runpy import run_path
from typing import Literal

import hivemind
import torch.distributed as dist
from hivemind.compression import Float16Compression, NoCompression

from offbeat.connect import own_address

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]
COMPRESSION = {"none": NoCompression, "fp16": Float16Compression}


@rival
def train(
    model,
    optimizer,
    setup,
    *,
    every=16,
    matchmaking_seconds=1.0,
    averaging_seconds=15.0,
    compression: Literal["none", "fp16"] = "fp16",
):
    workers = setup.layout.workers
    with ExitStack() as closing:
        dht = meet(setup.rank)
        closing.callback(dht.shutdown)
        stepper = hivemind.Optimizer(
            dht=dht,
            run_id="rival",
            optimizer=optimizer,
            batch_size_per_step=1,  # counts steps, not samples
            target_batch_size=every * workers,
            use_local_updates=True,
            delay_state_averaging=True,
            state_averaging_compression=COMPRESSION[compression](),
            matchmaking_time=matchmaking_seconds,
            averaging_timeout=averaging_seconds,  # of a round, not of the run: who finds no group trains on after it
            next_chunk_timeout=5.0,
            averager_opts={"target_group_size": workers, "request_timeout": matchmaking_seconds / 2},
            tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.5, "max_refresh_period": 1.0},
        )
        closing.callback(lambda: stepper.shutdown() if stepper.is_alive() else None)
        dist.barrier()
        yield model, stepper
        epochs = stepper.local_epoch
        stepper.shutdown()  # says goodbye, so that those who are behind do not wait for this one
        dist.barrier()
    if epochs == 0 and setup.steps > 2 * every:
        raise RuntimeError(f"hivemind did not average once in {setup.steps} steps")


def meet(rank: int) -> hivemind.DHT:
    """A DHT of all workers, on the address towards the first one and nowhere else."""
    only_here = {
        "host_maddrs": [f"/ip4/{own_address()}/tcp/0"],
        "auto_nat": False,
        "nat_port_map": False,
        "use_relay": False,
        "use_auto_relay": False,
        "use_ipfs": False,
    }
    dht = hivemind.DHT(start=True, **only_here) if rank == 0 else None
    said = [[str(address) for address in dht.get_visible_maddrs()] if dht else None]
    dist.broadcast_object_list(said, src=0)
    return dht or hivemind.DHT(initial_peers=said[0], start=True, **only_here)
