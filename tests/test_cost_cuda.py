"""On a GPU: a trace made without one is what torch issues there, and its memory is the allocator's."""

import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from offbeat.cost import Op, trace
from offbeat.cost.calibrate_steps import one_by_one
from offbeat.cost.gpu_step import visit_on_gpu
from offbeat.cost.learned_profile import Calibration, learned_profile
from offbeat.cost.real_step import RealStep
from offbeat.cost.recorder import Recorder
from offbeat.cost.zoo import learned_from, references
from offbeat.train.models import GPT, MODELS
from offbeat.train.task import cross_entropy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def zoo(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    if name == "gpt":
        tokens = torch.zeros(4, 256, dtype=torch.long)
        return GPT(256, 1000, width=256, heads=4, blocks=4), tokens, tokens
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        return nn.Sequential(layer, nn.Linear(256, 10)), torch.zeros(4, 64, 256), torch.zeros(4, 64, dtype=torch.long)
    return MODELS[name]((3, 64, 64), 10), torch.zeros(32, 3, 64, 64), torch.zeros(32, dtype=torch.long)


def really_issued(
    model: nn.Module, inputs: Tensor, targets: Tensor, autocast: torch.dtype | None
) -> tuple[list[Op], int]:
    """The operations of a second step on the GPU, and the most bytes that were allocated."""
    model, inputs, targets = model.cuda(), inputs.cuda(), targets.cuda()
    optimizer = AdamW(model.parameters())
    recorder = Recorder(model)

    def forward() -> Tensor:
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            return cross_entropy(model(inputs), targets)

    forward().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    forward().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    most = torch.cuda.max_memory_allocated() - workspaces()
    optimizer.zero_grad()
    with recorder.hooked(), recorder:
        loss = forward()
        recorder.phase = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        recorder.phase = "optimizer"
        optimizer.step()
    return recorder.ops, most


def workspaces() -> int:
    """The bytes that cuBLAS keeps for itself: none of the model's."""
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", ["mlp", "cnn3m", "resnet18", "vgg11", "gpt", "transformer"])
def test_trace_made_for_a_gpu_is_what_a_gpu_gets(name: str, autocast: torch.dtype | None) -> None:
    model, inputs, targets = zoo(name)
    step = trace(model, inputs, targets, loss=cross_entropy, optimizer=AdamW, platform="cuda", autocast=autocast)
    real, most = really_issued(model, inputs, targets, autocast)
    expected, found = (Counter((op.phase, op.path, op.kind, op.kernel.dtype) for op in ops) for ops in (step.ops, real))
    assert expected == found
    assert step.flops == pytest.approx(sum(op.flops for op in real), rel=0.01)
    assert step.nbytes == pytest.approx(sum(op.nbytes for op in real), rel=0.05)
    assert step.memory.peak == pytest.approx(most, rel=0.1)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", ["cnn", "resnet20", "gpt"])
def test_a_visit_finds_the_kernels_of_every_operation(name: str, autocast: torch.dtype | None) -> None:
    subject = next(each for each in learned_from("cuda", autocast) if each.name == name)
    found = visit_on_gpu(RealStep(subject, 32, torch.device("cuda")), lambda: time.sleep(0.002), turns=1)
    ops = subject.at(32).ops
    assert [kernel.kind for kernel in found.kernels] == [op.kind for op in ops]
    counters = "_foreach_add_.Tensor"  # of the optimizer's steps: they stay on the host
    idle = [op.kernel.call for op, seconds in zip(ops, found.ops, strict=True) if op.nbytes and not seconds]
    idle = [call for call in idle if counters not in call]
    assert not idle
    assert found.seconds > 0
    assert found.on_gpu
    assert 0.002 <= found.reference_seconds < 0.02


def test_what_a_gpu_does_is_learned(tmp_path: Path) -> None:
    how = Calibration(
        platform="cuda", device=torch.device("cuda"), path=tmp_path / "gpu.json", minutes=0.5, batches=(32,),
        visiting=one_by_one(partial(visit_on_gpu, turns=1), references(), torch.device("cuda")), bf16=True,
    )  # fmt: skip
    profile = learned_profile(how, None, lambda *_: None)
    assert profile.host is not None
    assert profile.device.dispatch_seconds > 1e-6
    assert profile.reference_seconds is not None
    assert profile.kernels is not None
    assert profile.kernels.held_out["steps"]["models"]
    assert {torch.float32, torch.bfloat16} <= set(profile.device.flops_per_second)
