"""What torch does differently on a GPU than on the CPU, for traces of a GPU made where there is none.

- Optimizers update all parameters with a few `_foreach` kernels, unless told otherwise.
- Attention with dropout has a fused kernel.
- Under autocast more operations are done in float32 (softmax, norms, losses); the CPU leaves them as they are.
"""

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
    name
    for name in (
        "layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "softplus", "softmin",
        "exp", "expm1", "log", "log10", "log1p", "log2", "pow", "__pow__", "__rpow__", "reciprocal", "rsqrt", "sum",
        "prod", "cumsum", "cumprod", "norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss",
        "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "hinge_embedding_loss", "triplet_margin_loss", "cdist",
        "dist", "renorm", "sinh", "cosh", "tan", "acos", "asin", "erfinv", "rms_norm",
    )
}  # fmt: skip


class LikeGpu(TorchFunctionMode):
    """Calls functions as a GPU would have them called."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            return _fused_attention(func, args, kwargs)
        if name in _IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(Tensor, _widened, (args, kwargs))
        return func(*args, **kwargs)


def _fused_attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Without dropout, which keeps the CPU from its fused kernel; a GPU's draws it inside."""
    if len(args) > 4:
        args = (*args[:4], 0.0, *args[5:])
    return func(*args, **{**kwargs, **({"dropout_p": 0.0} if "dropout_p" in kwargs else {})})


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def use_foreach(optimizer: Optimizer) -> None:
    """Make the choice that torch makes for parameters on a GPU; it looks at their type, and does not know fake ones."""
    for group in optimizer.param_groups:
        undecided = "foreach" in group and group["foreach"] is None
        tensor_rate = isinstance(group.get("lr"), Tensor) and not group.get("capturable")
        if undecided and not group.get("fused") and not group.get("differentiable") and not tensor_rate:
            group["foreach"] = True
