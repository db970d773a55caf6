"""Lead: how far the host may be ahead of its GPU.

A host only launches kernels, and is soon several steps ahead of a GPU that is busy. Whatever it sends or merges then is
that much later than it need be: a snapshot begins to travel when the GPU has come to it, and a mean that is there is
merged behind all that was launched before. One step ahead is enough to keep the GPU busy.
"""

import torch

from .events import mark


class Lead:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._here: torch.cuda.Event | None = None  # the end of the latest step, in the order of the GPU

    def wait(self) -> None:
        """For the end of the step before the one that was just launched."""
        if self._here is not None:
            self._here.synchronize()

    def mark(self) -> None:
        if self._device.type == "cuda":
            self._here = mark(torch.cuda.current_stream(self._device))
