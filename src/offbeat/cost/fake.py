"""A model that takes no memory: its tensors are fake, they have a shape but no numbers.

It is built on the meta device, then copied with a fake tensor in place of each tensor. Building it of fake tensors at
once would be shorter, but they cannot be cast (`model.bfloat16()`) and are copied wrongly (`copy.deepcopy(layer)`
copies their mode, too, as in nn.TransformerEncoder).

All fake tensors are on a fake CPU, whatever device is meant: torch aborts the process when a fake CUDA tensor meets
autograd in a build without CUDA. What a GPU does differently is in `gpu.py`.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import BadInput

Model = nn.Module | Callable[[], nn.Module]


def fake_mode() -> FakeTensorMode:
    """Real tensors become fake when they are used: a model may make one of its own in forward."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_model(model: Model, mode: FakeTensorMode) -> nn.Module:
    """A fake copy of a model, or of what the function that builds it returns."""
    built = model if isinstance(model, nn.Module) else _build(model)
    if not isinstance(built, nn.Module):
        raise BadInput(f"the function that builds the model returned {type(built).__name__}, not a Module: return one")
    # deepcopy takes what is in here for copied already; so tied weights stay tied.
    fakes: dict[int, Any] = {
        id(parameter): nn.Parameter(fake_tensor(parameter, mode), requires_grad=parameter.requires_grad)
        for parameter in built.parameters()
    }
    with _CopiesAreFake(mode):
        return copy.deepcopy(built, fakes)


def fake_tensors(values: Any, mode: FakeTensorMode) -> Any:
    """The same structure of tuples, lists and dicts with a fake tensor for each tensor, one for each that is shared."""
    fakes: dict[int, Tensor] = {}
    return tree_map_only(Tensor, lambda tensor: fakes.setdefault(id(tensor), fake_tensor(tensor, mode)), values)


def fake_tensor(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """A fake tensor of the same shape, strides and type."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _build(function: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            return function()
    except Exception:  # perhaps it computes a setting with tensors, such as linspace(0, 0.1, depth)[3].item()
        with parameters_without_memory():
            return function()


class _CopiesAreFake(TorchFunctionMode):
    """While it is entered, the copy of a tensor is a fake one."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = fake_tensor(tensor, self._mode)
        return memo[id(tensor)]


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """Build a model for real, but for its parameters: a module gets each without memory, before values are drawn."""
    register = nn.Module.register_parameter
    without_memory = WeakIdKeyDictionary()  # a parameter that two modules get stays one

    def register_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if type(parameter) is nn.Parameter and not parameter.is_meta:
            if parameter not in without_memory:
                meta = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
                without_memory[parameter] = meta
            parameter = without_memory[parameter]
        register(module, name, parameter)

    nn.Module.register_parameter = register_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
