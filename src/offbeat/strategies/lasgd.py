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
what is learned. They travel together, on a lane of their own: their average is new in every step, unless it would be
late.
"""

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..byte_letter import MOST_RANKS
from ..comm import Comm, Steps, Work
from ..errors import BadInput
from ..express import Express, express_lane
from ..layout import Layout, Ranks
from ..letter import narrows
from ..options import option
from ..parcel import WIRE_DTYPES, Parcel, wire_share
from ..replica import Fragment, Replica
from ..strategy import Plan, Strategy
from ..wire_time import time_the_wire

TIMED_STEPS = 4  # after which the step time is known; the first warms up
PARTS_PER_STEP = 4  # that the wire should carry: then a part is hardly more than a step late
OPENING_PARTS, OPENING_SECONDS = 16, 0.025  # before that is known: so many, each of which takes so long,
OPENING_DEPTH = 4  # so many at a time
MOST_OPENING_PARTS = 1 << 16  # in which x is cut for that
SMALL_OF_X, SMALL_OF_WIRE = 1 / 100, 0.2  # the shares of small tensors, at most
FEWEST_LARGE = 5  # parts; where x travels in fewer, small tensors are as new as they can be
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
    max_delay: int | None = option(
        None, "wait for an average that is so many steps late (none: never); never for small tensors", at_least=0
    )
    wire_dtype: str | None = option(
        None, "dtype of what travels, also int8 (none: that of x)", one_of=(*WIRE_DTYPES, "int8")
    )
    momentum: float = option(0.0, "with which the mean goes on from average to average, below 1", at_least=0)
    gradients: str = option("own", "node: average the gradients inside each node, every step", one_of=("own", "node"))
    parts: int = field(default=0, init=False)
    merges: int = field(default=0, init=False)
    steps_late: int = field(default=0, init=False)
    small_merges: int = field(default=0, init=False)  # of the small tensors, which count apart
    small_steps_late: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay is not None and self.max_delay is not None:
            raise BadInput(f"delay={self.delay} and max_delay={self.max_delay} contradict each other: give one of them")
        if self.momentum >= 1:
            raise BadInput(f"momentum={self.momentum} does not fit: from 1 on nothing is ever forgotten, so use less")

    @property
    def copies(self) -> float:
        share, has_momentum = wire_share(self.wire_dtype), self.momentum > 0
        return super().copies + 2 * share + (share < 1 or has_momentum) + has_momentum

    def check(self, layout: Layout, plan: Plan | None) -> None:
        if self.wire_dtype == "int8" and layout.workers > MOST_RANKS:
            raise BadInput(
                f"wire_dtype=int8 adds up bytes of at most {MOST_RANKS} workers, and there are {layout.workers}: "
                f"use bfloat16"
            )

    def groups(self, layout: Layout) -> list[Ranks]:
        nodes = [layout.on(node) for node in range(layout.nodes)] if self.gradients == "node" else []
        return [layout.ranks, express_lane(layout), *nodes]

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        return layout.beside(rank) if self.gradients == "node" else (rank,)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        self.check(comm.layout, None)
        yield from super().start(replica, comm)
        self._shared: Replica | None = None  # from which differences travel; x itself is still equal on all ranks
        if self.momentum > 0 or any(narrows(flat, self.wire_dtype) for flat in replica.flats):
            self._shared = Replica(tuple(map(torch.clone, replica.flats)), replica.slots)
        self._large: list[Parcel] = []  # parts of x, which travel in turns
        self._next = 0  # among them
        self._express: Express | None = None
        self._chosen = False  # the fragments; until then some parts travel, the opening,
        self._to_open = 0  # of which so many are not sent yet
        self._queue: deque[Parcel] = deque()  # of the large ones in flight, the oldest first
        self._depth, self._deepened_at = 2, 0
        self._held_back = False  # something, by the depth alone, at the latest boundary
        self._could_be_late: set[Parcel] = set()  # in the queue; a deeper one would have had them a step earlier
        self._plenty, self._patience = 0, FIRST_PATIENCE
        self._steps, self._first_step_at, self._stepped_at = 0, 0.0, 0.0
        self._step_seconds: Work[Tensor] | None = None  # the mean over all ranks, once it is asked for
        in_step = self.delay is not None or self.max_delay == 0 or comm.layout.workers == 1
        if self.fragments is not None or in_step:
            parts = self.fragments or 1
            self._divide(express=not in_step and parts >= FEWEST_LARGE * self.every)
            self._cut(parts)
            self._chosen = True
        else:
            self._wire = yield from time_the_wire(comm, replica, self.wire_dtype)
            parts = self._wire.parts(OPENING_SECONDS, MOST_OPENING_PARTS)
            self._divide(express=parts >= FEWEST_LARGE * self.every)
            if self.every == 1:
                self._open(parts)

    def after_step(self, step: int) -> Steps:
        self._steps += 1
        self._stepped_at = self.comm.now()
        if self._steps == 1:
            self._first_step_at = self._stepped_at
        if self.comm.layout.workers == 1:
            return
        yield from self._merge_and_send()
        if not self._chosen and (yield from self._choose_fragments()):
            yield from self._merge_and_send()

    def _merge_and_send(self) -> Steps:
        express = self._express
        # Nobody waits for it, whatever max_delay: between two lanes there is no order that ranks could wait in.
        if express is not None and express.parcel.in_flight and (yield from self._is_back(express.parcel)):
            self.small_merges += 1
            self.small_steps_late += self._steps - express.parcel.sent_at
            yield from express.receive(self._steps)
        self._deepen_if_dry()
        while self._queue and (yield from self._is_due(self._queue[0])):
            yield from self._merge_oldest()
        self._make_shallower()
        held_back, self._held_back = self._held_back, False
        while self._may_send():
            ran_dry = not self._queue
            parcel = self._send(training=True)
            if held_back and self.gradients == "own":
                self._could_be_late.add(parcel)
                self._deepen_if_dry()
            elif held_back and ran_dry:  # what all ranks of a node see alike: they must send in the same step
                self._deepen()
        while self._queue and 0 in (self.delay, self.max_delay):
            yield from self._merge_oldest()
        if express is not None and express.may_send and self._steps - express.parcel.sent_at >= self.every:
            yield from express.send(self.comm, self._steps, training=True)

    def finish(self) -> Steps:
        if self.comm.layout.workers > 1:
            yield from self._drain()
        yield from super().finish()

    def report(self) -> dict[str, float]:
        small = {"small_averages": self.small_merges, "small_delay": self.small_steps_late / max(self.small_merges, 1)}
        return {
            "averages": self.merges // max(self.parts, 1),
            "delay": self.steps_late / max(self.merges, 1),
            "fragments": self.parts,
            **(small if self.small_merges else {}),
        }

    def _drain(self) -> Steps:
        """Merge what is in flight, and take part in the averages of those that still train."""
        express = self._express
        all_rode = express is None  # for the last time: nobody trained any more when that ride was sent
        while self._queue:
            yield from self._merge_oldest()
        some_train = True
        while some_train:  # the others, in the order in which they send
            if not (self._chosen or self._to_open):
                yield from self._cut_by(self._ask_for_step_seconds())
            if express is not None and not all_rode and express.parcel.in_flight and express.parcel.done:
                all_rode = not (yield from self._ride(express))
            if express is not None and not all_rode and not express.parcel.in_flight:  # others may send it later
                yield from express.send(self.comm, self._steps, training=False)
            parcel = self._send(training=False)
            yield from parcel.receive()
            some_train = parcel.some_train
            parcel.merge()
            self._queue.clear()
        while express is not None and not all_rode:
            all_rode = not (yield from self._ride(express))
        if express is not None:
            yield from express.settle()

    def _ride(self, express: Express) -> Generator[Work[Any], Any, bool]:
        """To its end, which others may have begun; tells whether some rank trained when it was sent."""
        if not express.parcel.in_flight:
            yield from express.send(self.comm, self._steps, training=False)
        yield from express.receive(self._steps)
        return express.parcel.some_train

    def _is_due(self, parcel: Parcel) -> Generator[Work[Any], Any, bool]:
        late = self._steps - parcel.sent_at
        if self.delay is not None:
            return late >= self.delay
        if self.max_delay is not None and late >= self.max_delay:
            return True
        return (yield from self._is_back(parcel))

    def _is_back(self, parcel: Parcel) -> Generator[Work[Any], Any, bool]:
        if self.gradients == "own":
            return parcel.done
        node = self.comm.layout.beside(self.comm.rank)  # its ranks stay equal only if all of them merge in this step
        all_done: Tensor = yield self.comm.average(torch.tensor(float(parcel.done), dtype=torch.float64), node)
        return all_done.item() > 1 - 0.5 / len(node)

    def _merge_oldest(self) -> Steps:
        parcel = self._queue.popleft()
        self._could_be_late.discard(parcel)
        yield from parcel.receive()
        late = self._steps - parcel.sent_at
        self.merges += 1
        self.steps_late += late
        if late == 0:
            parcel.adopt()
        else:
            parcel.merge()

    def _may_send(self) -> bool:
        if not (self._chosen or self._to_open):
            return False
        parcel = self._large[self._next]
        if self.delay is not None:
            # Exactly so late means exactly when, too: the parts of x take turns within the interval.
            interval = max(self.every, self.delay)
            first = self.every + self._next * interval // len(self._large)
            its_step = self._steps >= first and (self._steps - first) % interval == 0
            return its_step and parcel.sent_at < self._steps and not parcel.in_flight
        by_request = self._steps - parcel.sent_at < self.every
        waits = parcel.in_flight or len(self._queue) >= self._depth
        self._held_back = waits and not parcel.in_flight and not by_request
        return not waits and not by_request

    def _send(self, *, training: bool) -> Parcel:
        parcel = self._large[self._next]
        self._next = (self._next + 1) % len(self._large)
        self._to_open -= not self._chosen
        parcel.send(self.comm, self.comm.layout.ranks, self._steps, training=training)
        self._queue.append(parcel)
        if self._express is not None:
            self._express.large_sent()
        return parcel

    def _deepen_if_dry(self) -> None:
        """When the wire ran dry while there was more to send."""
        if any(parcel.found_idle for parcel in self._could_be_late if parcel.sent_at > self._deepened_at):
            self._deepen()

    def _deepen(self) -> None:
        self._depth = min(self._depth + 1, len(self._large))
        self._deepened_at = self._steps
        self._patience = min(2 * self._patience, MOST_PATIENCE)

    def _make_shallower(self) -> None:
        """When for many steps the wire was not near running dry, and for ever more of them, since what was tried and
        ran dry need not be tried again soon."""
        self._plenty = self._plenty + 1 if len(self._queue) > 1 else 0
        if self._plenty >= self._patience and self._depth > 2:
            self._depth -= 1
            self._plenty = 0
        if self.max_delay == 0:
            self._depth = len(self._large)

    def _open(self, parts: int) -> None:
        """The workers part most in their first steps, when nobody knows yet how long a step takes: so the first parts
        of x travel at once, and the small tensors with them."""
        self._cut(parts, most=OPENING_PARTS)
        self._to_open, self._depth = len(self._large), OPENING_DEPTH

    def _choose_fragments(self) -> Generator[Work[Any], Any, bool]:
        """After the opening, and once the time of a step is known on all ranks; whether it is so now."""
        if self._steps >= TIMED_STEPS and not self._to_open:
            work = self._ask_for_step_seconds()
            if self.gradients == "node" or (work.done and all(parcel.done for parcel in self._queue)):
                yield from self._cut_by(work)
        return self._chosen

    def _ask_for_step_seconds(self) -> Work[Tensor]:
        """The mean over all ranks, who ask at the same place among their averages."""
        if self._step_seconds is None:
            timed = self._steps - 1
            seconds = (self._stepped_at - self._first_step_at) / timed if timed > 0 else 0.0
            own = torch.tensor(seconds, dtype=torch.float64)
            self._step_seconds = self.comm.average(own, self.comm.layout.ranks)
        return self._step_seconds

    def _cut_by(self, work: Work[Tensor]) -> Steps:
        """As many parts as the wire carries, some in every step; the rest of x, which has waited for longer, first."""
        mean: Tensor = yield work
        while self._queue:
            yield from self._merge_oldest()
        step_seconds, opened = mean.item(), len(self._large) / max(self.parts, 1)
        parts = self._wire.parts(step_seconds / PARTS_PER_STEP)
        self._cut(parts, per_step=parts * step_seconds / max(self._wire.seconds, 1e-9))
        self._next = int(opened * len(self._large)) % len(self._large)
        self._chosen = True
        self._depth, self._deepened_at, self._patience = 2, self._steps, FIRST_PATIENCE
        self.merges = self.steps_late = self._plenty = self.small_merges = self.small_steps_late = 0

    def _divide(self, *, express: bool) -> None:
        """Into what takes turns, and what does not."""
        whole: tuple[Replica, Replica | None, list[Parcel]] = (self.replica, self._shared, [])
        self._x, self._references, self._buffers = self._without_buffers() if self.momentum > 0 else whole
        if express:
            small, self._x = self._x.set_apart(int(SMALL_OF_X * self._x.nbytes))
            shared: Fragment | None = None
            if self._references is not None:
                shared, self._references = self._references.set_apart(int(SMALL_OF_X * self._references.nbytes))
            if small:
                # Blocks of bytes do not suit small tensors.
                dtype = "bfloat16" if self.wire_dtype == "int8" else self.wire_dtype
                parcel = Parcel(small, dtype, shared)  # momentum drives apart what comes in every few steps
                self._express = Express(parcel, express_lane(self.comm.layout))

    def _cut(self, fragments: int, *, most: int | None = None, per_step: float = 0.0) -> None:
        """most: only so many parts; per_step: how many of them the wire carries in a step, where that is known."""
        if self.fragments is None:
            fragments = min(fragments, self._x.numbers)  # without buffers there may be fewer
        parts = self._x.fragments(fragments)
        shared = [None] * len(parts) if self._references is None else self._references.fragments(fragments)
        self._large = [
            Parcel(part, self.wire_dtype, own, self.momentum)
            for part, own in zip(parts[:most], shared[:most], strict=True)
        ]
        self._large += self._buffers if most is None else []
        self.parts = len(parts) + len(self._buffers)
        if self._express is not None:
            times = 2 if self.wire_dtype == "int8" else 1  # of which small tensors make no use
            ride = times * self._express.parcel.nbytes * len(parts) / self._x.nbytes  # as long as so many large parts
            in_every_step = ride <= SMALL_OF_WIRE * per_step
            spacing = 1 if in_every_step else math.ceil(ride / SMALL_OF_WIRE - ride)
            self._express.space(spacing * self.every, max(spacing * self.every, len(self._large)))

    def _without_buffers(self) -> tuple[Replica, Replica | None, list[Parcel]]:
        """The parameters and what is shared of them, and the buffers' own parcel: they have no momentum, since a
        variance must not go on falling."""
        assert self._shared is not None
        (x, buffers), (shared, shared_buffers) = (part.apart_from_buffers() for part in (self.replica, self._shared))
        dtype = None if self.wire_dtype == "int8" else self.wire_dtype
        return x, shared, [Parcel(buffers, dtype, shared_buffers)] if buffers else []
