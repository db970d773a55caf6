"""Memory: what a training step holds, by what it is."""

from collections.abc import Callable
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


def largest_batch(peak_at: Callable[[int], int], memory_bytes: int, *, first: int = 1, at_most: int = 1 << 20) -> int:
    """The largest batch whose step fits; 0 if not even one sample does. `peak_at(batch)` traces a step.
    `first` is the first guess.

    A peak grows almost in proportion to the batch, so that a guess on the line through the two nearest known points is
    often right, and a few traces are enough; every second guess halves, for peaks that grow in steps.
    """
    fits, peak = 0, 0
    too_large, too_high = None, 0
    guess, halve = first, False
    while fits < at_most and (too_large is None or too_large - fits > 1):
        here = peak_at(guess)
        if here > memory_bytes:
            too_large, too_high = guess, here
        else:
            fits, peak = guess, here
        if too_large is None:
            guess = min(at_most, 2 * fits)
        elif too_large == 1:
            break
        else:
            line = fits + (memory_bytes - peak) * (too_large - fits) // max(1, too_high - peak)
            guess = min(max((fits + too_large) // 2 if halve else line, fits + 1), too_large - 1)
            halve = not halve
    return fits
