"""A step with DistributedDataParallel's copies."""

import pytest

from offbeat.cost.buckets import in_buckets
from offbeat.cost.device_profile import load_profile
from offbeat.cost.pace import Machines, Work, fills_buckets, pace, played_out
from offbeat.cost.predict import predict
from offbeat.cost.reuse import WARMEST
from offbeat.cost.step import time_step
from offbeat.cost.subject import find_subject
from offbeat.cost.wires import Wires
from offbeat.layout import Layout
from offbeat.sim.network import Link
from offbeat.strategies import make_strategy


def test_every_gradient_is_copied_in_when_it_is_there_and_back_before_the_optimizer() -> None:
    step = find_subject("resnet8", platform="cpu").at(4)
    bucketed = in_buckets(step)
    copies = [op for op in bucketed.ops if op not in step.ops and op.kernel.operator == "copy_"]
    gradients = sum(spec.nbytes for spec in step.parameters.values())
    assert sum(op.kernel.inputs[0].nbytes for op in copies) == 2 * gradients
    assert bucketed.gradient_order == step.gradient_order
    ins, backs = ([op for op in copies if op.phase == phase] for phase in ("backward", "optimizer"))
    assert [name for op in ins for name in op.completes] == step.gradient_order
    assert len(backs) == len(step.parameters)
    phases = [op.phase for op in bucketed.ops]
    assert phases == sorted(phases, key=("forward", "backward", "optimizer").index)
    first = phases.index("optimizer")
    assert list(bucketed.ops[first : first + len(backs)]) == backs
    kept = [op.kernel for op in bucketed.ops if op not in copies]
    assert kept == step.kernels, "all else is as it was"
    assert {op.kernel.warm for op in backs[1:]} == {WARMEST}, "one after the other"
    assert {op.kernel.bulk for op in bucketed.ops} == {step.kernels[0].bulk} != {0}
    on_gpu = in_buckets(find_subject("resnet8", platform="cuda").at(4))
    assert not any(kernel.warm or kernel.bulk for kernel in on_gpu.kernels)


def test_a_bucket_is_ready_when_its_copies_are_made() -> None:
    step = find_subject("resnet8", platform="cpu").at(4)
    bucketed = in_buckets(step)
    one_each = time_step(bucketed, [1.0] * len(bucketed.ops))
    alone = time_step(step, [1.0] * len(step.ops))
    gradients = len(step.parameters)
    assert one_each.forward_seconds == alone.forward_seconds
    assert one_each.backward_seconds == alone.backward_seconds + gradients
    assert one_each.optimizer_seconds == alone.optimizer_seconds + gradients
    assert one_each.ready[-1] == (alone.ready[-1][0], alone.ready[-1][1] + gradients)


@pytest.mark.parametrize(
    ("spec", "fills"),
    [("ddp", True), ("none", False), ("lasgd", False), ("lasgd:gradients=node", True), ("local_sgd", False),
     ("local_sgd:warmup_steps=5", False), ("daso", True)],
)  # fmt: skip
def test_who_fills_buckets(spec: str, fills: bool) -> None:
    assert fills_buckets(make_strategy(spec), Layout.even(4, 2)) == fills
    assert not fills_buckets(make_strategy(spec), Layout.even(1, 1))


def test_copies_cost_those_who_make_them_and_both_worlds_agree() -> None:
    prediction = predict(find_subject("lenet", platform="cpu", input_shape=(3, 32, 32)).at(8), load_profile("cpu2"))
    work = Work(time=prediction.time, model_bytes=prediction.trace.memory.weights, bucketed=prediction.bucketed)
    wire = Link(bytes_per_second=1e12, seconds=0.0)
    machines = Machines(layout=Layout.even(4, 4), wires=Wires(link=wire, local=wire))
    closed, played = (each(make_strategy("ddp"), work, machines).step_seconds for each in (pace, played_out))
    assert closed == pytest.approx(prediction.bucketed.seconds, rel=1e-3)
    assert played == pytest.approx(closed, rel=1e-6)
    assert closed > 1.02 * prediction.time.seconds
    assert pace(make_strategy("local_sgd"), work, machines).step_seconds < 1.01 * prediction.time.seconds
    assert work.scaled(2.0).bucketed == prediction.bucketed.scaled(2.0)
