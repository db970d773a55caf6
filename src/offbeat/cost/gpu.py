"""What torch does differently on a GPU than on the CPU, for traces of a GPU made where there is none.

- Optimizers update all parameters with a few `_foreach` kernels, unless told otherwise.
- Attention with dropout has a fused kernel, and so has dropout itself.
- Under autocast more operations are done in float32 (softmax, norms, losses); the CPU leaves them as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

# The operations that CUDA's autocast does in float32 and the CPU's does not, as far as models use them:
# https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32
_IN_FLOAT32 = {
    "layer_norm", "group_norm", "softmax", "log_softmax", "softmin", "nll_loss", "softplus",
    "normalize", "exp", "expm1", "log", "log10", "log1p", "log2", "pow", "__pow__", "__rpow__", "reciprocal", "rsqrt",
    "norm", "cosine_similarity", "cosine_embedding_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div",
    "poisson_nll_loss", "hinge_embedding_loss", "triplet_margin_loss", "soft_margin_loss", "cdist", "dist",
    "binary_cross_entropy_with_logits", "pdist", "renorm", "sinh", "cosh", "tan", "acos", "asin", "erfinv",
}  # fmt: skip
_SUMMED_IN_FLOAT32 = {"sum", "prod", "cumsum", "cumprod"}  # the kernel widens as it reads: there is no cast

_CROSS_ENTROPY = F.cross_entropy
_ATTENTION, _DROPOUT = F.scaled_dot_product_attention, (F.dropout, torch.dropout)  # torch's own, also while wrapped


class LikeGpu(TorchFunctionMode):
    """Calls functions as a GPU would have them called."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.multi_head_attention_forward:
            with _like_gpu_inside_functional():  # a mode does not see what a function calls that it has seen
                return func(*args, **(kwargs or {}))
        return call_like_gpu(func, args, kwargs or {})


def call_like_gpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch with what a GPU would do in its place."""
    name = getattr(func, "__name__", "")
    if func is _ATTENTION:
        # Dropout keeps the CPU from its fused kernel; a GPU draws it inside.
        args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        return func(*args, **kwargs | ({"dropout_p": 0.0} if "dropout_p" in kwargs else {}))
    if func in _DROPOUT:
        return _dropout(func, args, kwargs)
    if torch.is_autocast_enabled("cpu"):
        if func is _CROSS_ENTROPY:
            return _cross_entropy(*args, **kwargs)
        if name in _IN_FLOAT32:
            args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs))
        elif name in _SUMMED_IN_FLOAT32 and _narrow(args[0]):
            kwargs = {"dtype": torch.float32, **kwargs}
    return func(*args, **kwargs)


def _cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """A GPU takes the logarithms as they come, and widens them for the loss; the CPU widens first."""
    smooth = (args[4] if len(args) > 4 else kwargs.get("label_smoothing", 0.0)) > 0
    if smooth or target.is_floating_point():
        return _CROSS_ENTROPY(_widened(input), target, weight, *args, **kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name != "label_smoothing"}
    with torch.autocast("cpu", enabled=False):
        logarithms = F.log_softmax(input, dim=min(1, input.dim() - 1))
        return F.nll_loss(_widened(logarithms), target, weight, *args[:4], **kwargs)


def _dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One kernel that draws, scales and multiplies, where the CPU has three."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
    p, training = given.get("p", 0.5), given.get("training", given.get("train", True))
    if not training or not 0 < p < 1 or given.get("inplace"):
        return func(*args, **kwargs)
    return torch.native_dropout(given["input"], p, True)[0]


@contextmanager
def _like_gpu_inside_functional() -> Iterator[None]:
    names = ("scaled_dot_product_attention", "dropout", "softmax")
    before = {name: getattr(F, name) for name in names}

    def wrap(func: Any) -> Any:
        return lambda *args, **kwargs: call_like_gpu(func, args, kwargs)

    try:
        for name, func in before.items():
            setattr(F, name, wrap(func))
        yield
    finally:
        for name, func in before.items():
            setattr(F, name, func)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if _narrow(tensor) else tensor


def _narrow(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype in (torch.bfloat16, torch.float16)


def use_foreach(optimizer: Optimizer) -> None:
    """Make the choice that torch makes for parameters on a GPU; it looks at their type, and does not know fake ones."""
    for group in optimizer.param_groups:
        undecided = "foreach" in group and group["foreach"] is None
        tensor_rate = isinstance(group.get("lr"), Tensor) and not group.get("capturable")
        if undecided and not group.get("fused") and not group.get("differentiable") and not tensor_rate:
            group["foreach"] = True
