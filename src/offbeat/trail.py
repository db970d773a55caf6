"""Trail: the mean of x over the latest share of its steps.

    m <- m + (x - m) / (1 + share (t - 1))          after step t

What the noise of single batches moves to and fro cancels in m. With share 1 it is the mean of all steps, with 0 it
would be x itself; between, it reaches back over about that share of the steps so far, however long the run is
(polynomial-decay averaging, Shamir & Zhang 2013, with eta = 1 / share - 1).

Every worker keeps its own; nothing more travels until the end. Then those count that trained to the end, or nearly:
what one stopped at lies further back than a trail reaches, if it was faster than the others or had less data.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .comm import Comm, Steps, Work
from .errors import BadInput
from .replica import in_chunks

WIDE_ENOUGH = 4  # bytes of a number: a mean of many steps moves by less than 16 bits can say
SAMPLES = 256  # of the steps that it reaches back over, at least: more tell nothing new, and each weighs too little
HALVINGS = 10  # of the time of a run, to find who trained last: to a thousandth


class Trail:
    """One buffer of the size of x."""

    def __init__(self, share: float, now: float = 0.0) -> None:
        """now: seconds, here and below by the clock of this worker."""
        if not 0 < share <= 1:
            raise BadInput(f"trail={share} does not fit: it is a share of the steps, so use 0 to 1, such as 0.1")
        self._share, self._steps = share, 0
        self._looked_at = 0  # the latest step whose x is in the means
        self._began_at = self._ended_at = now
        self.means: tuple[Tensor, ...] = ()  # like x, once there is a step

    def add_step(self, x: Sequence[Tensor], now: float = 0.0) -> None:
        """x as it is after one more step."""
        self._steps += 1
        self._ended_at = now
        # Of a long run not every step is looked at; in an odd stride, since averages often come every 2^k steps.
        stride = int(self._share * self._steps) // SAMPLES | 1
        if self._steps == 1 or not self.means:
            self.means = tuple(map(_wide_copy, x))
            self._looked_at = self._steps
        elif self._steps - self._looked_at >= stride:
            weight = (self._steps - self._looked_at) / (1 + self._share * (self._steps - 1))
            self._looked_at = self._steps
            with torch.no_grad():
                for pair in zip(self.means, x, strict=True):
                    for mean, new in in_chunks(*pair) if pair[0].dim() == 1 else (pair,):
                        mean.mul_(1 - weight).add_(new.detach().to(mean.dtype), alpha=weight)  # of -inf still -inf

    def hand_in(self, x: Sequence[Tensor], comm: Comm) -> Steps:
        """The mean over the workers takes the place of x. All ranks are here at the same time: the last average before
        held them together."""
        counts, share_of_ranks = yield from self._who_counts(comm)
        self.means = self.means or tuple(map(_wide_copy, x))
        everyone = comm.layout.ranks
        for mean in self.means:
            if not counts:
                mean.zero_()
            elif share_of_ranks < 1:
                mean.div_(share_of_ranks)
        for work in [comm.average(mean, everyone, out=mean) for mean in self.means]:
            yield work
        for own_x, mean in zip(x, self.means, strict=True):
            own_x.copy_(mean)

    def _who_counts(self, comm: Comm) -> Generator[Work[Any], Any, tuple[bool, float]]:
        """Whether this rank made its last step within the share of the time that a trail reaches back, counted from the
        last step of all; and the share of the ranks that did. Where nobody made a step, all count."""

        def mean_of(value: float) -> Work[Tensor]:
            return comm.average(torch.tensor(value, dtype=torch.float64), comm.layout.ranks)

        idle, run = comm.now() - self._ended_at, comm.now() - self._began_at
        seconds: Tensor = yield mean_of(run)
        idle_share = min(1.0, idle / max(seconds.item(), 1e-9)) if self._steps else math.inf
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            some: Tensor = yield mean_of(float(idle_share <= middle))
            low, high = (low, middle) if some.item() > 0 else (middle, high)
        counts = idle_share <= high + self._share
        share_of_ranks: Tensor = yield mean_of(float(counts))
        return (counts, share_of_ranks.item()) if share_of_ranks.item() > 0 else (True, 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "looked_at": self._looked_at, "means": list(self.means)}

    def load_state_dict(self, state: Mapping[str, Any], x: Sequence[Tensor]) -> None:
        sizes, own = ([len(flat) for flat in flats] for flats in (state["means"], x))
        if sizes and sizes != own:
            raise BadInput(
                f"a trail of {sizes} numbers does not fit x, which is {own}: resume with the model it was of"
            )
        self._steps, self._looked_at = state["steps"], state["looked_at"]
        self.means = tuple(
            saved.to(device=flat.device, dtype=_wide(flat.dtype), copy=True)
            for saved, flat in zip(state["means"], x, strict=False)
        )


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= WIDE_ENOUGH else torch.float32


def _wide_copy(x: Tensor) -> Tensor:
    return x.detach().to(_wide(x.dtype), copy=True)
