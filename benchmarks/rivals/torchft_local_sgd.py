"""torchft's LocalSGD: parameters are averaged every `every` steps, blocking, after a quorum of all replicas.

Best here: every=16. Momentum stays local, as torchft leaves it.
"""

import os
from pathlib import Path
from runpy import run_path

os.environ.setdefault("RUST_LOG", "warn")  # read when torchft is imported; it tells of every quorum otherwise
from torchft.local_sgd import LocalSGD

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]
replica = run_path(str(Path(__file__).with_name("torchft_replica.py")))["replica"]


@rival
def train(model, optimizer, setup, *, every=16):
    with replica(setup, averages=setup.steps // every) as manager, LocalSGD(manager, model, optimizer, every):
        yield model, optimizer
