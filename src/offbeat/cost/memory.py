"""Memory: what a training step holds, by what it is."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a training step that is not its first, so that the optimizer's state is there.

    Counted as tensors live and die, without the library's workspaces and the allocator's rounding.
    """

    weights: int
    buffers: int
    gradients: int
    optimizer_state: int
    batch: int  # inputs and targets
    saved: int  # for backward, at the end of forward: activations, and the loss
    peak: int  # the most that is alive at once

    @property
    def constant(self) -> int:
        """What a step needs at any batch size."""
        return self.weights + self.buffers + self.gradients + self.optimizer_state
