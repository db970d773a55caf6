"""Arguments: what a call was given, by name, and what it changes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .kernel import Argument, Ref, Scalar, Spec

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.memory_format, torch.layout)


class Arguments:
    """The arguments of a call by the names its schema gives them, each tensor kept once."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self._places: dict[object, int] = {}
        only_reshapes = torch.Tag.inplace_view in func.tags  # t_(): changes a tensor's shape, not its numbers
        is_power = "pow" in func._schema.name  # x ** 2 has a kernel of its own
        written: set[int] = set()
        named: list[tuple[str, Argument]] = []
        for position, argument in enumerate(func._schema.arguments):
            if position < len(args):
                value = args[position]
            elif argument.name in kwargs:
                value = kwargs[argument.name]
            else:
                value = argument.default_value
            kept = self._keep(value)
            if str(argument.type) == "number" and isinstance(kept, (bool, int, float, complex)) and not is_power:
                kept = Scalar(kept)
            named.append((argument.name, kept))
            # Fused optimizers may unscale gradients in place, and declare so, but do not without a GradScaler.
            writes = argument.alias_info is not None and argument.alias_info.is_write and not only_reshapes
            if writes and argument.name != "grads":
                written.update(ref.index for ref in flat(kept) if isinstance(ref, Ref))
        self.named = tuple(named)
        self.written = tuple(sorted(written))

    def value(self, name: str) -> Argument:
        return dict(self.named)[name]

    def _keep(self, value: Any) -> Argument:
        if isinstance(value, Tensor):
            key = storage_of(value), value.storage_offset(), value.shape, value.stride(), value.dtype
            if key not in self._places:
                self._places[key] = len(self.tensors)
                self.tensors.append(value)
            return Ref(self._places[key])
        if isinstance(value, (list, tuple)):
            return tuple(map(self._keep, value))
        return value if isinstance(value, _PLAIN) else None  # a device or a generator: the caller's to choose


def spec_of(tensor: Tensor) -> Spec:
    """A tensor without its values."""
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    return Spec(tuple(tensor.shape), tensor.dtype, strides)


def storage_of(tensor: Tensor) -> int:
    """The memory that a tensor is in, as a number; views share it."""
    number: int = tensor.untyped_storage()._cdata
    return number


def flat(value: Any) -> Iterator[Any]:
    """What is in lists and tuples, however deep."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from flat(part)
    else:
        yield value
