"""torch's post-local SGD: gradients are averaged for `warmup` steps, then parameters every `every` steps, blocking.

Best here: every=16 with a short warmup. On nodes of several workers gradients are still averaged inside the node.
"""

from datetime import timedelta
from pathlib import Path
from runpy import run_path

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]


@rival
def train(model, optimizer, setup, *, every=16, warmup=4):
    layout = setup.layout
    nodes = [list(layout.on(node)) for node in range(layout.nodes)]
    shared = any(len(ranks) > 1 for ranks in nodes) and len(nodes) > 1
    patience = timedelta(seconds=setup.timeout_seconds)
    inside = dist.new_subgroups_by_enumeration(nodes, timeout=patience)[0] if shared else None
    # Its broadcast of buffers at every forward would be the collective per step that this method avoids.
    module = DistributedDataParallel(model, forward_sync_buffers=False)
    state = PostLocalSGDState(None, inside, start_localSGD_iter=warmup, post_local_gradient_allreduce=shared)
    module.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=every, warmup_steps=warmup)
    yield module, PostLocalSGDOptimizer(optim=optimizer, averager=averager)
