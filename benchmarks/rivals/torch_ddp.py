"""torch's DistributedDataParallel: gradients are averaged at every step, in buckets, while backward goes on.

Best here: hook=powersgd, which sends matrices of a low rank in place of gradients, after two plain steps that it asks
for; fp16 and bf16 halve the bytes at the same loss; plain (no hook) is what everybody starts from.
"""

from pathlib import Path
from runpy import run_path
from typing import Literal

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]


def bf16(group, bucket):
    """torch's own hook under another name: DDP refuses that one by name without CUDA, though gloo sums bf16."""
    return default_hooks.bf16_compress_hook(group, bucket)


FEWEST_PLAIN = 2  # steps: torch takes no less before PowerSGD with error feedback begins
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": bf16}


@rival
def train(model, optimizer, _setup, *, hook: Literal["none", "fp16", "bf16", "powersgd"] = "none", rank: int = 4):
    module = DistributedDataParallel(model)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=FEWEST_PLAIN)
        module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if hook in HOOKS:
        module.register_comm_hook(dist.group.WORLD, HOOKS[hook])
    yield module, optimizer
