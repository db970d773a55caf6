"""leave_compiler_unloaded: torch's optimizers load its compiler before they do anything, which takes as long as torch.

They do so to keep the compiler out of some of their methods, and to tell it where a graph ends. While it is not loaded
there is nobody to be kept out or told; from the moment that something else loads it, everything is as torch has it.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"
KEPT_OUT = "__dynamo_disable"  # of a function: what torch calls instead, once it has made that
METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
TELLS = "_use_grad"  # the code around `step`


def leave_compiler_unloaded() -> None:
    """For kinds of optimizers of which this process has made none so far. Of a torch that has it in another way,
    nothing is changed."""
    for name in METHODS:
        method = getattr(Optimizer, name)
        own = getattr(method, "__wrapped__", None)
        if own is not None and not hasattr(own, KEPT_OUT):
            setattr(own, KEPT_OUT, _called(method, own))
    for cls in vars(torch.optim).values():
        step = vars(cls).get("step") if isinstance(cls, type) and issubclass(cls, Optimizer) else None
        if step is not None and getattr(getattr(step, "__code__", None), "co_name", "") == TELLS:
            cls.step = _step(step, step.__wrapped__)


def _called(method: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return own(*args, **kwargs)
        if getattr(own, KEPT_OUT, None) is call:
            vars(own).pop(KEPT_OUT, None)
        return method(*args, **kwargs)  # torch makes what it calls from now on

    return call


def _step(step: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)  # as torch has it around its own
    def call(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if COMPILER in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return own(self, *args, **kwargs)

    return call
