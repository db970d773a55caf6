"""DASO: hierarchical, asynchronous, selective (Coquelin et al. 2021).

    inside a node, every step:   gradients are averaged in backward, so its ranks hold equal x
    between P nodes:             one rank per node, local rank g mod L_k on a node of L_k ranks, with g = 0, 1, 2, ...
                                 from one synchronisation to the next; inside the node its result is broadcast
      blocking, every step:      x <- 1/P sum_k x_k
      cycling, every B steps:    start the sum of x_k^sent ; W steps later, S steps having really gone by since,
                                 x <- (2 S x + sum_k x_k^sent) / (2 S + P)

Warm-up and cool-down are blocking, the epochs between are cycling. Selective: when the training loss of all ranks
comes to a plateau, B and W halve, down to 1; a plateau at B = 1 sets both back to the start. The loss of an epoch
travels as a control message while the next one begins, and counts from the first synchronisation that was sent after
the epoch: that is the same step on all ranks, and by then the loss is there.
"""

import math
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..comm import Comm, Steps, Work
from ..errors import BadInput
from ..layout import Layout, Ranks
from ..options import option
from ..parcel import WIRE_DTYPES, Parcel, wire_share
from ..replica import Replica
from ..strategy import Plan, Strategy

PHASE_EPOCHS = 4  # of warm-up and of cool-down, as published, or
PHASE_SHARE = 4  # the run by so much, where it is shorter


@dataclass
class Cycle:
    """B and W, and the losses that they depend on."""

    every: int
    wait: int
    best: float | None = None
    bad_epochs: int = 0  # since the loss last improved enough

    def judge(self, loss: float, *, start: tuple[int, int], threshold: float, patience: int) -> None:
        """After an epoch of cycling; `start` is B and W as they begin."""
        if self._improves(loss, threshold):
            self.best, self.bad_epochs = loss, 0
        else:
            self.bad_epochs += 1
        if self.bad_epochs < patience:
            return
        self.bad_epochs = 0
        if self.every == 1:
            self.every, self.wait = start
        else:
            self.every, self.wait = self.every // 2, min(self.wait, max(1, self.wait // 2))

    def note(self, loss: float) -> None:
        """After an epoch of warm-up, from which nothing follows yet."""
        self.best = loss if self.best is None else min(self.best, loss)

    def _improves(self, loss: float, threshold: float) -> bool:
        return self.best is None or self.best - loss > threshold * abs(self.best)


class EpochLoss(NamedTuple):
    """Of all ranks: on its way."""

    last_step: int
    total: Work[Tensor]
    steps: Work[Tensor]


@dataclass(kw_only=True)
class DASO(Strategy):
    """Fast links are used in every step, slow ones seldom, and without waiting for them."""

    name: ClassVar[str] = "daso"
    b_max: int = option(4, "B at the start of cycling: steps between two global synchronisations", at_least=1)
    wait: int | None = option(
        None, "W at the start of cycling: steps from the send to the merge (none: a quarter of B, at least 1)",
        at_least=0,
    )  # fmt: skip
    warmup_epochs: int | None = option(
        None, f"first epochs, blocking in every step (none: {PHASE_EPOCHS}, at most a quarter of the run)", at_least=0
    )
    cooldown_epochs: int | None = option(
        None, f"last epochs, blocking in every step (none: {PHASE_EPOCHS}, at most a quarter of the run)", at_least=0
    )
    threshold: float = option(0.05, "relative improvement of the loss below which an epoch brought none", at_least=0)
    patience: int = option(2, "epochs without improvement that make a plateau", at_least=1)
    wire_dtype: str | None = option(None, "dtype of what travels (none: that of x)", one_of=WIRE_DTYPES)
    merges: int = field(default=0, init=False)
    steps_late: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plan: Plan | None = None
        if self.wait is not None and self.wait > self.b_max:
            raise BadInput(
                f"wait={self.wait} does not fit b_max={self.b_max}: a synchronisation is merged before the next is "
                f"sent, so wait must be at most {self.b_max}"
            )
        if self.threshold >= 1:
            raise BadInput(
                f"threshold={self.threshold} does not fit: threshold is a share of the loss, so it must be below 1, "
                f"such as 0.05"
            )

    @property
    def copies(self) -> float:
        share = wire_share(self.wire_dtype)
        return super().copies + 2 * share + (share < 1)

    def prepare(self, plan: Plan) -> None:
        self._plan = plan

    def check(self, layout: Layout, plan: Plan | None) -> None:
        self._phases(plan)

    def groups(self, layout: Layout) -> list[Ranks]:
        nodes = [layout.on(node) for node in range(layout.nodes)]
        return list(dict.fromkeys([layout.ranks, *nodes, *global_groups(layout)]))

    def gradient_ranks(self, layout: Layout, rank: int) -> Ranks:
        return layout.beside(rank)

    def start(self, replica: Replica, comm: Comm) -> Steps:
        yield from super().start(replica, comm)
        plan = yield from self._agreed_plan()
        self._warmup, self._cooldown_after = self._phases(plan)
        self._epoch = 0 if plan is None else plan.steps_per_epoch
        self._node, self._global_groups = comm.layout.beside(comm.rank), global_groups(comm.layout)
        self._parcel = Parcel(replica.flats, self.wire_dtype)
        self._step = 0  # the steps that this rank really made
        self._sent_at = 0  # the boundary of the latest synchronisation, and
        self._steps_when_sent = 0  # the steps that this rank had made by then
        self._trained_when_sent = True
        self._due: int | None = None  # the boundary at which it is merged; None: none is in flight
        self._synchronisations = 0
        self._some_train = True
        self._blocking = False  # the phase
        self._marked = (0, 0)  # B and W as the trace knows them
        self._cycle = Cycle(*self._first_cycle)
        self._loss_sum: Tensor | float = 0.0
        self._losses = 0
        self._epoch_losses: deque[EpochLoss] = deque()
        self._loss_of_epoch: float | None = None

    def observe(self, loss: Tensor | float) -> None:
        self._loss_sum = self._loss_sum + loss
        self._losses += 1

    def after_step(self, step: int) -> Steps:
        self._step = step
        if self.comm.layout.nodes > 1:
            self._blocking = self._is_blocking(step)
            self._mark()
            yield from self._boundary(step, training=True)
            self._mark()

    def finish(self) -> Steps:
        if self.comm.layout.nodes > 1:
            yield from self._go_on_for_others()
        yield from super().finish()

    def report(self) -> dict[str, float]:
        """`every` and `wait` are those in effect: 1 and 0 where every step is blocking."""
        every, wait = self._in_effect
        report = {"averages": self.merges, "delay": self.steps_late / max(self.merges, 1), "every": every, "wait": wait}
        return report if self._loss_of_epoch is None else {**report, "loss_of_epoch": self._loss_of_epoch}

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "synchronisations": self._synchronisations,
            "loss_sum": float(self._loss_sum),
            "losses": self._losses,
            **asdict(self._cycle),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """After `start`, on all ranks that of the same step, with the weights that were saved with it."""
        position, cycle = ("step", "synchronisations", "loss_sum", "losses"), [f.name for f in fields(Cycle)]
        if set(state) != {*position, *cycle}:
            raise ValueError(f"{self.name} keeps {', '.join((*position, *cycle))}, but was given {sorted(state)}")
        self._step = self._sent_at = state["step"]
        self._synchronisations = state["synchronisations"]
        self._loss_sum, self._losses = state["loss_sum"], state["losses"]
        self._cycle = Cycle(**{name: state[name] for name in cycle})

    # The length of the run.

    @property
    def _first_cycle(self) -> tuple[int, int]:
        return self.b_max, max(1, self.b_max // 4) if self.wait is None else self.wait

    def _agreed_plan(self) -> Generator[Work[Any], Any, Plan | None]:
        """That of the first rank: the others' may be a few steps longer or shorter."""
        everyone, plan = self.comm.layout.ranks, self._plan
        self._plan = None  # of this run; another one has its own
        numbers = []
        for number in (0, 0) if plan is None else (plan.steps, plan.steps_per_epoch):
            work = self.comm.broadcast(torch.tensor(number, dtype=torch.float64), everyone[0], everyone)
            agreed: Tensor = yield work
            numbers.append(int(agreed.item()))
        return Plan(*numbers) if all(numbers) else None

    def _phases(self, plan: Plan | None) -> tuple[int, float]:
        """The last step of warm-up, and the last before cool-down."""
        if plan is None:
            if self.warmup_epochs == self.cooldown_epochs == 0:
                return 0, math.inf
            raise BadInput(
                "daso has a warm-up and a cool-down, so it must know how long the run will be: give attach() epochs "
                "and steps_per_epoch, or set warmup_epochs=0 and cooldown_epochs=0"
            )
        asked = [None if n is None else n * plan.steps_per_epoch for n in (self.warmup_epochs, self.cooldown_epochs)]
        left = plan.steps - sum(filter(None, asked))
        if left < 0:
            phases = {"warmup_epochs": self.warmup_epochs, "cooldown_epochs": self.cooldown_epochs}
            given = " and ".join(f"{name}={epochs}" for name, epochs in phases.items() if epochs)
            epochs = plan.steps / plan.steps_per_epoch
            raise BadInput(
                f"{given} is more than the {epochs:g} epochs of this run: train longer, or give fewer of them"
            )
        usual = min(PHASE_EPOCHS * plan.steps_per_epoch, plan.steps // PHASE_SHARE, left)
        warmup, cooldown = (usual if steps is None else steps for steps in asked)
        return warmup, plan.steps - cooldown if cooldown else math.inf

    # Synchronisation between nodes.

    @property
    def _turn(self) -> int:
        return self._synchronisations % len(self._global_groups)

    @property
    def _speaker(self) -> int:
        """The rank of this node whose turn it is."""
        return self._node[self._turn % len(self._node)]

    def _is_blocking(self, step: int) -> bool:
        return not self._warmup < step <= self._cooldown_after

    def _boundary(self, step: int, *, training: bool) -> Steps:
        blocking = self._blocking = self._is_blocking(step)
        if self._due is not None and (blocking or step >= self._due):
            yield from self._merge()
        if self._epoch and step % self._epoch == 0:
            self._send_loss(step)
        if blocking or (self._due is None and step - self._sent_at >= self._cycle.every):
            self._send(step, training=training)
            if blocking or self._cycle.wait == 0:
                yield from self._merge()

    def _send(self, step: int, *, training: bool) -> None:
        self._sent_at, self._steps_when_sent, self._trained_when_sent = step, self._step, training
        self._due = step + self._cycle.wait
        if self._speaker == self.comm.rank:
            self._parcel.send(self.comm, self._global_groups[self._turn], step, training=training)

    def _merge(self) -> Steps:
        """All ranks of a node, at the same boundary: they wait for the average if it is not there yet."""
        if self._speaker == self.comm.rank:
            yield from self._parcel.receive()
        yield from self._parcel.relay(self.comm, self._speaker, self._node)
        self._some_train = self._trained_when_sent or self._parcel.some_train
        self._due = None
        self._synchronisations += 1
        if not self._some_train:
            return  # the exact average follows
        late, nodes = self._step - self._steps_when_sent, self.comm.layout.nodes
        self.merges += 1
        self.steps_late += late
        if late == 0:
            self._parcel.adopt()
        else:
            self._parcel.approach(nodes / (2 * late + nodes))
        while self._epoch_losses and self._epoch_losses[0].last_step <= self._sent_at:
            yield from self._judge(self._epoch_losses.popleft())

    def _go_on_for_others(self) -> Steps:
        """Take part in the synchronisations of nodes that still train, at the boundaries where they have them."""
        own_losses = self._loss_sum, self._losses
        step = self._step
        while self._some_train:
            step += 1
            yield from self._boundary(step, training=False)
        self._some_train = True
        while self._epoch_losses and self._epoch_losses[0].last_step <= self._step:
            yield from self._judge(self._epoch_losses.popleft())
        if self._epoch_losses:  # of an epoch that was not over: should the run be resumed, it will be
            self._epoch_losses.clear()
            self._loss_sum, self._losses = own_losses
        self._sent_at = self._step

    # The loss, and what follows from it.

    def _send_loss(self, step: int) -> None:
        everyone = self.comm.layout.ranks
        total, steps = (
            self.comm.average(torch.tensor(float(value), dtype=torch.float64), everyone)
            for value in (self._loss_sum, self._losses)
        )
        self._epoch_losses.append(EpochLoss(step, total, steps))
        self._loss_sum, self._losses = 0.0, 0

    def _judge(self, epoch: EpochLoss) -> Steps:
        total: Tensor = yield epoch.total
        steps: Tensor = yield epoch.steps
        loss = (total / steps).item()
        if not math.isfinite(loss):  # nobody told one, or all is lost
            return
        self._loss_of_epoch = loss
        if epoch.last_step <= self._warmup:
            self._cycle.note(loss)
        elif not self._blocking:
            self._cycle.judge(loss, start=self._first_cycle, threshold=self.threshold, patience=self.patience)

    @property
    def _in_effect(self) -> tuple[int, int]:
        return (1, 0) if self._blocking else (self._cycle.every, self._cycle.wait)

    def _mark(self) -> None:
        if self._in_effect != self._marked:
            self._marked = every, wait = self._in_effect
            self.comm.mark("blocking" if self._blocking else f"B={every} W={wait}")


@lru_cache(maxsize=8)
def global_groups(layout: Layout) -> tuple[Ranks, ...]:
    """For each turn one rank per node; made once for all ranks, so that they are the same objects."""
    nodes = [layout.on(node) for node in range(layout.nodes)]
    return tuple(
        tuple(sorted(node[turn % len(node)] for node in nodes)) for turn in range(max(len(node) for node in nodes))
    )
