"""Roster: in which order the parts of x travel, the same on all ranks.

The large parts come one after another; the small tensors, one parcel together, after every few of them:

    1 2 3 4 small 5 6 7 8 small ...

A parcel is sent again only when it is back. So where the way takes long (a GPU that is steps behind its host, averages
that begin late, a slow rank) all wait for the small tensors, and the wire runs dry. Then they come half as often.

A correction that is many steps late finds a worker that its momentum has carried elsewhere, perhaps to the other side
of the mean: often enough, such corrections drive the workers apart. So small tensors that are late come seldom.

Both follow from what all ranks saw of the latest rides, and hold from a ride on that all ranks agree on.
"""

import math
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from .comm import Comm, Steps, Work
from .parcel import Parcel

RIDES = 6  # of the small tensors, after which it is asked anew how often they should come; at first after one,
FEW_RIDES = 2  # and after so many where they come seldom
MOST_DRY = 1  # of these, at most so many find a wire that ran dry
MOST_LATE = 3  # steps, in the mean: with 2 they help, with 3 there is nothing left to gain, with 5 they do harm
REST = 20  # steps between two corrections that are later than that: longer than momentum remembers


class Roster:
    def __init__(self, large: Sequence[Parcel], small: Parcel | None = None, spacing: int = 1) -> None:
        self.large = tuple(large)
        self.index = 0  # of the large part that comes next, among them
        self._small = small
        self._spacing = self._densest = min(spacing, len(large))  # parts between two rides of the small tensors
        self._since_small = 0  # how many large parts came
        self._awaited = self._was_awaited = False  # all wait for the small tensors to be back; did so before this ride
        self._rides = self._dry = self._late = self._apart = 0  # since it was last asked; the latter two in steps
        self._rides_to_ask = 1
        self._verdict: Work[Tensor] | None = None  # the means over all ranks of: too dry, steps late, steps apart

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
        if self._rides:
            self._apart += step - parcel.sent_at
        if self._verdict is not None:  # sent before the latest ride, so it is there: nobody waits for it
            yield from self._obey()
        elif self._rides >= self._rides_to_ask and self._densest < len(self.large):
            self._ask(comm)
        self._rides += 1
        self._since_small = 0
        self._was_awaited, self._awaited = self._awaited, False
        return parcel

    def arrived(self, parcel: Parcel, step: int) -> None:
        """To be told before it is received: afterwards it says no more how it found the wire."""
        if not self.is_large(parcel):
            self._dry += self._was_awaited and parcel.found_idle
            self._late += step - parcel.sent_at

    def settle(self) -> Steps:
        """At the end: nothing is left under way."""
        if self._verdict is not None:
            yield from self._obey()

    def _ask(self, comm: Comm) -> None:
        seen = [self._dry > MOST_DRY, self._late / self._rides, self._apart / self._rides]
        self._verdict = comm.average(torch.tensor(seen, dtype=torch.float64), comm.layout.ranks)
        self._forget(self._dry if self._rides < RIDES else 0)  # of a few rides alone nothing follows

    def _obey(self) -> Steps:
        means: Tensor = yield self._verdict  # type: ignore[misc]
        self._verdict = None
        dry, late, apart = means.tolist()
        seldom = math.ceil(self._spacing * REST / max(apart, 1)) if late > MOST_LATE else 0
        if dry > 0:
            self._densest = min(2 * self._densest, len(self.large))
        spacing = max(self._densest, min(seldom, len(self.large)))
        self._rides_to_ask = RIDES if spacing == self._densest else FEW_RIDES
        if spacing != self._spacing:
            self._spacing = spacing
            self._forget()  # counted in the old order it means nothing now

    def _forget(self, dry: int = 0) -> None:
        self._rides = self._late = self._apart = 0
        self._dry = dry
