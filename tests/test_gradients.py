"""Gradients averaged in backward: the same as torch's DistributedDataParallel, and a clear word where it cannot be."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workers import run_workers

import offbeat
from offbeat.errors import OffbeatError


class Twice(nn.Module):
    """Several dtypes and buckets, a frozen layer, keyword arguments, and a part that can be left out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(4, 600)
        self.frozen = nn.Linear(600, 600).requires_grad_(False)
        self.last = nn.Linear(600, 2).double()
        self.extra = nn.Parameter(torch.ones(2).bfloat16())

    def forward(self, x, *, with_extra=True):
        x = self.last(torch.tanh(self.frozen(self.first(x))).double())
        return x * self.extra if with_extra else x


def data(number):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * int(os.environ["RANK"]) + number))


def backward_once(model):
    model(data(0)).square().mean().backward()


def backward_of_two_forwards(model):
    (model(data(0)).square().mean() + model(data(1), with_extra=True).mean()).backward()


def accumulate(model):
    for number in range(3):
        model(data(number)).square().mean().backward()


def evaluate_between(model):
    loss = model(data(0)).square().mean()
    model.eval()
    model(data(1))
    with torch.no_grad():
        model(data(2))
    model.train()
    loss.backward()


LOOPS = [backward_once, backward_of_two_forwards, accumulate, evaluate_between]


def gradients_both_ways():
    """The gradients of each loop, for two steps: attached, and by DistributedDataParallel."""
    dist.init_process_group("gloo")
    found = []
    for loop in LOOPS:
        plain = Twice()
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        wrapped = Twice()
        ddp, other = DistributedDataParallel(wrapped), torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with offbeat.attach(plain, optimizer, "ddp"):
            for _ in range(2):
                for model, steps in ((plain, optimizer), (ddp, other)):
                    steps.zero_grad()
                    loop(model)
                    steps.step()
                pairs = zip(plain.named_parameters(), wrapped.parameters(), strict=True)
                found.append({name: (mine.grad, theirs.grad) for (name, mine), theirs in pairs})
    dist.destroy_process_group()
    return found


def skip_extra(model):
    model(data(0), with_extra=False).sum().backward()


def go_around(model):
    """Not through model(...), so DistributedDataParallel knows nothing of this forward."""
    (model.last(model.frozen(model.first(data(0))).double()) * model.extra).sum().backward()


def backward_twice(model):
    losses = [model(data(number)).square().mean() for number in range(2)]
    for loss in losses:
        loss.backward()


def refused(loop, only_rank):
    """What each rank is told if the rank `only_rank` (all: None) runs this loop."""
    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with offbeat.attach(model, optimizer, "ddp"):
            for _ in range(2):
                optimizer.zero_grad()
                (loop if only_rank in (None, int(os.environ["RANK"])) else backward_once)(model)
                optimizer.step()
    except OffbeatError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_averages_are_those_of_distributed_data_parallel():
    for found in run_workers(gradients_both_ways, 2):
        assert len(found) == 2 * len(LOOPS)
        for gradients in found:
            assert {name for name, (mine, _) in gradients.items() if mine is None} == {"frozen.weight", "frozen.bias"}
            for name, (mine, theirs) in gradients.items():
                if mine is not None:
                    torch.testing.assert_close(mine, theirs, msg=name)


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        (skip_extra, "parameter 'extra' got no gradient on rank 1"),
        (go_around, "rank 1 made 1 backward passes in a step and 0 of them"),
        (backward_twice, "rank 1 made 2 backward passes in a step and 1 of them"),
    ],
)
def test_a_gradient_that_was_not_averaged_is_an_error(loop, says):
    first, second = run_workers(refused, 2, loop, None, timeout_seconds=20)
    assert says in second
    assert first.startswith(("OffbeatError", "LostPeer"))


def test_a_parameter_unused_on_one_rank_only_hangs_nobody():
    first, second = run_workers(refused, 2, skip_extra, 1, timeout_seconds=20)
    assert "parameter 'extra' got no gradient on rank 1" in second
    assert first.startswith("LostPeer: a rank is lost: the average of gradients failed")
