"""Trail: the mean of x over the latest share of its steps.

    m <- m + (x - m) / (1 + share (t - 1))          after step t

What the noise of single batches moves to and fro cancels in m. With share 1 it is the mean of all steps, with 0 it
would be x itself; between, it reaches back over about that share of the steps so far, however long the run is
(polynomial-decay averaging, Shamir & Zhang 2013, with eta = 1 / share - 1).

Every worker keeps its own; nothing more travels until the end. Then those count that trained to the end, or nearly:
what one stopped at lies further back than a trail reaches, if it was faster than the others or had less data.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .comm import Comm, Steps, Work
from .errors import BadInput
from .layout import Ranks
from .replica import in_chunks

WIDE_ENOUGH = 4  # bytes of a number: a mean of many steps moves by less than 16 bits can say
SAMPLES = 256  # of the steps that it reaches back over, at least: more tell nothing new, and each weighs too little


class Trail:
    """One buffer of the size of x."""

    def __init__(self, share: float, now: float = 0.0) -> None:
        """now: seconds, here and below by the clock of this worker."""
        if not 0 < share <= 1:
            raise BadInput(f"trail={share} does not fit: it is a share of the steps, so use 0 to 1, such as 0.1")
        self._share, self._steps = share, 0
        self._began_at = self._ended_at = now
        self.means: tuple[Tensor, ...] = ()  # like x, once there is a step

    def add_step(self, x: Sequence[Tensor], now: float = 0.0) -> None:
        """x as it is after one more step."""
        self._steps += 1
        self._ended_at = now
        stride = max(1, int(self._share * self._steps) // SAMPLES)  # of a long run, not every step is looked at
        if not self.means:
            self.means = tuple(map(_wide_copy, x))
        elif self._steps % stride == 0:
            weight = min(1.0, stride / (1 + self._share * (self._steps - 1)))
            with torch.no_grad():
                for pair in zip(self.means, x, strict=True):
                    for mean, new in in_chunks(*pair) if pair[0].dim() == 1 else (pair,):
                        mean.mul_(1 - weight).add_(new.detach().to(mean.dtype), alpha=weight)  # of -inf still -inf

    def hand_in(self, x: Sequence[Tensor], comm: Comm) -> Steps:
        """The mean over the workers takes the place of x. All ranks are here at the same time: the last average before
        held them together."""
        counts = yield from self._who_counts(comm)
        self.means = self.means or tuple(map(_wide_copy, x))
        everyone = comm.layout.ranks
        if comm.rank not in counts:
            for mean in self.means:
                mean.zero_()
        elif len(counts) < len(everyone):
            for mean in self.means:
                mean.mul_(len(everyone) / len(counts))
        for work in [comm.average(mean, everyone, out=mean) for mean in self.means]:
            yield work
        for own_x, mean in zip(x, self.means, strict=True):
            own_x.copy_(mean)

    def _who_counts(self, comm: Comm) -> Generator[Work[Any], Any, Ranks]:
        """Those that made their last step within the share of the time that a trail reaches back; all, if none did."""
        everyone = comm.layout.ranks
        own, place = torch.zeros(3, len(everyone), dtype=torch.float64), everyone.index(comm.rank)
        seconds = comm.now() - self._ended_at, self._ended_at - self._began_at
        own[:, place] = len(everyone) * torch.tensor([self._steps, *seconds], dtype=torch.float64)
        steps, idle, trained = yield comm.average(own, everyone)
        some = steps > 0
        if not some.any():
            return everyone
        reach = idle[some].min() + self._share * trained.max()
        return tuple(rank for rank, is_one in zip(everyone, (some & (idle <= reach)).tolist(), strict=True) if is_one)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "means": list(self.means)}

    def load_state_dict(self, state: Mapping[str, Any], x: Sequence[Tensor]) -> None:
        sizes, own = ([len(flat) for flat in flats] for flats in (state["means"], x))
        if sizes and sizes != own:
            raise BadInput(
                f"a trail of {sizes} numbers does not fit x, which is {own}: resume with the model it was of"
            )
        self._steps = state["steps"]
        self.means = tuple(
            saved.to(device=flat.device, dtype=_wide(flat.dtype), copy=True)
            for saved, flat in zip(state["means"], x, strict=False)
        )


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.itemsize >= WIDE_ENOUGH else torch.float32


def _wide_copy(x: Tensor) -> Tensor:
    return x.detach().to(_wide(x.dtype), copy=True)
