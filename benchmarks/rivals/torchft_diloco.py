"""torchft's streaming DiLoCo: the averaged change of a fragment arrives `delay` steps after it was sent.

A delay costs: of the way made in flight only the share alpha is kept. So it should be as long as the wire needs for a
fragment, and no longer.
"""

import os
from pathlib import Path
from runpy import run_path

import torch
from torch import Tensor, nn
from torch.optim import SGD

os.environ.setdefault("RUST_LOG", "warn")  # read when torchft is imported; it tells of every quorum otherwise
from torchft.local_sgd import DiLoCo

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]
replica = run_path(str(Path(__file__).with_name("torchft_replica.py")))["replica"]


@rival
def train(model, optimizer, setup, *, every=16, fragments=2, delay=6, alpha=0.5, outer_lr=0.7, outer_momentum=0.9):
    """alpha: how much of the local parameters is kept when the averaged ones arrive."""
    parts = split(list(model.parameters()), fragments)
    outer = [
        SGD(part.parameters(), lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0) for part in parts
    ]
    with replica(setup, averages=setup.steps // (every // fragments)) as manager:
        diloco = DiLoCo(
            manager,
            parts,
            optimizer,
            outer,
            sync_every=every,
            pin_memory=False,
            use_bucketization=True,
            fragment_sync_delay=delay,
            fragment_update_alpha=alpha,
        )
        with diloco:
            yield model, optimizer
        for fragment in diloco._fragments:  # what is in flight at the end has come too late, and must not be cut off
            for work in fragment._allreduce_work:
                work.wait()


def split(parameters: list[nn.Parameter], fragments: int) -> list[nn.Module]:
    """Equal shares of all numbers, in their order, as views: torchft changes parameters in place, and so the model's
    own. By whole parameters, a model with one layer that is most of it would go almost whole at once, and wait."""
    total = sum(p.numel() for p in parameters)
    if not 0 < fragments <= total:
        raise ValueError(f"fragments={fragments} is not in 1..{total}, the parameters' numbers: use fewer")
    bounds = [total * k // fragments for k in range(fragments + 1)]
    parts: list[list[nn.Parameter]] = [[] for _ in range(fragments)]
    begins = 0
    for parameter in parameters:
        flat = in_storage_order(parameter.data)
        for part, low, high in zip(parts, bounds, bounds[1:], strict=False):
            first, after = max(low - begins, 0), min(high - begins, flat.numel())
            if first < after:
                part.append(nn.Parameter(flat[first:after]))
        begins += flat.numel()
    return [nn.ParameterList(part) for part in parts]


def in_storage_order(x: Tensor) -> Tensor:
    """All numbers as one view, also of what is in channels-last order."""
    if not (x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)):
        raise ValueError(f"a parameter with strides {x.stride()} leaves gaps in memory, so it cannot be cut")
    return x.as_strided((x.numel(),), (1,))
