"""torch's DistributedDataParallel: gradients are averaged at every step, in buckets, while backward goes on.

Best here: hook=fp16 or bf16, half the bytes at the same loss; plain (no hook) is what everybody starts from.
"""

from pathlib import Path
from runpy import run_path
from typing import Literal

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]


def bf16(group, bucket):
    """torch's own hook under another name: DDP refuses that one by name without CUDA, though gloo sums bf16."""
    return default_hooks.bf16_compress_hook(group, bucket)


HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": bf16}


@rival
def train(model, optimizer, _setup, *, hook: Literal["none", "fp16", "bf16"] = "none"):
    module = DistributedDataParallel(model)
    if hook in HOOKS:
        module.register_comm_hook(dist.group.WORLD, HOOKS[hook])
    yield module, optimizer
