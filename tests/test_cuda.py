"""On a GPU that all workers share: what travels through pinned host buffers ends as on the CPU, in virtual time."""

import os

import pytest
import torch
from torch import Tensor
from workers import run_workers

import offbeat
from offbeat.layout import Layout
from offbeat.sim.cluster import Cluster
from offbeat.sim.run import run
from offbeat.sim.together import make_learners
from offbeat.strategies import make_strategy
from offbeat.train.shards import Shard
from offbeat.train.tasks import load_task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WORKERS = 2
STEPS = [12, 14]  # one ends early
SAME = [  # in both worlds
    "ddp",
    "local_sgd",
    "lasgd:delay=2",
    "lasgd:delay=2,fragments=3",
    "daso:warmup_epochs=0,cooldown_epochs=0",
    "sgp",
    "diloco:every=4,fragments=2,delay=1",
    "lasgd:delay=2,trail=0.3",
]
WIRES = ["", ",wire_dtype=bfloat16", ",wire_dtype=int8"]
SMALL_APART = [f"lasgd:fragments=9{more}" for more in (*WIRES, ",momentum=0.5")]  # many pieces in one parcel
SPECS = [*SAME, *SMALL_APART, *(f"lasgd:fragments=none{wire}" for wire in WIRES), "gossip", "a2cid2:fragments=3"]


def train_on_the_gpu() -> dict[str, Tensor]:
    rank, ends = int(os.environ["RANK"]), {}
    task = load_task("digits", model="cnn", seed=0)
    shard = Shard(samples=len(task.train), rank=rank, workers=WORKERS, batch=16, seed=0)
    for spec in SPECS:
        torch.manual_seed(0)
        model = task.model().cuda()
        optimizer = task.optimizer(model.parameters())
        with offbeat.attach(model, optimizer, spec, layout=Layout.even(WORKERS, 2)):
            for step in range(STEPS[rank]):
                inputs, targets = task.train.batch(shard.indices(step))
                optimizer.zero_grad()
                task.loss(model(inputs.cuda()), targets.cuda()).backward()
                optimizer.step()
        ends[spec] = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    return ends


@pytest.fixture(scope="module")
def ends() -> list[dict[str, Tensor]]:
    return run_workers(train_on_the_gpu, WORKERS, timeout_seconds=100)


@pytest.mark.parametrize("spec", SPECS)
def test_all_ranks_end_equal(spec: str, ends: list[dict[str, Tensor]]) -> None:
    assert torch.equal(ends[0][spec], ends[1][spec])


@pytest.mark.parametrize("spec", SAME)
def test_gpu_equals_virtual_time(spec: str, ends: list[dict[str, Tensor]]) -> None:
    task = load_task("digits", model="cnn", seed=0)
    shards = [Shard(samples=len(task.train), rank=r, workers=WORKERS, batch=16, seed=0) for r in range(WORKERS)]
    learners = make_learners(task, shards, 0)
    run(make_strategy(spec), Cluster(layout=Layout.even(WORKERS, 2)), learners, STEPS, seed=0)
    virtual = torch.cat([p.detach().flatten() for p in learners.mean_model().parameters()])
    assert (virtual - ends[0][spec]).norm() / virtual.norm() < 1e-4  # TF32 and other kernels round differently
