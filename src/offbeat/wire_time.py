"""WireTime: how long an average of x takes on the wire between the ranks, measured before training."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .comm import Comm, Work
from .replica import Replica

PROBE_SHARE, PROBE_MOST = 16, 1 << 20  # a sixteenth of x, at most 4 MB, tells how fast the wire is
FEWEST_IN_A_PROBE = 2  # numbers
LOOKS, LOOKS_AT_MUCH = 4, 2  # at a latency, and at a probe: one is luck
FEWEST_LATENCIES = 12  # that a part takes on an idle wire: with 4 a loaded one was half empty
MOST_PARTS = 128


@dataclass(frozen=True)
class WireTime:
    """Seconds when all ranks are there, alike on all ranks."""

    latency: float  # of an average of a single number
    seconds: float  # of one of all x
    numbers: int  # of x

    def parts(self, seconds: float, most: int = MOST_PARTS) -> int:
        """In how many parts x should travel, of which none takes longer than that and each is worth its way."""
        if self.seconds <= seconds or seconds <= 0:
            return 1
        worth = int(self.seconds / (FEWEST_LATENCIES * self.latency))
        return max(1, min(-int(-self.seconds // seconds), most, self.numbers, worth))


def time_the_wire(comm: Comm, replica: Replica, wire_dtype: str | None) -> Generator[Work[Any], Any, WireTime]:
    everyone = comm.layout.ranks
    latency = seconds = 0.0
    for flat in replica.flats:
        like = getattr(torch, wire_dtype) if wire_dtype is not None else flat.dtype
        size = min(max(FEWEST_IN_A_PROBE, len(flat) // PROBE_SHARE), PROBE_MOST)
        half, took = size // 2, []
        for length in (1, size, *(1,) * LOOKS, half, *(size, half) * LOOKS_AT_MUCH):
            x = torch.zeros(length, dtype=like, device=flat.device)
            began = comm.now()
            yield comm.add_up(x, everyone)
            took.append(comm.now() - began)
        took = took[2:]  # a fresh connection is slow
        short, whole, first = min(took[:LOOKS]), min(took[LOOKS + 1 :: 2]), min(took[LOOKS + 2 :: 2])
        latency = max(latency, short, 1e-9)
        # A link may carry the first bytes at once and shape what comes after: as the second half does, so all else.
        seconds_per_number = max((whole - short) / size, (whole - first) / (size - half), 0.0)
        seconds += short + seconds_per_number * len(flat)
    means: list[float] = []
    for value in (latency, seconds):
        mean: Tensor = yield comm.average(torch.tensor(value, dtype=torch.float64), everyone)
        means.append(mean.item())
    return WireTime(means[0], means[1], sum(flat.numel() for flat in replica.flats))
