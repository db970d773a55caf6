"""Roster: in which order the parts of x travel, the same on all ranks.

The large parts come one after another; the small tensors, one parcel together, after every few of them:

    1 2 3 4 5 6 7 8 small 9 10 ...

A parcel is sent again only when it is back. So where the way takes long (a GPU that is steps behind its host, averages
that begin late, a slow rank) all wait for the small tensors, and the wire runs dry. Then they come half as often.

A correction that is many steps late finds a worker that its momentum has carried elsewhere, perhaps to the other side
of the mean: often enough, such corrections drive the workers apart. So small tensors that are late come seldom.

Both follow from what all ranks that train saw of the latest rides, and hold from a ride on that all ranks agree on.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .comm import Comm, Steps, Work
from .parcel import Parcel

RIDES = 6  # of the small tensors, after which it is asked anew how often they should come;
FEW_RIDES = 2  # at first, and where they come seldom, after so many
MOST_DRY = 1  # of RIDES, at most so many find a wire that ran dry
MOST_LATE = 3  # steps, in the mean: with 2 they help, with 3 there is nothing left to gain, with 5 they do harm
LATE_NO_MORE = 2.5  # steps, at most, where they have come seldom: between the two all stays as it is
REST = 20  # steps between two corrections that are later than that: longer than momentum remembers


class Roster:
    def __init__(self, large: Sequence[Parcel], small: Parcel | None = None, spacing: int = 1, first: int = 0) -> None:
        self.large = tuple(large)
        self.index = first % len(self.large)  # of the large part that comes next, among them
        self._small = small
        self._spacing = self._densest = min(spacing, len(large))  # parts between two rides of the small tensors
        self._since_small = 0  # how many large parts came
        self._awaited = self._was_awaited = False  # all wait for the small tensors to be back; did so before this ride
        self._asked, self._seen = False, Seen()  # since it was last asked
        self._rides, self._dry = 0, 0  # since the dry ones were last counted
        self._verdict: list[Work[Tensor]] = []  # of what all ranks have seen: see `_ask`

    def __len__(self) -> int:
        """How many parcels there are."""
        return len(self.large) + (self._small is not None)

    @property
    def next(self) -> Parcel:
        due = self._small is not None and self._since_small >= self._spacing
        return self._small if due and self._small is not None else self.large[self.index]

    def is_large(self, parcel: Parcel) -> bool:
        return parcel is not self._small

    def wait(self, *, by_request: bool) -> None:
        """The next parcel is not sent yet: by request it was held back, otherwise it may not be back."""
        self._awaited = not by_request and not self.is_large(self.next) and self.next.in_flight

    def take(self, comm: Comm, step: int) -> Generator[Work[Any], Any, Parcel]:
        """The next parcel, which is to be sent now, after so many steps."""
        parcel = self.next
        if self.is_large(parcel):
            self.index = (self.index + 1) % len(self.large)
            self._since_small += 1
            return parcel
        if self._seen.rides:
            self._seen.steps_apart += step - parcel.sent_at
        if self._verdict:  # sent before the latest ride, so it is there: nobody waits for it
            yield from self._obey()
        elif self._densest < len(self.large) and self._seen.rides >= self._rides_to_ask:
            self._ask(comm)
        self._seen.rides += 1
        self._rides += 1
        self._since_small = 0
        self._was_awaited, self._awaited = self._awaited, False
        return parcel

    def arrived(self, parcel: Parcel, step: int) -> None:
        """To be told before it is received: afterwards it says no more how it found the wire."""
        if not self.is_large(parcel):
            self._dry += self._was_awaited and parcel.found_idle
            self._seen.arrivals += 1
            self._seen.steps_late += step - parcel.sent_at

    def settle(self) -> Steps:
        """At the end: nothing is left under way."""
        if self._verdict:
            yield from self._obey()

    @property
    def _is_seldom(self) -> bool:
        return self._spacing > self._densest

    @property
    def _rides_to_ask(self) -> int:
        return FEW_RIDES if self._is_seldom or not self._asked else RIDES

    def _ask(self, comm: Comm) -> None:
        """Too many dry rides; whether this rank still trains, and if so how many steps late and apart its rides were.
        Each a number of its own, as control messages are."""
        seen, too_dry = self._seen, False
        if self._rides >= RIDES:
            too_dry, self._rides, self._dry = self._dry > MOST_DRY, 0, 0
        trains = seen.arrivals > 0
        late, apart = (seen.steps_late / seen.arrivals, seen.steps_apart / seen.rides) if trains else (0.0, 0.0)
        self._verdict = [
            comm.average(torch.tensor(float(said), dtype=torch.float64), comm.layout.ranks)
            for said in (too_dry, trains, late, apart)
        ]
        self._asked, self._seen = True, Seen()

    def _obey(self) -> Steps:
        means = []
        for work in self._verdict:
            mean: Tensor = yield work
            means.append(mean.item())
        self._verdict = []
        dry, train, late, apart = means
        if dry > 0:
            self._densest = min(2 * self._densest, len(self.large))
        spacing = max(self._spacing, self._densest) if self._is_seldom else self._densest
        if train > 0 and late / train > MOST_LATE:
            seldom = math.ceil(self._spacing * REST / max(apart / train, 1))
            spacing = max(self._densest, min(seldom, len(self.large)))
        elif train > 0 and late / train <= LATE_NO_MORE:
            spacing = self._densest
        if spacing != self._spacing:
            self._spacing, self._seen = spacing, Seen()  # in the old order it means nothing now
            self._rides = self._dry = 0


@dataclass
class Seen:
    """Of the rides of the small tensors, by this rank."""

    rides: int = 0
    arrivals: int = 0  # none on a rank that has finished training
    steps_late: int = 0
    steps_apart: int = 0
