"""Gossip: pairs of neighbours average beside the steps (AD-PSGD, Lian et al. 2018).

    every step:          x_i <- x_i + delta_i                            never waits
    exchange (i, j):     m = x_i - x_j ;  x_i -= m / 2 ;  x_j += m / 2    both from the same two snapshots

Each worker takes part in `rate` exchanges per step on average: it asks a neighbour at the ticks of a Poisson clock of
rate / 2 per step, and is asked as often. Where the wire cannot carry that many, it carries what it can, and the report
says how many those were. x travels in fragments, each snapshot taken when its turn comes.
"""

import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..comm import Comm, Process, Steps, Work
from ..errors import LostPeer, Stopped
from ..layout import Layout, Ranks
from ..options import option
from ..replica import Replica
from ..strategy import Plan, Strategy, training_flag
from ..topology import LEAST_RATE, TOPOLOGIES, check_topology, heal, neighbours

FRAGMENT_NBYTES, MOST_FRAGMENTS = 1 << 16, 24
IN_FLIGHT = 2  # fragments of an exchange: one is on the wire while the next is agreed on
IN_FLIGHT_OF_GPU = 8  # there each waits for the kernels before it, both ways
OVERDUE_TICKS = 2.0  # that a worker makes up for when the wire was too slow for its clock


@dataclass(kw_only=True)
class Gossip(Strategy):
    """No collective, no coordinator: a worker only ever meets its neighbours, in the background."""

    name: ClassVar[str] = "gossip"
    meets_peers: ClassVar[bool] = True
    topology: str = option("exponential", f"who may exchange with whom: {', '.join(TOPOLOGIES)}, or a file of edges")
    rate: float = option(1.0, "exchanges per worker and step", at_least=LEAST_RATE)
    fragments: int | None = option(None, "parts in which x is exchanged (none: of 64 KiB each, at most 24)", at_least=1)
    exchanges: int = field(default=0, init=False)
    exchanges_in_steps: int = field(default=0, init=False)  # those up to the last step: they go on for others' sake
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_topology(self.topology)

    @property
    def copies(self) -> float:
        return super().copies + 2 + min(1.0, IN_FLIGHT_OF_GPU / (self.fragments or MOST_FRAGMENTS))

    def check(self, layout: Layout, plan: Plan | None) -> None:
        neighbours(self.topology, layout.workers)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        count = self.fragments or min(MOST_FRAGMENTS, math.ceil(replica.nbytes / FRAGMENT_NBYTES))
        self._sections = [self.section(piece) for fragment in replica.fragments(count) for piece in fragment]
        self._window = IN_FLIGHT_OF_GPU if replica.flats[0].is_cuda else IN_FLIGHT
        share_buffers(self._sections, self._window)
        self._turn = 0  # of the section that is exchanged next
        self._used, self._fresh = 0, 1  # sections exchanged since the last boundary; renewed at each boundary
        self._whole = self._graph = neighbours(self.topology, comm.layout.workers)
        self._lost: set[int] = set()
        self._random = random.Random(f"gossip {comm.seed} {comm.rank}")
        self._began_at, self._step_seconds = comm.now(), 0.0
        self._loop: Process | None = None

    def section(self, weights: Tensor) -> "Section":
        return Section(weights)

    def after_step(self, step: int) -> Steps:
        self.steps += 1  # since the start; `step` goes on from a checkpoint
        self.exchanges_in_steps = self.exchanges
        self._step_seconds = (self.comm.now() - self._began_at) / self.steps
        for section in self._sections:
            section.settle(self.steps_gone_by())
        for section in self._upcoming():
            section.renew()
        if self._loop is None and self._graph[self.comm.rank]:
            self._loop = self.comm.spawn(self._exchange())
        yield from ()

    def finish(self) -> Steps:
        everyone = self.comm.layout.ranks
        yield self.comm.average(training_flag(False), everyone)  # the last is here; exchanges went on
        if self._loop is not None:
            self._loop.stop()
            yield self._loop
        for section in self._sections:
            section.settle(self.steps_gone_by())
            section.end()
        yield from super().finish()

    def report(self) -> dict[str, float]:
        return {"averages": self.exchanges, "rate": self.exchanges_in_steps / max(self.steps, 1)}

    def steps_gone_by(self) -> float:
        """The time in this worker's own unit: one step of its own, waits included."""
        return (self.comm.now() - self._began_at) / self._step_seconds if self._step_seconds else 0.0

    def lose(self, peers: set[int]) -> None:
        """Go on without some peers, up to `finish`, which needs all: their neighbours become each other's."""
        self._lost |= peers
        self._graph = heal(self._whole, self._lost)

    def _upcoming(self) -> Iterator["Section"]:
        """Those whose turn comes before the next boundary, by what the last steps saw: only they need a new record.

        One more than then, and as many as an exchange sends at once when it begins. A step without says nothing.
        """
        before = self._fresh - 1 if self._used else self._fresh
        self._fresh = min(len(self._sections), max(self._used + 1 + self._window, before))
        self._used = 0
        for index in range(self._turn, self._turn + self._fresh):
            yield self._sections[index % len(self._sections)]

    def _exchange(self) -> Steps:
        tick_at = self.comm.now() + self._until_next_tick()
        try:
            while near := self._living_neighbours():
                first = near.index(self._random.choice(self._graph.draws[self.comm.rank]))
                try:
                    after = max(0.0, tick_at - self.comm.now())
                    peer = yield self.comm.pair((*near[first:], *near[:first]), after=after)
                    now = self.comm.now()
                    if now >= tick_at:  # it was this worker's own question
                        oldest = now - OVERDUE_TICKS * 2 / self.rate * self._step_seconds
                        tick_at = max(tick_at, oldest) + self._until_next_tick()
                    yield from self._average_with(peer)
                except LostPeer as lost:
                    self._turn = 0
                    if lost.peer is not None:
                        self.lose({lost.peer})
        except Stopped:
            return

    def _living_neighbours(self) -> Ranks:
        """A neighbour that died is known to be lost also where no exchange was under way."""
        alive = self.comm.alive()
        if len(alive) + len(self._lost) < self.comm.layout.workers:
            self.lose(set(self.comm.layout.ranks) - set(alive))
        return self._graph[self.comm.rank]

    def _until_next_tick(self) -> float:
        return self._random.expovariate(self.rate / 2) * self._step_seconds

    def _average_with(self, peer: int) -> Steps:
        in_flight: deque[tuple[Section, Work[Tensor]]] = deque()
        try:
            for index, section in enumerate(self._sections):
                self._turn = index
                section.in_flight = True
                section.mix(self.steps_gone_by())
                in_flight.append((section, self.comm.swap(section.x, peer, out=section.theirs)))
                while len(in_flight) == self._window or (in_flight and index + 1 == len(self._sections)):
                    oldest, work = in_flight.popleft()
                    received = yield work
                    oldest.receive(received.sub_(oldest.x), self.steps_gone_by())
                    oldest.in_flight = False
                    self._used += 1
        finally:
            for section in self._sections:
                section.in_flight = False
        self._turn = 0
        self.exchanges += 1


class Section:
    """A part of x as the exchanges see it. They work on a record of their own, taken at a step boundary, because the
    worker reads and changes its weights meanwhile; the weights follow at the next boundary."""

    alpha = 0.5

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.x = weights.clone()
        self.theirs = weights.new_empty(0)  # where what comes is put
        self._added = torch.zeros_like(weights)  # since the last boundary, if touched
        self._touched = False
        self.in_flight = False  # then the record must stay as it is

    def settle(self, now: float) -> None:
        """At a boundary: the weights get what exchanges have added."""
        if self._touched:
            self.weights.add_(self._added)
            self._touched = False

    def renew(self) -> None:
        """Take the record anew, unless it is on its way. An old one does no harm: both sides use what they sent."""
        if not self.in_flight:
            self.x.copy_(self.weights)

    def mix(self, now: float) -> None:
        """Before the record is sent; `now` counts steps."""

    def receive(self, difference: Tensor, now: float) -> None:
        """What came, less the record that was sent for it."""
        self.add(difference, self.alpha)

    def add(self, change: Tensor, times: float) -> None:
        self.x.add_(change, alpha=times)
        if self._touched:
            self._added.add_(change, alpha=times)
        else:
            torch.mul(change, times, out=self._added)
            self._touched = True

    def end(self) -> None:
        """After the last exchange, before the exact average of all."""


def share_buffers(sections: Sequence[Section], window: int) -> None:
    """What comes needs a buffer for as long as it is in flight: those of a dtype share as many as can be so at once."""
    buffers: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}
    for index, section in enumerate(sections):
        x, kind = section.x, (section.x.dtype, section.x.device, index % window)
        if kind not in buffers:
            buffers[kind] = x.new_empty(max(len(section.x) for section in sections))
        section.theirs = buffers[kind][: len(x)]
