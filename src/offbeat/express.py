"""Express: the small tensors travel on a lane of their own, beside the large parts of x.

On the lane of the large parts they would wait behind those, and those for them. Here a ride is sent again as soon as it
is back and a few large parts have been sent since: in every step, unless it is late.

A correction that is many steps late finds a worker that its momentum has carried elsewhere, perhaps to the other side
of the mean: often enough, such corrections drive the workers apart. So small tensors that are late come seldom, if all
ranks that train saw them late in the mean: one that is held back here is late there.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .comm import Comm, Steps, Work
from .layout import Layout, Ranks
from .parcel import Parcel

RIDES = 6  # after which it is asked anew how often they should come;
FEW_RIDES = 2  # at first, and where they come seldom, after so many
MOST_LATE = 2.25  # steps, in the mean: with 2 they help, with 3 they do harm
LATE_NO_MORE = 2.1  # steps, at most, where they have come seldom: between the two all stays as it is
REST = 20  # steps between two corrections that are later than that: longer than momentum remembers


def express_lane(layout: Layout) -> Ranks:
    """All ranks in another order, so that nothing waits for the averages over `layout.ranks`, nor they for it."""
    return layout.ranks[::-1]


class Express:
    def __init__(self, parcel: Parcel, lane: Ranks) -> None:
        self.parcel = parcel
        self._lane = lane
        self._dense, self._spacing = 1, 1  # large parts from ride to ride, if it is on time, and as it is
        self._at_most = 1
        self._since = 1  # large parts
        self._seldom = False
        self._rides = 0  # since it was last asked; as all that is asked, alike on all ranks
        self._asked = False
        self._verdict: list[Work[Tensor]] = []
        self._forget()

    def space(self, parts: int, at_most: int) -> None:
        """So many large parts between two rides, and where they come seldom at most so many."""
        self._spacing = max(1, min(round(self._spacing * parts / self._dense), at_most)) if self._seldom else parts
        self._dense, self._at_most = parts, at_most
        self._parts = self._steps_apart = 0  # other parts

    def large_sent(self) -> None:
        self._since += 1

    @property
    def may_send(self) -> bool:
        return not self.parcel.in_flight and self._since >= self._spacing

    def send(self, comm: Comm, step: int, *, training: bool) -> Steps:
        if self._rides:
            self._parts += self._since
            self._steps_apart += step - self.parcel.sent_at
        if self._verdict:  # sent before the latest ride, so it is there: nobody waits for it
            yield from self._obey()
        elif self._rides >= (FEW_RIDES if self._seldom or not self._asked else RIDES):
            self._ask(comm, training)
        self._rides += 1
        self._since = 0
        self.parcel.send(comm, self._lane, step, training=training)

    def receive(self, step: int) -> Steps:
        self._arrivals += 1
        self._steps_late += step - self.parcel.sent_at
        yield from self.parcel.receive()
        self.parcel.merge()

    def settle(self) -> Steps:
        """At the end: nothing is left under way."""
        if self._verdict:
            yield from self._obey()

    def _forget(self) -> None:
        self._rides = self._arrivals = self._steps_late = self._parts = self._steps_apart = 0

    def _ask(self, comm: Comm, training: bool) -> None:
        """Whether this rank still trains, and if so how many steps late its rides were, and how many large parts it
        sent in a step. Each a number of its own, as control messages are."""
        trains = training and self._arrivals > 0
        late = self._steps_late / self._arrivals if trains else 0.0
        pace = self._parts / max(self._steps_apart, 1) if trains else 0.0
        self._verdict = [
            comm.average(torch.tensor(float(said), dtype=torch.float64), self._lane) for said in (trains, late, pace)
        ]
        self._asked = True

    def _obey(self) -> Steps:
        means: list[float] = []
        for work in self._verdict:
            mean: Any = yield work
            means.append(mean.item())
        self._verdict = []
        self._forget()  # in the old order it means nothing now
        train, late, pace = means
        if train > 0 and late / train > MOST_LATE:
            self._seldom = True
            self._spacing = max(self._dense, min(math.ceil(REST * pace / train), self._at_most))
        elif train > 0 and late / train <= LATE_NO_MORE:
            self._seldom, self._spacing = False, self._dense
