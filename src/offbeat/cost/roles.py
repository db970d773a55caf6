"""roles: which of a kernel's tensors is what, and the sizes that follow from that, by its class."""

from math import prod

from .kernel import Kernel, Spec


def factors(kernel: Kernel) -> tuple[Spec, Spec, Spec]:
    """The product, and what it is of."""
    made = (kernel.outputs or kernel.inputs[:1])[0]
    first = kernel.tensor("mat1") or kernel.tensor("batch1") or kernel.tensor("mat") or kernel.inputs[0]
    second = kernel.tensor("mat2") or kernel.tensor("batch2") or kernel.tensor("vec") or kernel.inputs[-1]
    return made, first, second


def rows_and_columns(made: Spec) -> tuple[int, int]:
    return (made.shape[-2], made.shape[-1]) if len(made.shape) > 1 else (numel(made), 1)


def convolved(kernel: Kernel) -> tuple[Spec | None, Spec | None, Spec]:
    """What goes in, the weight, and what comes out; of a gradient, those that it is of."""
    x = kernel.outputs[0] if kernel.part == "input" else kernel.tensor("input")
    weight = kernel.outputs[0] if kernel.part == "weight" else kernel.tensor("weight")
    return x, weight, kernel.tensor("grad_output") or kernel.outputs[0]


def groups_of(kernel: Kernel) -> int:
    """Of a convolution."""
    groups = kernel.argument("groups")
    return groups if isinstance(groups, int) else 1


def is_depthwise(kernel: Kernel) -> bool:
    """Whether each channel is convolved by itself."""
    x, _weight, _out = convolved(kernel)
    return x is not None and groups_of(kernel) == x.shape[1] > 1


def rows_and_length(kernel: Kernel) -> tuple[int, int]:
    """What is kept of each row tells their number: 1 / deviation, or the mean."""
    kept = kernel.tensor("rstd") or kernel.tensor("mean") or (kernel.outputs[1:2] or [None])[0]
    rows = max(1, numel(kept))
    return rows, prod(largest_shape(kernel)) // rows


def largest_shape(kernel: Kernel) -> tuple[int, ...]:
    return max(kernel.inputs, key=lambda spec: spec.numel).shape or (1,)


def numel(spec: Spec | None) -> int:
    return 0 if spec is None else spec.numel
