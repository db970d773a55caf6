"""Virtual equals real: the same seed ends with the same parameters in both worlds."""

import os
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from workers import run_workers

import offbeat
from offbeat.layout import Layout
from offbeat.sim.cluster import Cluster
from offbeat.sim.learners import Learners, OneByOne
from offbeat.sim.run import run
from offbeat.sim.together import Together, can_step_together, make_learners
from offbeat.strategies import make_strategy
from offbeat.train.seed import worker_seed
from offbeat.train.shards import Shard
from offbeat.train.task import Task
from offbeat.train.tasks import load_task

WORKERS, STEPS, SEED = 4, 40, 5
SPECS = [
    "ddp",
    "local_sgd",
    "lasgd:delay=2",
    "lasgd:delay=2,fragments=3,gradients=node",
    "daso:warmup_epochs=0,cooldown_epochs=0",
    "sgp",
    "diloco:every=6,fragments=2,delay=2",
]
MODELS = ["mlp", "resnet8", "dropout"]  # stepped together, one by one with BatchNorm, and with what each rank draws


def load(name: str) -> Task:
    if name != "dropout":
        return load_task("digits", model=name, seed=SEED)
    return replace(load_task("digits", seed=SEED), model=dropout_mlp)


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))


def shard(task: Task, rank: int) -> Shard:
    return Shard(samples=len(task.train), rank=rank, workers=WORKERS, batch=16, seed=SEED)


def steps_of(model: str) -> int:
    return 6 if model == "resnet8" else STEPS


def train_for_real() -> dict[str, Tensor]:
    rank, ends = int(os.environ["RANK"]), {}
    torch.distributed.init_process_group("gloo")
    for name in MODELS:
        task = load(name)
        for spec in SPECS:
            torch.manual_seed(SEED)
            model = task.model()
            torch.manual_seed(worker_seed(SEED, rank))
            optimizer = task.optimizer(model.parameters())
            batches = shard(task, rank)
            with offbeat.attach(model, optimizer, spec, layout=Layout.even(WORKERS, 2), seed=SEED):
                for step in range(steps_of(name)):
                    inputs, targets = task.train.batch(batches.indices(step))
                    optimizer.zero_grad()
                    task.loss(model(inputs), targets).backward()
                    optimizer.step()
            floats = [t.flatten() for t in model.state_dict().values() if t.is_floating_point()]
            ends[f"{name} {spec}"] = torch.cat(floats)
    torch.distributed.destroy_process_group()
    return ends


@pytest.fixture(scope="module")
def real() -> list[dict[str, Tensor]]:
    return run_workers(train_for_real, WORKERS, timeout_seconds=100)


def train_in_virtual_time(name: str, spec: str, kind: type[Learners] | None = None) -> Tensor:
    task = load(name)
    shards = [shard(task, rank) for rank in range(WORKERS)]
    learners = make_learners(task, shards, SEED) if kind is None else kind(task, shards, SEED)  # type: ignore[call-arg]
    cluster = Cluster(layout=Layout.even(WORKERS, 2), jitter=0.1, stragglers={1: 1.7})
    run(make_strategy(spec), cluster, learners, [steps_of(name)] * WORKERS, seed=SEED)
    model = learners.mean_model()
    return torch.cat([t.flatten() for t in model.state_dict().values() if t.is_floating_point()])


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", MODELS)
def test_virtual_equals_real(name: str, spec: str, real: list[dict[str, Tensor]]) -> None:
    ends = [end[f"{name} {spec}"] for end in real]
    assert all(torch.equal(end, ends[0]) for end in ends)
    virtual = train_in_virtual_time(name, spec)
    assert (virtual - ends[0]).norm() / ends[0].norm() < 1e-5


@pytest.mark.parametrize("spec", [*SPECS, "lasgd", "gossip"])
def test_stepping_together_equals_stepping_one_by_one(spec: str) -> None:
    together = train_in_virtual_time("mlp", spec, Together)
    one_by_one = train_in_virtual_time("mlp", spec, OneByOne)
    assert (together - one_by_one).norm() / one_by_one.norm() < 1e-5


def test_who_steps_together() -> None:
    for name, kind in (("mlp", Together), ("cnn", OneByOne), ("resnet8", OneByOne), ("dropout", OneByOne)):
        task = load(name)
        assert type(make_learners(task, [shard(task, rank) for rank in range(2)], SEED)) is kind


def decay_weights_only(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    weights, biases = [], []
    for parameter in parameters:
        (weights if parameter.ndim > 1 else biases).append(parameter)
    groups = [{"params": weights, "weight_decay": 1e-3}, {"params": biases, "weight_decay": 0.0}]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "plain", "nesterov", "rmsprop", "groups", "some"])
def test_any_optimizer_steps_alike(optimizer: str) -> None:
    """Element-wise optimizers of one group run on rows, also when workers are apart in steps; others one by one."""
    make = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
        "plain": lambda p: torch.optim.SGD(p, lr=0.05),
        "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.0, nesterov=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
        "groups": decay_weights_only,
        "some": lambda p: torch.optim.SGD(list(p)[:2], lr=1e-6),  # so slow that a trial hardly sees it
    }[optimizer]
    task = replace(load_task("digits", seed=SEED), optimizer=make)
    shards = [shard(task, rank) for rank in range(WORKERS)]
    assert can_step_together(task, shards, SEED) == (optimizer in ("adamw", "plain", "nesterov"))
    ends = []
    for learners in (make_learners(task, shards, SEED), OneByOne(task, shards, SEED)):
        cluster = Cluster(layout=Layout.even(WORKERS, 2), jitter=0.5, stragglers={0: 3.0})
        run(make_strategy("lasgd"), cluster, learners, [12] * WORKERS, seed=SEED)
        ends.append(torch.cat([p.flatten() for p in learners.mean_model().parameters()]))
    assert (ends[0] - ends[1]).norm() / ends[1].norm() < 1e-5
