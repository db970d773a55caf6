"""Parcel: a part of x that is averaged while the worker trains on. Strategies with late merges are made of these.

    send:     s <- x                              a snapshot; its average over the ranks starts
    merge:    x <- x + (mean s - s)               keeps what was learned meanwhile; zero in the sum over all ranks
    adopt:    x <- mean s                         the exact average, where nothing was learned meanwhile
    approach: x <- x + weight (mean s - x)        part of the way, also on ranks that sent nothing: `relay` tells them

A parcel travels in letters, one for each dtype and device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .byte_letter import ByteLetter
from .comm import Average, Comm, Steps
from .layout import Ranks
from .letter import GatheredLetter, Letter, Pieces, gathers
from .replica import Fragment

WIRE_DTYPES = ("float32", "bfloat16", "float16")


def wire_share(wire_dtype: str | None) -> float:
    """What travels, of the bytes of an x in float32."""
    return 1.0 if wire_dtype is None else getattr(torch, wire_dtype).itemsize / torch.float32.itemsize


class Parcel:
    """Two buffers of the part's size beside x; where differences travel, the reference and two of the wire's; with
    momentum one more.

    `reference`, where differences travel: pieces like those of the part, of the same values on all ranks, which are
    written to; none: x as it is now, which must be the same on all ranks.
    """

    def __init__(
        self,
        part: Fragment,
        wire_dtype: str | None = None,
        reference: Fragment | None = None,
        momentum: float = 0.0,
    ) -> None:
        self.sent_at = 0  # the step of the latest snapshot
        alike: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor | None]]] = {}
        for x, shared in zip(part, reference or [None] * len(part), strict=True):
            alike.setdefault((x.dtype, x.device), []).append((x, shared))
        self._letters = [make_letter(pieces, wire_dtype, momentum) for pieces in alike.values()]
        self._works: Sequence[Average] = ()
        self.nbytes = sum(x.nbytes for x in part)

    @property
    def in_flight(self) -> bool:
        return bool(self._works)

    @property
    def done(self) -> bool:
        """Whether its average is there, or none is under way."""
        return all(work.done for work in self._works)

    @property
    def found_idle(self) -> bool:
        """Whether the wire may have waited for this rank before the average that is under way."""
        return bool(self._works) and self._works[0].found_idle

    def send(self, comm: Comm, ranks: Ranks, step: int, *, training: bool) -> None:
        """Start the average of a snapshot; `training` says that this rank still learns."""
        self.sent_at = step
        self._works = [letter.send(comm, ranks, training) for letter in self._letters]

    def receive(self) -> Steps:
        """Wait for the average."""
        for work in self._works:
            yield work
        self._works = ()

    def relay(self, comm: Comm, source: int, ranks: Ranks) -> Steps:
        """Pass the average on, from `source`, which has received it, to all `ranks`."""
        if len(ranks) > 1:
            for work in [letter.relay(comm, source, ranks) for letter in self._letters]:
                yield work

    @property
    def some_train(self) -> bool:
        """Whether some rank still trained when the average that is there was sent. Waits for a GPU, so ask seldom."""
        return any(letter.some_train for letter in self._letters)

    def merge(self) -> None:
        for letter in self._letters:
            letter.merge()

    def adopt(self) -> None:
        for letter in self._letters:
            letter.adopt()

    def approach(self, weight: float) -> None:
        for letter in self._letters:
            letter.approach(weight)


def make_letter(pieces: Pieces, wire_dtype: str | None, momentum: float) -> Letter:
    if wire_dtype == "int8":
        return ByteLetter(pieces, momentum)
    return (GatheredLetter if gathers([x for x, _ in pieces]) else Letter)(pieces, wire_dtype, momentum)
