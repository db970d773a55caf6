"""Answers: what an operation returns on the device that is meant, where fake tensors say otherwise.

- A norm with 16 bits and weights of 32: torch has other types for fake tensors than its kernels.
- Attention on a GPU, as an H200 has it: what it makes in float32 is laid out by places, then heads, whatever its inputs
  are; in 16 bits, by cuDNN, the gradients of queries, keys and values are laid out like these.
"""

from collections.abc import Callable
from typing import Any

import torch

Answer = Callable[[Any, tuple[Any, ...], Any], Any]  # (operation, its arguments, what it returned) -> what it returns

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def as_it_is(_func: Any, _args: tuple[Any, ...], result: Any) -> Any:
    return result


def as_on_a_cpu(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    if func is torch.ops.aten.native_group_norm.default and args[1] is not None:
        normed, mean, rstd = result
        return normed, mean.to(args[1].dtype), rstd.to(args[1].dtype)
    if func is torch.ops.aten.native_group_norm_backward.default:
        gradient, *others = result
        return (None if gradient is None else gradient.to(args[1].dtype), *others)
    return result


def as_on_a_gpu(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    if func is _ATTENTION and result[0].dtype == torch.float32:
        seen, *others = result
        return seen.new_empty(seen.transpose(1, 2).shape).transpose(1, 2), *others
    if func is _ATTENTION_BACKWARD and result[0].dtype != torch.float32:
        return tuple(map(torch.empty_like, args[1:4]))
    return as_on_a_cpu(func, args, result)
