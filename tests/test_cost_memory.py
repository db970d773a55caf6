"""Memory of a training step: what the trace says against what torch's allocator did; and a trace takes none itself."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile

from offbeat.cost import TracedStep, largest_batch, trace
from offbeat.train.models import GPT, MODELS
from offbeat.train.task import cross_entropy

CHARACTERS = torch.zeros(4, 32, dtype=torch.long)
IMAGES, CLASSES = torch.zeros(16, 3, 32, 32), torch.zeros(16, dtype=torch.long)


def allocated_at_most(model: nn.Module, inputs: Tensor, targets: Tensor) -> int:
    """The most bytes that were allocated at once during the second step of real training on the CPU."""
    optimizer = AdamW(model.parameters())

    def step() -> None:
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()
    optimizer.zero_grad()
    state = [value for values in optimizer.state.values() for value in values.values()]
    there = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
             for tensor in (*model.parameters(), *model.buffers(), *state, inputs, targets)}  # fmt: skip
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    assert profiled.profiler is not None
    events = profiled.profiler.kineto_results.events()
    alive = most = sum(there.values())
    for _, nbytes in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        alive += nbytes
        most = max(most, alive)
    return most


@pytest.mark.parametrize("name", ["cnn", "resnet20", "vgg11", "gpt"])
def test_peak_is_the_allocators(name: str) -> None:
    torch.manual_seed(0)
    if name == "gpt":
        model, inputs, targets = GPT(32, 96), CHARACTERS, CHARACTERS
    else:
        model, inputs, targets = MODELS[name]((3, 32, 32), 10), IMAGES, CLASSES  # type: ignore[assignment]
    step = trace(model, inputs, targets, loss=cross_entropy, optimizer=AdamW)
    # Convolutions have workspaces that no trace can see.
    assert step.memory.peak == pytest.approx(allocated_at_most(model, inputs, targets), rel=0.05)


def mlp_step(
    *, batch: int, optimizer: Callable[..., Optimizer] = SGD, autocast: torch.dtype | None = None
) -> TracedStep:
    return trace(
        lambda: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)),
        torch.zeros(batch, 8), torch.zeros(batch, dtype=torch.long),
        loss=cross_entropy, optimizer=optimizer, autocast=autocast,
    )  # fmt: skip


def test_parts_by_hand() -> None:
    parameters = 8 * 32 + 32 + 32 * 4 + 4
    memory = mlp_step(batch=16, optimizer=AdamW).memory
    assert memory.weights == memory.gradients == 4 * parameters
    assert memory.optimizer_state == 2 * 4 * parameters + 4 * 4  # two moments, and a counter per parameter
    assert memory.buffers == 0
    assert memory.batch == 16 * 8 * 4 + 16 * 8
    # What relu gives, what log_softmax gives, the loss and its weight.
    assert memory.saved == 16 * 32 * 4 + 16 * 4 * 4 + 2 * 4
    assert memory.constant == 4 * 4 * parameters + 4 * 4
    assert memory.peak > memory.constant - memory.gradients + memory.saved


def test_only_activations_grow_with_the_batch() -> None:
    small, large = mlp_step(batch=100).memory, mlp_step(batch=200).memory
    assert small.constant == large.constant
    assert large.saved - 8 == 2 * (small.saved - 8)  # the loss and its weight do not
    assert large.peak > small.peak


def test_optimizer_that_updates_all_at_once_needs_room_for_all() -> None:
    """At a small batch the peak is in AdamW's step: roots of all parameters, or of the largest, and divided."""
    parameters = 4 * (8 * 32 + 32 + 32 * 4 + 4)
    one_by_one, at_once = (
        mlp_step(batch=1, optimizer=partial(AdamW, foreach=foreach)).memory for foreach in (False, True)
    )
    assert at_once.peak == at_once.constant + at_once.batch + parameters
    assert one_by_one.peak == one_by_one.constant + one_by_one.batch + 2 * 4 * (8 * 32)


def test_activations_are_kept_in_half_under_autocast() -> None:
    full, half = (mlp_step(batch=1000, autocast=dtype).memory.saved for dtype in (None, torch.bfloat16))
    assert 0.5 < half / full < 0.8  # relu's output in half; the scores before the loss in full
    assert mlp_step(batch=1000).memory.weights == mlp_step(batch=1000, autocast=torch.bfloat16).memory.weights


def test_largest_batch_is_the_last_that_fits() -> None:
    def peak_at(batch: int) -> int:
        asked.append(batch)
        return mlp_step(batch=batch).memory.peak

    for memory_bytes in (mlp_step(batch=1).memory.peak, 20_000, 300_000, 3_000_000):
        asked: list[int] = []
        batch = largest_batch(peak_at, memory_bytes)
        assert peak_at(batch) <= memory_bytes < peak_at(batch + 1)
        assert len(asked) < 25
    assert largest_batch(peak_at, mlp_step(batch=1).memory.peak - 1) == 0


@pytest.mark.parametrize("limit", [1, 2, 3, 1000, 1023, 1024, 1025])
def test_largest_batch_of_any_growing_peak(limit: int) -> None:
    for peak in (lambda batch: 7 + batch, lambda batch: batch**2, lambda batch: 10**6 * (batch // 8) + batch):
        for first in (1, limit, 700, 5000):  # whatever the first guess
            assert largest_batch(peak, peak(limit), first=first) == limit
    assert largest_batch(lambda batch: batch, 10**9, at_most=limit) == limit


TRACE_A_BILLION = """
import resource, torch
from offbeat.cost import trace
from offbeat.train.models import GPT
from offbeat.train.task import cross_entropy
tokens = torch.zeros(1, 1024, dtype=torch.long, device="meta")
def build():
    return GPT(1024, 50_000, width=2048, heads=16, blocks=20)
trace(lambda: GPT(8, 9, blocks=1), tokens[:, :8], tokens[:, :8], loss=cross_entropy, optimizer=torch.optim.AdamW)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step = trace(build, tokens, tokens, loss=cross_entropy, optimizer=torch.optim.AdamW, autocast=torch.bfloat16)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(spec.numel for spec in step.parameters.values()), step.memory.peak, (after - before) * 1024)
"""


def test_a_billion_parameters_take_no_memory() -> None:
    """In a process of its own: the most that this one ever held says nothing any more."""
    run = subprocess.run([sys.executable, "-c", TRACE_A_BILLION], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    parameters, peak, grown = map(int, run.stdout.split())
    assert parameters > 1e9
    assert peak > 16 * parameters  # such a step needs 16 GB and more
    assert grown < 64 << 20
