"""FLOPs and bytes of a kernel, from its shapes alone.

A multiplication and an addition are two FLOPs. Multiplications with a convolution's zero padding count, as everybody
counts them; pairs that a causal mask removes do not, as fused attention leaves them out. Bytes are what a good kernel
must move: each tensor it reads and each it writes, once per pass.

torch.utils.flop_counter differs: it takes the weight gradient of a grouped convolution for a full one (too many by
the number of groups), ignores causality, does not know the CPU's attention, and counts matrix products alone.
"""

from collections.abc import Mapping
from math import prod

from .kernel import Kernel, Ref, Spec

# FLOPs per element of what is not a product of matrices: per element of the largest tensor at hand.
_PER_ELEMENT = {"batch_norm": 6, "row_norm": 8, "softmax": 5, "optimizer": 12, "copy": 0, "gather": 0, "scatter": 1}

# Arguments that are there for their shape, or only to be overwritten: they are not read.
_UNREAD = {
    "copy_": ("self",), "fill_": ("self",), "zero_": ("self",), "normal_": ("self",), "uniform_": ("self",),
    "bernoulli_": ("self",), "random_": ("self",), "exponential_": ("self",), "_foreach_zero_": ("self",),
    "_foreach_copy_": ("self",), "zeros_like": ("self",), "ones_like": ("self",), "full_like": ("self",),
    "rand_like": ("self",), "randn_like": ("self",), "new_zeros": ("self",), "new_ones": ("self",),
    "new_full": ("self",), "fill": ("self",), "max_pool2d_with_indices_backward": ("self",),
    "max_pool3d_with_indices_backward": ("self",), "avg_pool2d_backward": ("self",), "avg_pool3d_backward": ("self",),
    "_adaptive_avg_pool2d_backward": ("self",), "nll_loss_backward": ("self",), "nll_loss2d_backward": ("self",),
}  # fmt: skip

# Kernels that need a statistic of all of a tensor before they can use it: these arguments are read twice.
_READ_TWICE = {
    "native_batch_norm": ("input",), "cudnn_batch_norm": ("input",), "_native_batch_norm_legit": ("input",),
    "_batch_norm_with_update": ("input",), "native_batch_norm_backward": ("grad_out", "input"),
    "cudnn_batch_norm_backward": ("grad_output", "input"), "batch_norm_backward": ("grad_out", "input"),
}  # fmt: skip


def flops_of(kernel: Kernel) -> int:
    """Floating-point operations of one call."""
    match kernel.kind:
        case "matmul":
            return _matmul(kernel)
        case "convolution":
            return _convolution(kernel)
        case "attention":
            return _attention(kernel)
        case "recurrent":
            return _recurrent(kernel)
        case "pool":
            window = kernel.argument("kernel_size") if "kernel_size" in dict(kernel.arguments) else ()
            return _largest((kernel.outputs or kernel.inputs)[:1]) * (prod(window) if isinstance(window, tuple) else 1)
        case "optimizer" | "foreach":
            return _PER_ELEMENT.get(kernel.kind, 1) * sum(spec.numel for spec in _listed(kernel, "self"))
        case "reduction":
            return _largest(kernel.inputs)
        case "elementwise" | "random":
            return _largest(kernel.outputs or kernel.inputs)
        case kind:
            return _PER_ELEMENT.get(kind, 1) * _largest((*kernel.inputs, *kernel.outputs))


def bytes_of(kernel: Kernel) -> int:
    """Bytes read and written by one call."""
    read, fresh = read_bytes_of(kernel), sum(spec.nbytes for spec in kernel.outputs)
    if kernel.kind == "gather":
        return read + fresh
    again = sum(kernel.inputs[i].nbytes for i in _arguments(kernel, _READ_TWICE))
    in_place = sum(kernel.inputs[i].nbytes for i in kernel.written)
    if kernel.kind == "scatter":
        # What is added to rows of a table reads and writes those rows; if the table is fresh it was zeroed before.
        if kernel.operator.startswith("nll_loss"):
            return fresh + 2 * read
        added = max((spec.nbytes for i, spec in enumerate(kernel.inputs) if i not in kernel.written), default=0)
        return read - in_place + fresh + 2 * added
    return read + again + fresh + in_place


def read_bytes_of(kernel: Kernel) -> int:
    """Bytes read by one call, each once."""
    if kernel.kind == "gather":  # of a table, the rows that are asked for
        table, *indices = kernel.inputs
        made = kernel.outputs[0].nbytes if kernel.operator != "nll_loss_forward" else 0
        rows = min(table.nbytes, made or sum(i.numel for i in indices) * table.dtype.itemsize)
        return rows + sum(spec.nbytes for spec in indices)
    unread = _arguments(kernel, _UNREAD)
    return sum(spec.nbytes for i, spec in enumerate(kernel.inputs) if i not in unread)


def _arguments(kernel: Kernel, among: Mapping[str, tuple[str, ...]]) -> set[int]:
    """The inputs that are arguments of the kernel's operator which are named there."""
    given = dict(kernel.arguments)
    return {ref for name in among.get(kernel.operator, ()) for ref in _refs(given.get(name))}


def _matmul(kernel: Kernel) -> int:
    """2 m n k, and m n more for what is added."""
    made = _largest(kernel.outputs or kernel.inputs[:1])
    first = kernel.tensor("mat1") or kernel.tensor("batch1") or kernel.tensor("mat") or kernel.inputs[0]
    added = made if kernel.operator.startswith("add") or kernel.operator.startswith("badd") else 0
    return 2 * made * first.shape[-1] + added


def _convolution(kernel: Kernel) -> int:
    """Each number of the side without holes meets every weight of its group's filters once.

    That side is the output; of a transposed convolution, the input. The same pairs of numbers meet in the forward
    pass and in both gradients, so all three cost the same.
    """
    x, weight = kernel.tensor("input"), kernel.tensor("weight")
    gradient = kernel.tensor("grad_output")
    if kernel.part == "bias":
        return gradient.numel if gradient else 0
    out = gradient or kernel.outputs[0]
    if kernel.part == "weight":
        weight = kernel.outputs[0]
    if kernel.part == "input":
        x = kernel.outputs[0]
    if x is None or weight is None:
        return 2 * out.numel
    dense = x if kernel.argument("transposed") else out
    bias = out.numel if not kernel.part and kernel.tensor("bias") else 0
    return 2 * dense.numel * prod(weight.shape[1:]) + bias


def _attention(kernel: Kernel) -> int:
    """Forward q k and s v; backward these scores again, and the gradients of v, s, q and k: five products.

    A product costs 2 x the pairs of positions that see each other x the width of a head.
    """
    q, k, v = (kernel.tensor(name) for name in ("query", "key", "value"))
    if q is None or k is None or v is None:
        return 0
    rows, columns = q.shape[-2], k.shape[-2]
    causal = dict(kernel.arguments).get("is_causal", False) or dict(kernel.arguments).get("causal", False)
    pairs = _causal_pairs(rows, columns) if causal else rows * columns
    heads = prod(q.shape[:-2])
    narrow, wide = q.shape[-1], v.shape[-1]  # the width that scores are made of, and that of what is mixed
    products = 3 * narrow + 2 * wide if "backward" in kernel.operator else narrow + wide
    return 2 * heads * pairs * products


def _recurrent(kernel: Kernel) -> int:
    """Every weight meets every position of every sequence once; in backward twice."""
    given = [kernel.tensor(name) for name, _ in kernel.arguments if name.startswith("weight")]
    weights = sum(spec.numel for spec in given if spec and len(spec.shape) == 2)
    return (4 if "backward" in kernel.operator else 2) * prod(kernel.inputs[0].shape[:-1]) * weights


def _causal_pairs(rows: int, columns: int) -> int:
    """Row i sees columns 0..i."""
    full = max(0, rows - columns)  # rows that see every column
    short = rows - full
    return full * columns + short * (short + 1) // 2


def _largest(specs: tuple[Spec, ...]) -> int:
    return max((spec.numel for spec in specs), default=0)


def _listed(kernel: Kernel, name: str) -> list[Spec]:
    return [kernel.inputs[index] for index in _refs(dict(kernel.arguments).get(name))]


def _refs(value: object) -> list[int]:
    """The indices of the inputs that an argument is."""
    if isinstance(value, Ref):
        return [value.index]
    return [ref.index for ref in value if isinstance(ref, Ref)] if isinstance(value, tuple) else []
