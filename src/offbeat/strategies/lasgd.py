"""LASGD: local SGD with exact averages in flight (Avidor & Tal Israel 2022).

    every step:                     x_i <- x_i + delta_i                 never waits
    room in the wire's queue:       s_i <- x_i ; start the average of s over all ranks
    it is there, at a boundary:     x_i <- x_i + (mean_j s_j - s_i)      keeps what was learned meanwhile

The corrections of all ranks add up to zero, so the mean over workers follows local SGD exactly. x travels in
fragments, in turns: each has at most one average in flight (with two the recursion e' = e - e_delayed is only
marginally stable), and the queue is just deep enough that the wire never runs dry, so that a fragment is merged a
few steps after its snapshot. A late correction costs more than a rare one.

The small tensors (convolutions, norms, biases, the last layer) are a few per cent of the bytes and weigh much more in
what is learned. They travel together, after every few fragments: their average is new in every second step.
"""

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..comm import Comm, Steps, Work
from ..errors import BadInput
from ..layout import Layout, Ranks
from ..options import option
from ..parcel import WIRE_DTYPES, Parcel, narrows
from ..replica import Fragment, Replica
from ..strategy import Strategy, training_flag

PROBE_SHARE, PROBE_MOST = 16, 1 << 20  # a sixteenth of x, at most 4 MB, tells how fast the wire is
TIMED_STEPS = 4  # after which the step time is known; the first warms up
PARTS_PER_STEP = 2  # that the wire should carry: then a part is one or two steps late
MOST_FRAGMENTS = 64
SMALL_SHARE, SMALL_EVERY = 0.2, 2  # of the wire, at most, for small tensors that travel every second step
MOST_DRY = 0.25  # of their rides, before they come half as often
FIRST_PATIENCE, MOST_PATIENCE = 4, 1024  # steps with plenty in the queue before it is made shallower
FEWEST_LATENCIES = 4  # that a part takes on the wire: smaller ones would be all latency


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
    wire_dtype: str | None = option(None, "dtype of what travels (none: that of x)", one_of=WIRE_DTYPES)
    gradients: str = option("own", "node: average the gradients inside each node, every step", one_of=("own", "node"))
    parts: int = field(default=0, init=False)
    merges: int = field(default=0, init=False)
    steps_late: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delay is not None and self.max_delay is not None:
            raise BadInput(f"delay={self.delay} and max_delay={self.max_delay} contradict each other: give one of them")

    def groups(self, layout: Layout) -> list[Ranks]:
        nodes = [layout.on(node) for node in range(layout.nodes)] if self.gradients == "node" else []
        return [layout.ranks, *nodes]

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        return layout.beside(rank) if self.gradients == "node" else (rank,)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        narrow = any(narrows(flat, self.wire_dtype) for flat in replica.flats)
        self._shared = Replica(tuple(map(torch.clone, replica.flats)), replica.slots) if narrow else None  # still equal
        self._parcels: list[Parcel] = []  # in the order in which they take turns; that of small tensors several times
        self._small: Parcel | None = None
        self._awaits_small = self._was_awaited = False  # to send more, at the latest boundary: they are still in flight
        self._rides = self._dry_rides = 0  # of the small tensors in this turn; those before which the wire ran dry
        self._space_out: Work[Tensor] | None = None  # a flag: that was so in too many of them, on some rank
        self._queue: deque[Parcel] = deque()  # in flight, the oldest first
        self._turn = 0  # of the parcel that is sent next, the same on all ranks
        self._depth, self._deepened_at = 2, 0
        self._held_back = False  # something, by the depth alone, at the latest boundary
        self._could_be_late: set[Parcel] = set()  # in the queue; a deeper one would have had them a step earlier
        self._plenty, self._patience = 0, FIRST_PATIENCE
        self._steps, self._first_step_at = 0, 0.0
        self._step_seconds: Work[Tensor] | None = None  # the mean over all ranks, once it is asked for
        in_step = self.delay is not None or self.max_delay == 0 or comm.layout.workers == 1
        if self.fragments is not None or in_step:
            self._cut(self.fragments or 1)
        else:
            self._latency, self._wire_seconds = yield from self._time_the_wire()

    def after_step(self, step: int) -> Steps:
        self._steps += 1
        if self.comm.layout.workers == 1:
            return
        if not self._parcels:
            yield from self._choose_fragments()
            if not self._parcels:
                return
        self._deepen_if_dry()
        while self._queue and (yield from self._is_due(self._queue[0])):
            yield from self._merge_oldest()
        self._make_shallower()
        held_back, self._held_back = self._held_back, False
        while self._may_send(self._parcels[self._turn]):
            ran_dry = not self._queue
            parcel = yield from self._send(training=True)
            if held_back and self.gradients == "own":
                self._could_be_late.add(parcel)
                self._deepen_if_dry()
            elif held_back and ran_dry:  # what all ranks of a node see alike: they must send in the same step
                self._deepen()
        while self._queue and 0 in (self.delay, self.max_delay):
            yield from self._merge_oldest()

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
        while not self._parcels:
            if self._step_seconds is None:
                self._step_seconds = self.comm.average(self._own_step_seconds(), self.comm.layout.ranks)
            yield self._step_seconds
            yield from self._choose_fragments()
        while self._queue:
            yield from self._merge_oldest()
        some_train = True
        while some_train:  # the others, in the order in which they send
            parcel = yield from self._send(training=False)
            yield from parcel.receive()
            some_train = parcel.some_train
            parcel.merge()
            self._queue.clear()
        if self._space_out is not None:
            yield self._space_out

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

    def _merge_oldest(self) -> Steps:
        parcel = self._queue.popleft()
        self._could_be_late.discard(parcel)
        if parcel is self._small:
            self._rides += 1
            self._dry_rides += self._was_awaited and parcel.found_idle
        yield from parcel.receive()
        late = self._steps - parcel.sent_at
        if parcel is not self._small:
            self.merges += 1
            self.steps_late += late
        if late == 0:
            parcel.adopt()
        else:
            parcel.merge()

    def _may_send(self, parcel: Parcel) -> bool:
        if parcel.in_flight or (self.delay is None and len(self._queue) >= self._depth):
            self._held_back = not parcel.in_flight and self._steps - parcel.sent_at >= self.every
            self._awaits_small = parcel is self._small and parcel.in_flight
            return False
        if self.delay is None:
            waits_by_request = self._steps - parcel.sent_at < self.every
            self._awaits_small &= not waits_by_request
            return not waits_by_request
        # Exactly so late means exactly when, too: the parts of x take turns within the interval.
        interval = max(self.every, self.delay)
        first = self.every + self._turn * interval // len(self._parcels)
        return self._steps >= first and (self._steps - first) % interval == 0 and parcel.sent_at < self._steps

    def _send(self, *, training: bool) -> Generator[Work[Any], Any, Parcel]:
        if self._turn == 0 and self._small is not None:
            yield from self._space_small_tensors()
        parcel = self._parcels[self._turn]
        if parcel is self._small:
            self._was_awaited, self._awaits_small = self._awaits_small, False
        self._turn = (self._turn + 1) % len(self._parcels)
        parcel.send(self.comm, self.comm.layout.ranks, self._steps, training=training)
        self._queue.append(parcel)
        return parcel

    def _deepen_if_dry(self) -> None:
        """When the wire ran dry while there was more to send."""
        if any(parcel.found_idle for parcel in self._could_be_late if parcel.sent_at > self._deepened_at):
            self._deepen()

    def _deepen(self) -> None:
        self._depth = min(self._depth + 1, len(self._parcels))
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
            self._depth = len(self._parcels)

    def _cut(self, fragments: int) -> None:
        small: Fragment = ()
        small_shared: Fragment | None = None
        rest, rest_shared = self.replica, self._shared
        self._spacing = SMALL_EVERY * PARTS_PER_STEP * self.every
        if self.delay is None and self.max_delay != 0 and fragments > self._spacing:
            most = int(SMALL_SHARE * self._spacing * rest.nbytes / fragments)
            small, rest = rest.set_apart(most)
            if rest_shared is not None:
                small_shared, rest_shared = rest_shared.set_apart(most)
        parts = rest.fragments(fragments)
        references = [None] * len(parts) if rest_shared is None else rest_shared.fragments(fragments)
        self._large = [Parcel(part, self.wire_dtype, own) for part, own in zip(parts, references, strict=True)]
        self._small = Parcel(small, self.wire_dtype, small_shared) if small else None
        self._spacing = min(self._spacing, len(self._large))
        self._take_turns()
        self.parts = len(self._large)

    def _take_turns(self) -> None:
        """The first stays the first; the small tensors come after every `_spacing` others."""
        self._parcels = []
        for count, parcel in enumerate(self._large, start=1):
            self._parcels.append(parcel)
            if self._small is not None and count % self._spacing == 0:
                self._parcels.append(self._small)

    def _space_small_tensors(self) -> Steps:
        """Once in a turn, alike on all ranks: they come half as often where others wait for them to be back and the
        wire runs dry, as averages begin late or a rank is slow.

        Nobody waits for the flag: the first parcel, sent after it, is back when its turn comes again.
        """
        flag: Tensor | None = (yield self._space_out) if self._space_out is not None else None
        changes = flag is not None and flag.item() > 0
        if changes:
            self._spacing = min(2 * self._spacing, len(self._large))
            self._take_turns()
        often_dry = self._dry_rides > MOST_DRY * self._rides
        ran_dry = often_dry and not changes  # counted in the old order it means nothing now
        self._rides = self._dry_rides = 0
        self._space_out = self.comm.average(training_flag(ran_dry), self.comm.layout.ranks)

    def _choose_fragments(self) -> Steps:
        """Once the time of a step is known on all ranks: as many parts as the wire carries, some in every step."""
        if self._steps == 1:
            self._first_step_at = self.comm.now()
        if self._step_seconds is None and self._steps >= TIMED_STEPS:
            self._step_seconds = self.comm.average(self._own_step_seconds(), self.comm.layout.ranks)
            if self.gradients == "node":
                yield self._step_seconds
        if self._step_seconds is not None and self._step_seconds.done:
            self._cut(self._fragments_for(self._step_seconds.result().item()))

    def _fragments_for(self, step_seconds: float) -> int:
        if not PARTS_PER_STEP * self._wire_seconds > step_seconds > 0:
            return 1
        numbers = sum(flat.numel() for flat in self.replica.flats)
        longest = min(MOST_FRAGMENTS, numbers, int(self._wire_seconds / (FEWEST_LATENCIES * self._latency)))
        return max(1, min(math.ceil(PARTS_PER_STEP * self._wire_seconds / step_seconds), longest))

    def _own_step_seconds(self) -> Tensor:
        timed = self._steps - 1
        seconds = (self.comm.now() - self._first_step_at) / timed if timed > 0 else 0.0
        return torch.tensor(seconds, dtype=torch.float64)

    def _time_the_wire(self) -> Generator[Work[Any], Any, tuple[float, float]]:
        """The seconds that an average of a single number and one of all x take when all ranks are there, alike on all
        ranks."""
        everyone = self.comm.layout.ranks
        latency = seconds = 0.0
        for flat in self.replica.flats:
            like = getattr(torch, self.wire_dtype) if self.wire_dtype is not None else flat.dtype
            size = min(max(1, len(flat) // PROBE_SHARE), PROBE_MOST)
            took = []
            for length in (1, size, 1, size):  # the first two warm up: a fresh connection is slow
                began = self.comm.now()
                yield self.comm.average(torch.zeros(length, dtype=like, device=flat.device), everyone)
                took.append(self.comm.now() - began)
            latency = max(latency, took[2], 1e-9)
            seconds += took[2] + max(0.0, took[3] - took[2]) * len(flat) / size
        means = []
        for value in (latency, seconds):
            mean: Tensor = yield self.comm.average(torch.tensor(value, dtype=torch.float64), everyone)
            means.append(mean.item())
        return means[0], means[1]
