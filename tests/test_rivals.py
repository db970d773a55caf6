"""Every rival trains two workers that learn and end as its method says. Those that are not installed are skipped."""

import copy
import importlib
import time
import warnings
from contextlib import nullcontext
from dataclasses import fields
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from commands import ROOT
from torch import Tensor
from workers import run_workers

from offbeat.compare.contestant import Setup, find_contestant
from offbeat.connect import join_process_group
from offbeat.layout import Layout
from offbeat.train.shards import Shard
from offbeat.train.tasks import load_task

RIVALS = ROOT / "benchmarks" / "rivals"
WORKERS = 2
STEPS = 53  # post_local_sgd averages after 5 + 8 k
LEARNT = 0.5  # of the loss at the start, at most
ALONE = "alone"
CLOSER = 0.6  # than workers that train alone end, at most


class Raced(NamedTuple):
    losses: list[float]  # of every step
    weights: Tensor  # after the end
    last: Tensor  # after the last step, before what is averaged at the end


def race(specs: list[str], steps: int = STEPS) -> dict[str, Raced]:
    """On one rank, one after the other."""
    warnings.simplefilter("ignore")  # of what others import
    join_process_group(torch.device("cpu"), 60.0)
    rank, found = dist.get_rank(), {}
    task = load_task("digits", seed=0)
    shard = Shard(samples=len(task.train), rank=rank, workers=WORKERS, batch=16, seed=0)
    torch.manual_seed(0)
    start = task.model()
    known = {
        "rank": rank, "layout": Layout(tuple(range(WORKERS))), "steps": steps, "steps_per_epoch": steps, "seed": 0,
        "attachment": [], "hands_in": [], "timeout_seconds": 60.0,
    }  # fmt: skip
    setup = Setup(**{field.name: known[field.name] for field in fields(Setup)})
    for spec in specs:
        model = copy.deepcopy(start)
        optimizer, losses = task.optimizer(model.parameters()), []
        contestant = find_contestant(f"{RIVALS}/{spec}")(model, optimizer, setup) if spec != ALONE else None
        with contestant or nullcontext((model, optimizer)) as (module, stepper):
            for step in range(steps):
                stepper.zero_grad()
                inputs, targets = task.train.batch(shard.indices(step))
                loss = task.loss(module(inputs), targets)
                loss.backward()
                stepper.step()
                losses.append(float(loss))
                if spec.startswith("hivemind"):
                    time.sleep(0.1)  # a round takes a second
            last = weights_of(model)
        found[spec] = Raced(losses, weights_of(model), last)
        dist.barrier()
    dist.destroy_process_group()
    return found


def weights_of(model: torch.nn.Module) -> Tensor:
    return torch.cat([x.detach().flatten() for x in model.parameters()])


def check_learnt(losses: list[float]) -> None:
    assert sum(losses[-5:]) / 5 < LEARNT * losses[0], losses


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.timeout(60)
def test_torch_ddp_with_every_hook() -> None:
    specs = ["torch_ddp.py:train", "torch_ddp.py:train:hook=fp16", "torch_ddp.py:train:hook=bf16"]
    first, second = run_workers(race, WORKERS, specs)
    for spec in specs:
        check_learnt(first[spec][0])
        assert torch.equal(first[spec][1], second[spec][1]), spec
    plain, fp16, bf16 = (first[spec][1] for spec in specs)
    assert 0 < distance(fp16, plain) < distance(bf16, plain) < 0.05, "16 bits round, and bfloat16 more than float16"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("steps", "equal"), [(4, True), (11, False), (13, True), (STEPS, True)])
def test_post_local_sgd_averages_gradients_and_then_weights_now_and_then(steps: int, equal: bool) -> None:
    spec = "post_local_sgd.py:train:every=8,warmup=4"
    first, second = (found[spec] for found in run_workers(race, WORKERS, [spec], steps))
    assert (distance(first[1], second[1]) == 0) == equal
    if steps == STEPS:
        check_learnt(first[0])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("package", "spec", "equal"),
    [
        ("torchft", "torchft_local_sgd.py:train:every=8", False),
        ("torchft", "torchft_diloco.py:train:every=16,fragments=2,delay=4", False),
        ("decent_dp", "decent_dp.py:train", True),
        ("decent_dp", "decent_dp.py:train:topology=complete", True),
        ("hivemind", "hivemind_local.py:train:every=16", False),
    ],
)
def test_others_learn_from_each_other(package: str, spec: str, equal: bool) -> None:
    pytest.importorskip(package)
    both = run_workers(race, WORKERS, [spec, ALONE])
    first, second = (found[spec] for found in both)
    check_learnt(first[0])
    check_learnt(second[0])
    assert distance(first.last, second.last) < CLOSER * distance(*(found[ALONE].last for found in both))
    if equal:
        assert distance(first[1], second[1]) < 1e-6, "it averages at the end"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fragments", [1, 2, 3, 7])
def test_torchft_gets_equal_shares_of_the_model_itself(fragments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchft")
    monkeypatch.syspath_prepend(str(RIVALS))
    split = importlib.import_module("torchft_diloco").split
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Conv2d(4, 6, 3), torch.nn.Linear(5, 100))
    model.to(memory_format=torch.channels_last)  # as on a GPU
    before, parts = weights_of(model), split(list(model.parameters()), fragments)
    sizes = [sum(piece.numel() for piece in part.parameters()) for part in parts]
    assert sum(sizes) == len(before)
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        for piece in part.parameters():
            piece.data.mul_(2.0)
    assert torch.equal(weights_of(model), 2 * before)
