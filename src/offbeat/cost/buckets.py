"""in_buckets: a step as DistributedDataParallel makes it, which copies every gradient into its bucket as soon as it is
there, and the mean back before the optimizer."""

from collections.abc import Iterator
from dataclasses import replace

from .kernel import Kernel, Ref, Spec
from .op import OPTIMIZER, Op
from .reuse import CACHES, PARTS, warmth
from .trace import TracedStep

JUST_MADE, LONG_AGO = (PARTS, 0), (0, 0)


def in_buckets(step: TracedStep) -> TracedStep:
    ops, own = list(_with_copies(step)), set(map(id, step.kernels))
    if bulk := max((kernel.bulk for kernel in step.kernels), default=0):  # a CPU's
        warm = warmth([op.kernel for op in ops], CACHES["cpu"])
        ops = [
            op if id(op.kernel) in own else replace(op, kernel=replace(op.kernel, warm=its_code, bulk=bulk))
            for op, its_code in zip(ops, warm, strict=True)
        ]
    return replace(step, ops=tuple(ops))


def _with_copies(step: TracedStep) -> Iterator[Op]:
    backs = [Op(_copy(step.parameters[name], LONG_AGO), "optimizer", OPTIMIZER) for name in step.gradient_order]
    for op in step.ops:
        if op.phase == "optimizer":
            yield from backs
            backs = []
        yield replace(op, completes=())
        for name in op.completes:
            yield Op(_copy(step.parameters[name], JUST_MADE), "backward", op.path, (name,))
    yield from backs


def _copy(gradient: Spec, near: tuple[int, int]) -> Kernel:
    return Kernel(
        "aten::copy_.default", "copy", (gradient, gradient), (), (0,),
        arguments=(("self", Ref(0)), ("src", Ref(1)), ("non_blocking", False)), near=near,
    )  # fmt: skip
