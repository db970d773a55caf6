"""Strategy: when and with whom a worker synchronises. One small file per method lies in `strategies/`."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from . import options
from .comm import Comm, Steps, Work
from .errors import BadInput
from .layout import Layout, Ranks
from .options import option
from .replica import Replica
from .trail import Trail


@dataclass(frozen=True)
class Plan:
    """How long a run is meant to be, for strategies that go through phases."""

    steps: int  # of a worker
    steps_per_epoch: int

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("steps_per_epoch", self.steps_per_epoch)):
            if type(value) is not int or value < 1:
                raise BadInput(f"{name}={value} does not fit: a run has a whole number of them, 1 or more")


@dataclass(kw_only=True)
class Strategy:
    """Hooks around one local step, each a generator that yields `Work`; on its own: never talk before the end.

    The fields of a subclass are its options, declared with `options.option`; those with `init=False` are its counters,
    which begin anew in `start`. `step` counts the optimizer steps of this worker from 1. What the worker reads in
    forward and backward, `replica.flats`, may be touched only in these hooks: a process that a strategy spawns keeps
    its own record of x.
    """

    name: ClassVar[str] = "none"
    meets_peers: ClassVar[bool] = False  # whether it calls `pair` and `swap`
    trail: float = option(
        0.0, "hand in the mean of x over about this share of the latest steps, 0 to 1 (0: x as it is)", at_least=0
    )

    _trail: Trail | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        options.check(self)
        if self.trail:
            Trail(self.trail)  # refuses what is no share

    @property
    def copies(self) -> float:
        """Buffers as large as x that a worker keeps beside it on its device, at most; not what backward fills."""
        return float(self.trail > 0)

    def prepare(self, plan: Plan) -> None:
        """Before the start, where the length of the run is known."""

    def check(self, layout: Layout, plan: Plan | None) -> None:
        """Raises `BadInput` for options that do not fit the run, before anything is started."""

    def groups(self, layout: Layout) -> list[Ranks]:
        """Every tuple of ranks that any rank averages or broadcasts over; the same list on all ranks."""
        return [layout.ranks]

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        """Whose gradients are averaged in backward; overlapped with it."""
        return (rank,)

    def averages_gradients(self, step: int) -> bool:
        """Whether gradients are averaged in this step. Once it says no it must stay with that."""
        return True

    def start(self, replica: Replica, comm: Comm) -> Steps:
        """All ranks begin with the x of the first."""
        self.replica, self.comm = replica, comm
        for counter in fields(self):
            if not counter.init and counter.default is not MISSING:
                setattr(self, counter.name, counter.default)
        everyone = comm.layout.ranks
        for work in [comm.broadcast(flat, everyone[0], everyone, out=flat) for flat in replica.flats]:
            yield work
        self._trail = Trail(self.trail, comm.now()) if self.trail else None

    def observe(self, loss: Tensor | float) -> None:
        """The training loss of the step that ends now, where it is known; called before `after_step`."""

    def at_boundary(self, step: int) -> Steps:
        """What a world runs after each step of this rank's own; where it steps along with others, only `after_step`."""
        yield from self.after_step(step)
        if self._trail is not None:
            self._trail.add_step(self.replica.flats, self.comm.now())

    def after_step(self, step: int) -> Steps:
        """At the boundary after each step."""
        yield from ()

    def finish(self) -> Steps:
        """Drain; then all ranks hold the exact average. Ranks that are done early contribute until all are."""
        while (yield from self.average_exactly(training=False)):
            pass

    def hand_in(self) -> Steps:
        """After `finish`, at the end of a run: where there is a trail, its mean over the ranks takes the place of x."""
        if self._trail is not None:
            yield from self._trail.hand_in(self.replica.flats, self.comm)

    @property
    def handed_in(self) -> Sequence[Tensor]:
        """What this rank would hand in now, as it lies in `replica.flats`."""
        return self._trail.means if self._trail is not None and self._trail.means else self.replica.flats

    def average_exactly(self, *, training: bool) -> Generator[Work[Any], Any, Any]:
        """A blocking average of x over all ranks; tells whether some rank still trains."""
        everyone = self.comm.layout.ranks
        works = [self.comm.average(flat, everyone, out=flat) for flat in self.replica.flats]
        flag = self.comm.average(training_flag(training), everyone)
        for work in works:
            yield work
        return (yield flag).item() > 0

    def report(self) -> dict[str, float]:
        """What it did so far: `averages` (or exchanges), `delay` in steps where it merges late; and what else is worth
        following, by names of its own."""
        return {}

    def trail_state(self) -> dict[str, Any]:
        """Of the mean over steps, where there is one."""
        return {} if self._trail is None else self._trail.state_dict()

    def load_trail_state(self, state: Mapping[str, Any]) -> None:
        """After `start`."""
        if state and self._trail is None:
            raise BadInput(f"{self.name} has no trail and was saved with one: resume with the same options")
        if state and self._trail is not None:
            self._trail.load_state_dict(state, self.replica.flats)

    def state_dict(self) -> dict[str, Any]:
        """What it must remember across a restart. Call after `finish`, when nothing is in flight."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError(f"{self.name} keeps no state, but was given {sorted(state)}")


_FLAGS = {training: torch.tensor(float(training), dtype=torch.float64) for training in (False, True)}


def training_flag(training: bool) -> Tensor:
    """A message of one number; its average is above zero where any rank says so: that it still trains, usually."""
    return _FLAGS[training]
