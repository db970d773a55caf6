"""LASGD: local SGD with exact averages in flight (Avidor & Tal Israel 2022).

    every step:                     x_i <- x_i + delta_i                 never waits
    room in the wire's queue:       s_i <- x_i ; start the average of s over all ranks
    it is there, at a boundary:     x_i <- x_i + (mean_j s_j - s_i)      keeps what was learned meanwhile

The corrections of all ranks add up to zero, so the mean over workers follows local SGD exactly. x travels in
fragments, in turns: each has at most one average in flight (with two the recursion e' = e - e_delayed is only
marginally stable), and the queue is just deep enough that the wire never runs dry, so that a fragment is merged a
few steps after its snapshot. A late correction costs more than a rare one.

With `momentum` the mean goes on from average to average, as DiLoCo's does.

The small tensors (convolutions, norms, biases, the last layer) are a few per cent of the bytes and weigh much more in
what is learned. They travel together, after every few fragments: their average is new in every second step, unless
it would be late.
"""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..byte_letter import MOST_RANKS
from ..comm import Comm, Steps, Work
from ..errors import BadInput
from ..layout import Layout, Ranks
from ..letter import narrows
from ..options import option
from ..parcel import WIRE_DTYPES, Parcel
from ..replica import Replica
from ..roster import Roster
from ..strategy import Plan, Strategy
from ..wire_time import time_the_wire

TIMED_STEPS = 4  # after which the step time is known; the first warms up
PARTS_PER_STEP = 4  # that the wire should carry: then a part is hardly more than a step late
OPENING_PARTS, OPENING_SECONDS = 16, 0.025  # before that is known: so many, each of which takes so long,
OPENING_DEPTH = 4  # so many at a time
MOST_OPENING_PARTS = 1 << 16  # in which x is cut for that
SMALL_SHARE, SMALL_EVERY = 0.2, 2  # of the wire, at most, for small tensors that travel every second step,
SMALL_SPACING = 4  # but not more often than after so many parts
FIRST_PATIENCE, MOST_PATIENCE = 4, 1024  # steps with plenty in the queue before it is made shallower


@dataclass(kw_only=True)
class LASGD(Strategy):
    """Nobody waits: the wire averages parts of the model, back to back, while the workers train on."""

    name: ClassVar[str] = "lasgd"
    every: int = option(1, "fewest steps between two snapshots of the same fragment", at_least=1)
    fragments: int | None = option(
        None, "parts in which x travels, in turns (none: as the measured wire and step time ask for)", at_least=1
    )
    delay: int | None = option(
        None, "merge exactly so many steps after the snapshot, waiting if need be (none: as soon as it is there)",
        at_least=0,
    )  # fmt: skip
    max_delay: int | None = option(None, "wait for an average that is so many steps late (none: never)", at_least=0)
    wire_dtype: str | None = option(
        None, "dtype of what travels, also int8 (none: that of x)", one_of=(*WIRE_DTYPES, "int8")
    )
    momentum: float = option(0.0, "with which the mean goes on from average to average, below 1", at_least=0)
    gradients: str = option("own", "node: average the gradients inside each node, every step", one_of=("own", "node"))
    parts: int = field(default=0, init=False)
    merges: int = field(default=0, init=False)
    steps_late: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay is not None and self.max_delay is not None:
            raise BadInput(f"delay={self.delay} and max_delay={self.max_delay} contradict each other: give one of them")
        if self.momentum >= 1:
            raise BadInput(f"momentum={self.momentum} does not fit: from 1 on nothing is ever forgotten, so use less")

    def check(self, layout: Layout, plan: Plan | None) -> None:
        if self.wire_dtype == "int8" and layout.workers > MOST_RANKS:
            raise BadInput(
                f"wire_dtype=int8 adds up bytes of at most {MOST_RANKS} workers, and there are {layout.workers}: "
                f"use bfloat16"
            )

    def groups(self, layout: Layout) -> list[Ranks]:
        nodes = [layout.on(node) for node in range(layout.nodes)] if self.gradients == "node" else []
        return [layout.ranks, *nodes]

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        return layout.beside(rank) if self.gradients == "node" else (rank,)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        self.check(comm.layout, None)
        yield from super().start(replica, comm)
        self._shared: Replica | None = None  # from which differences travel; x itself is still equal on all ranks
        if self.momentum > 0 or any(narrows(flat, self.wire_dtype) for flat in replica.flats):
            self._shared = Replica(tuple(map(torch.clone, replica.flats)), replica.slots)
        self._roster: Roster | None = None
        self._chosen = False  # the fragments; until then the roster is that of the opening,
        self._to_open = 0  # of which so many large parts are not sent yet
        self._queue: deque[Parcel] = deque()  # in flight, the oldest first
        self._depth, self._deepened_at = 2, 0
        self._held_back = False  # something, by the depth alone, at the latest boundary
        self._could_be_late: set[Parcel] = set()  # in the queue; a deeper one would have had them a step earlier
        self._plenty, self._patience = 0, FIRST_PATIENCE
        self._steps, self._first_step_at = 0, 0.0
        self._step_seconds: Work[Tensor] | None = None  # the mean over all ranks, once it is asked for
        in_step = self.delay is not None or self.max_delay == 0 or comm.layout.workers == 1
        if self.fragments is not None or in_step:
            self._roster = self._cut(self.fragments or 1, SMALL_SPACING)
            self._chosen = True
        else:
            self._wire = yield from time_the_wire(comm, replica, self.wire_dtype)
            if self.every == 1:
                self._open()

    def after_step(self, step: int) -> Steps:
        self._steps += 1
        if self._steps == 1:
            self._first_step_at = self.comm.now()
        if self.comm.layout.workers == 1:
            return
        if self._roster is not None:
            yield from self._merge_and_send(self._roster)
        if not self._chosen and (roster := (yield from self._choose_fragments())) is not None:
            yield from self._merge_and_send(roster)

    def _merge_and_send(self, roster: Roster) -> Steps:
        self._deepen_if_dry(roster)
        while self._queue and (yield from self._is_due(self._queue[0])):
            yield from self._merge_oldest(roster)
        self._make_shallower(roster)
        held_back, self._held_back = self._held_back, False
        while self._may_send(roster):
            ran_dry = not self._queue
            parcel = yield from self._send(roster, training=True)
            if held_back and self.gradients == "own":
                self._could_be_late.add(parcel)
                self._deepen_if_dry(roster)
            elif held_back and ran_dry:  # what all ranks of a node see alike: they must send in the same step
                self._deepen(roster)
        while self._queue and 0 in (self.delay, self.max_delay):
            yield from self._merge_oldest(roster)

    def finish(self) -> Steps:
        if self.comm.layout.workers > 1:
            yield from self._drain()
        yield from super().finish()

    def report(self) -> dict[str, float]:
        return {
            "averages": self.merges // max(self.parts, 1),
            "delay": self.steps_late / max(self.merges, 1),
            "fragments": self.parts,
        }

    def _drain(self) -> Steps:
        """Merge what is in flight, and take part in the averages of those that still train."""
        roster = self._roster
        while self._queue and roster is not None:
            yield from self._merge_oldest(roster)
        some_train = True
        while some_train:  # the others, in the order in which they send
            if roster is None or not (self._chosen or self._to_open):
                roster = yield from self._cut_by(self._ask_for_step_seconds())
            parcel = yield from self._send(roster, training=False)
            yield from parcel.receive()
            some_train = parcel.some_train
            parcel.merge()
            self._queue.clear()
        if roster is not None:
            yield from roster.settle()

    def _is_due(self, parcel: Parcel) -> Generator[Work[Any], Any, bool]:
        late = self._steps - parcel.sent_at
        if self.delay is not None:
            return late >= self.delay
        if self.max_delay is not None and late >= self.max_delay:
            return True
        if self.gradients == "own":
            return parcel.done
        node = self.comm.layout.beside(self.comm.rank)  # its ranks stay equal only if all of them merge in this step
        all_done: Tensor = yield self.comm.average(torch.tensor(float(parcel.done), dtype=torch.float64), node)
        return all_done.item() > 1 - 0.5 / len(node)

    def _merge_oldest(self, roster: Roster) -> Steps:
        parcel = self._queue.popleft()
        self._could_be_late.discard(parcel)
        roster.arrived(parcel, self._steps)
        yield from parcel.receive()
        late = self._steps - parcel.sent_at
        if roster.is_large(parcel):
            self.merges += 1
            self.steps_late += late
        if late == 0:
            parcel.adopt()
        else:
            parcel.merge()

    def _may_send(self, roster: Roster) -> bool:
        if not self._chosen and not self._to_open:
            return False
        parcel = roster.next
        if self.delay is not None:
            # Exactly so late means exactly when, too: the parts of x take turns within the interval.
            interval = max(self.every, self.delay)
            first = self.every + roster.index * interval // len(roster)
            its_step = self._steps >= first and (self._steps - first) % interval == 0
            return its_step and parcel.sent_at < self._steps and not parcel.in_flight
        by_request = self._steps - parcel.sent_at < self.every
        waits = parcel.in_flight or len(self._queue) >= self._depth
        self._held_back = waits and not parcel.in_flight and not by_request
        if waits or by_request:
            roster.wait(by_request=by_request)
        return not waits and not by_request

    def _send(self, roster: Roster, *, training: bool) -> Generator[Work[Any], Any, Parcel]:
        parcel = yield from roster.take(self.comm, self._steps)
        self._to_open -= not self._chosen and roster.is_large(parcel)
        parcel.send(self.comm, self.comm.layout.ranks, self._steps, training=training)
        self._queue.append(parcel)
        return parcel

    def _deepen_if_dry(self, roster: Roster) -> None:
        """When the wire ran dry while there was more to send."""
        if any(parcel.found_idle for parcel in self._could_be_late if parcel.sent_at > self._deepened_at):
            self._deepen(roster)

    def _deepen(self, roster: Roster) -> None:
        self._depth = min(self._depth + 1, len(roster))
        self._deepened_at = self._steps
        self._patience = min(2 * self._patience, MOST_PATIENCE)

    def _make_shallower(self, roster: Roster) -> None:
        """When for many steps the wire was not near running dry, and for ever more of them, since what was tried and
        ran dry need not be tried again soon."""
        self._plenty = self._plenty + 1 if len(self._queue) > 1 else 0
        if self._plenty >= self._patience and self._depth > 2:
            self._depth -= 1
            self._plenty = 0
        if self.max_delay == 0:
            self._depth = len(roster)

    def _open(self) -> None:
        """The workers part most in their first steps, when nobody knows yet how long a step takes: so the first parts
        of x travel at once, and the small tensors with them."""
        parts = self._wire.parts(OPENING_SECONDS, MOST_OPENING_PARTS)
        self._roster = self._cut(parts, SMALL_SPACING, most=OPENING_PARTS)
        self._depth = OPENING_DEPTH
        self._to_open = min(parts, OPENING_PARTS)

    def _choose_fragments(self) -> Generator[Work[Any], Any, Roster | None]:
        """After the opening, and once the time of a step is known on all ranks."""
        if self._steps < TIMED_STEPS or self._to_open:
            return None
        work = self._ask_for_step_seconds()
        if self.gradients == "node" or (work.done and all(parcel.done for parcel in self._queue)):
            return (yield from self._cut_by(work))
        return None

    def _ask_for_step_seconds(self) -> Work[Tensor]:
        """The mean over all ranks, who ask at the same place among their averages."""
        if self._step_seconds is None:
            timed = self._steps - 1
            seconds = (self.comm.now() - self._first_step_at) / timed if timed > 0 else 0.0
            own = torch.tensor(seconds, dtype=torch.float64)
            self._step_seconds = self.comm.average(own, self.comm.layout.ranks)
        return self._step_seconds

    def _cut_by(self, work: Work[Tensor]) -> Generator[Work[Any], Any, Roster]:
        """As many parts as the wire carries, some in every step."""
        mean: Tensor = yield work
        opening, step_seconds = self._roster, mean.item()
        while self._queue and opening is not None:
            yield from self._merge_oldest(opening)
        begin = 0.0
        if opening is not None:
            yield from opening.settle()
            begin = len(opening.large) / self.parts  # the rest of x has waited for longer
        parts = self._wire.parts(step_seconds / PARTS_PER_STEP)
        per_step = parts * step_seconds / max(self._wire.seconds, 1e-9)
        self._roster = self._cut(parts, max(SMALL_SPACING, round(SMALL_EVERY * per_step)), begin=begin)
        self._chosen = True
        self._depth, self._deepened_at, self._patience = 2, self._steps, FIRST_PATIENCE
        self.merges = self.steps_late = self._plenty = 0
        return self._roster

    def _cut(self, fragments: int, spacing: int, *, begin: float = 0.0, most: int | None = None) -> Roster:
        """spacing: parts between two rides of the small tensors; begin: after which share of x; most: only so many."""
        x, shared, buffers = self._without_buffers() if self.momentum > 0 else (self.replica, self._shared, [])
        if self.fragments is None:
            fragments = min(fragments, x.numbers)  # without buffers there may be fewer
        small: Parcel | None = None
        spacing *= self.every
        if self.delay is None and self.max_delay != 0 and fragments > spacing:
            # Blocks of bytes do not suit small tensors: they take two bytes a number.
            dtype, times = ("bfloat16", 2) if self.wire_dtype == "int8" else (self.wire_dtype, 1)
            share = int(SMALL_SHARE * spacing * x.nbytes / fragments / times)
            part, x = x.set_apart(share)
            part_shared, shared = (None, None) if shared is None else shared.set_apart(share)
            small = Parcel(part, dtype, part_shared, self.momentum) if part else None
        parts = x.fragments(fragments)
        references = [None] * len(parts) if shared is None else shared.fragments(fragments)
        large = [
            Parcel(part, self.wire_dtype, own, self.momentum)
            for part, own in zip(parts[:most], references[:most], strict=True)
        ]
        travellers = large if most is not None else [*large, *buffers]
        self.parts = len(parts) + len(buffers)
        return Roster(travellers, small, spacing, first=int(begin * len(large)))

    def _without_buffers(self) -> tuple[Replica, Replica | None, list[Parcel]]:
        """The parameters and what is shared of them, and the buffers' own parcel: they have no momentum, since a
        variance must not go on falling."""
        assert self._shared is not None
        (x, buffers), (shared, shared_buffers) = (part.apart_from_buffers() for part in (self.replica, self._shared))
        dtype = None if self.wire_dtype == "int8" else self.wire_dtype
        return x, shared, [Parcel(buffers, dtype, shared_buffers)] if buffers else []
