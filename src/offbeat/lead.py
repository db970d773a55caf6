"""Lead: how far the host may be ahead of its GPU.

A host only launches kernels, and is soon several steps ahead of a GPU that is busy. Whatever it sends or merges then is
that much later than it need be: a snapshot begins to travel when the GPU has come to it, and a mean that is there is
merged behind all that was launched before. So the host waits at the end of a step until the GPU is half-way through
that step's backward pass: what is left of it keeps the GPU busy until the next step is launched.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .events import mark


class Lead:
    """`parameters` in the order of forward: with the gradient of the one in the middle, backward is half-way."""

    def __init__(self, device: torch.device, parameters: Sequence[Tensor] = ()) -> None:
        self._device = device
        self._here: torch.cuda.Event | None = None  # the latest place to wait for, in the order of the GPU
        self._hook: RemovableHandle | None = None
        if parameters and device.type == "cuda":
            middle = parameters[len(parameters) // 2]
            self._hook = middle.register_post_accumulate_grad_hook(self._half_way)  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """For the middle of the backward that was just launched; where there was none, for the end of the step
        before."""
        if self._here is not None:
            self._here.synchronize()

    def mark(self) -> None:
        """The end of a step."""
        if self._device.type == "cuda":
            self._here = mark(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _half_way(self, _parameter: Tensor) -> None:
        if not torch.cuda.is_current_stream_capturing():  # into a graph, where a mark would be none
            self.mark()
