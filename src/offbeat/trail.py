"""Trail: the mean of x over the latest share of its steps.

    m <- m + (x - m) / (1 + share (t - 1))          after step t

What the noise of single batches moves to and fro cancels in m: it is about as good as x would become if the learning
rate fell. With share 1 it is the mean of all steps, with 0 it would be x itself; between, it reaches back over about
that share of the steps so far, however long the run is (Shamir & Zhang 2013, with eta = 1 / share - 1).

The mean over steps and the mean over workers are one mean, in any order: each worker keeps its own trail, and nothing
more travels until the end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import BadInput
from .replica import in_chunks

WIDE_ENOUGH = 4  # bytes of a number: a mean of many steps moves by less than 16 bits can say


class Trail:
    """Of tensors that others change in place. One buffer of their size beside them."""

    def __init__(self, tensors: Sequence[Tensor], share: float) -> None:
        self._tensors, self._share = tuple(tensors), share
        self.means = tuple(x.detach().to(_wide(x.dtype), copy=True) for x in self._tensors)
        self._steps = 0

    def follow(self) -> None:
        """A step has gone by."""
        self._steps += 1
        weight = 1 / (1 + self._share * (self._steps - 1))
        with torch.no_grad():
            for pair in zip(self.means, self._tensors, strict=True):
                for mean, x in in_chunks(*pair) if pair[0].dim() == 1 else (pair,):
                    mean.lerp_(x.to(mean.dtype), weight)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "means": list(self.means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        sizes, own = ([tuple(mean.shape) for mean in means] for means in (state["means"], self.means))
        if sizes != own:
            raise BadInput(f"a trail of {sizes} does not fit x, which is {own}: resume with the model that it was of")
        self._steps = state["steps"]
        for mean, saved in zip(self.means, state["means"], strict=True):
            mean.copy_(saved)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= WIDE_ENOUGH else torch.float32
