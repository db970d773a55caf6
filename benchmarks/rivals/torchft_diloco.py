"""torchft's streaming DiLoCo: the averaged change of a fragment arrives `delay` steps after it was sent.

Best here: fragments=2, delay=6, alpha=0.5 and the paper's outer optimizer. The longest delay (fragments=1, delay=14) is
hardly faster and learns less: of the way made in flight only the share alpha is kept.
"""

import os
from pathlib import Path
from runpy import run_path

from torch import nn
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
    """Consecutive parameters, about as many numbers in each fragment."""
    total, before = sum(p.numel() for p in parameters), 0
    parts: list[list[nn.Parameter]] = [[] for _ in range(fragments)]
    for parameter in parameters:
        middle = before + parameter.numel() / 2
        parts[int(middle * fragments / total)].append(parameter)
        before += parameter.numel()
    if not all(parts):
        raise ValueError(f"fragments={fragments} leaves one without parameters: use fewer")
    return [nn.ParameterList(part) for part in parts]
