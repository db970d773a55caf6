"""A model that takes no memory: its parameters and buffers are fake tensors, which have a shape but no numbers.

All of them are on a fake CPU, whatever device is meant: torch aborts the process when a fake CUDA tensor meets autograd
in a build without CUDA. What a GPU does differently is in `gpu.py`.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._pytree import tree_map_only

Model = nn.Module | Callable[[], nn.Module]


def fake_mode() -> FakeTensorMode:
    """Tensors that a model keeps outside of its parameters and buffers become fake when they are used."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_model(model: Model, mode: FakeTensorMode) -> nn.Module:
    """A fake copy of a model, or a fake model from the function that builds it."""
    if isinstance(model, nn.Module):
        return _copy(model, mode)
    try:
        with mode:
            return model()
    except DataDependentOutputException:  # it computes some setting with tensors, such as linspace(0, 0.1, depth)
        with _parameters_become_fake(mode):
            built = model()
        return _copy(built, mode)


def fake_tensors(values: Any, mode: FakeTensorMode) -> Any:
    """The same structure of tuples, lists and dicts with a fake tensor for each tensor, one for each that is shared."""
    fakes: dict[int, Tensor] = {}
    return tree_map_only(Tensor, lambda tensor: fakes.setdefault(id(tensor), fake_tensor(tensor, mode)), values)


def fake_tensor(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """A fake tensor of the same shape, strides and type."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, requires_grad=False)


def _copy(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    fakes: dict[int, Any] = {}  # deepcopy takes what is in here for copied already; so tied weights stay tied
    for parameter in model.parameters():
        fakes[id(parameter)] = nn.Parameter(fake_tensor(parameter, mode), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        fakes[id(buffer)] = fake_tensor(buffer, mode)
    return copy.deepcopy(model, fakes)


@contextmanager
def _parameters_become_fake(mode: FakeTensorMode) -> Iterator[None]:
    """Build a model for real, but for its parameters: each is replaced before its values are drawn."""
    register = nn.Module.register_parameter

    def register_fake(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and type(parameter) is nn.Parameter:
            parameter = nn.Parameter(fake_tensor(parameter, mode), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_fake  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
