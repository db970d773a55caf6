"""Paths: the module that an operation belongs to, in forward and in backward."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .op import LOSS


class Paths:
    """Which module runs now, and which one made a node of the autograd graph.

    Nodes are numbered in the order they are made, so it is enough to note the number at which each module was entered
    or left: this also finds the module of a node that no tensor hook could reach.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._numbers: list[int] = [0]
        self._changes: list[str] = [LOSS]

    @property
    def inside(self) -> bool:
        return bool(self._stack)

    @property
    def now(self) -> str:
        return self._stack[-1] if self._stack else LOSS  # outside of the model there is only the loss

    def at(self, number: int) -> str:
        return self._changes[bisect_right(self._numbers, number) - 1]

    def follow(self, path: str, module: nn.Module) -> Sequence[RemovableHandle]:
        def enter(_module: nn.Module, _inputs: Any) -> None:
            self._stack.append(path)
            self._note()

        def leave(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
            self._stack.pop()
            self._note()

        return module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)

    def _note(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._changes.append(self.now)
