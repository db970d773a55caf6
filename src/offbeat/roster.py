"""Roster: in which order the parts of x travel, the same on all ranks.

The large parts come one after another; the small tensors, one parcel together, after every few of them:

    1 2 3 4 small 5 6 7 8 small ...

A parcel is sent again only when it is back. So where the way takes long (a GPU that is steps behind its host, averages
that begin late, a slow rank) all wait for the small tensors, and the wire runs dry. Then they come half as often, from
a ride on that all ranks agree on.
"""

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from .comm import Comm, Steps, Work
from .parcel import Parcel
from .strategy import training_flag

RIDES, MOST_DRY = 4, 1  # of so many rides of the small tensors, at most so many find a wire that ran dry


class Roster:
    def __init__(self, large: Sequence[Parcel], small: Parcel | None = None, spacing: int = 1) -> None:
        self.large = tuple(large)
        self.index = 0  # of the large part that comes next, among them
        self._small, self._spacing = small, min(spacing, len(large))
        self._since_small = 0  # how many large parts came
        self._awaited = self._was_awaited = False  # all wait for the small tensors to be back; did so before this ride
        self._rides = self._dry_rides = 0
        self._verdict: Work[Tensor] | None = None  # a flag: too many rides were dry, on some rank

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

    def take(self, comm: Comm) -> Generator[Work[Any], Any, Parcel]:
        """The next parcel, which is to be sent now."""
        parcel = self.next
        if self.is_large(parcel):
            self.index = (self.index + 1) % len(self.large)
            self._since_small += 1
            return parcel
        if self._verdict is not None:  # sent before the latest ride, so it is there: nobody waits for it
            yield from self._obey()
        elif self._rides and self._rides % RIDES == 0 and self._spacing < len(self.large):
            self._verdict = comm.average(training_flag(self._dry_rides > MOST_DRY), comm.layout.ranks)
            self._dry_rides = 0
        self._rides += 1
        self._since_small = 0
        self._was_awaited, self._awaited = self._awaited, False
        return parcel

    def arrived(self, parcel: Parcel) -> None:
        """To be told before it is received: afterwards it says no more how it found the wire."""
        if not self.is_large(parcel):
            self._dry_rides += self._was_awaited and parcel.found_idle

    def settle(self) -> Steps:
        """At the end: nothing is left under way."""
        if self._verdict is not None:
            yield from self._obey()

    def _obey(self) -> Steps:
        flag: Tensor = yield self._verdict  # type: ignore[misc]
        self._verdict = None
        if flag.item() > 0:
            self._spacing = min(2 * self._spacing, len(self.large))
            self._dry_rides = 0  # counted in the old order it means nothing now
