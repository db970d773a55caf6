"""Attach: a strategy around the user's own loop, which stays as it is.

    with offbeat.attach(model, optimizer, offbeat.LASGD()):
        for inputs, targets in loader:
            ...
            optimizer.step()          # here the strategy does its part

Every `optimizer.step()` is one step; leaving the block drains what is in flight and leaves the exact average of
all workers in the model (of their trails, where the strategy has them).
"""

import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .connect import Connection, connect
from .errors import BadInput, LostPeer
from .gradients import Gradients
from .layout import Layout
from .lead import Lead
from .options import options_of
from .replica import Replica, flatten
from .strategies import make_strategy
from .strategy import Plan, Strategy
from .trace import Event


@contextmanager
def attach(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: Strategy | str,
    *,
    layout: Layout | None = None,
    buffers: bool = True,
    seed: int = 0,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    timeout_seconds: float = 1800.0,
) -> Iterator["Attachment"]:
    """Train `model` together with the other workers of this run, as `strategy` says.

    layout: which ranks share a node (default: those on the same host). buffers: average floating-point buffers, such
    as BatchNorm's statistics, with the parameters. seed: of what the strategy draws at random. epochs,
    steps_per_epoch: how long the run will be, for strategies that go through phases, such as daso.
    timeout_seconds: how long the others are waited for in a collective, also at the end, before one counts as lost.
    """
    if isinstance(strategy, str):
        strategy = make_strategy(strategy)
    check_optimizer(model, optimizer)
    if epochs is not None and (type(epochs) is not int or epochs < 1):
        raise BadInput(f"epochs={epochs} does not fit: a run has a whole number of them, 1 or more")
    if epochs is not None and steps_per_epoch is not None:
        strategy.prepare(Plan(steps=epochs * steps_per_epoch, steps_per_epoch=steps_per_epoch))
    elif epochs is not None or steps_per_epoch is not None:
        raise BadInput(f"epochs={epochs} and steps_per_epoch={steps_per_epoch} go together: give both or neither")
    replica = flatten(model, buffers=buffers)
    try:
        connection = connect(
            strategy,
            device=replica.flats[0].device,
            layout=layout,
            seed=seed,
            timeout_seconds=timeout_seconds,
            same={"strategy": describe(strategy), "model": f"{type(model).__name__} with {replica.describe()}"},
        )
        try:
            with attached(Attachment(model, optimizer, strategy, replica, connection)) as attachment:
                yield attachment
        except BaseException:
            connection.close(orderly=False)
            raise
        connection.close(orderly=True)
    finally:
        replica.release()


@contextmanager
def attached(attachment: "Attachment") -> Iterator["Attachment"]:
    try:
        attachment.start()
        yield attachment
        attachment.finish()
    except RuntimeError as error:
        lost = attachment.lost_peer()
        if lost is None:
            raise
        raise lost from error  # torch raised it in backward(), in words of its own
    finally:
        attachment.detach()


class Attachment:
    """A model in training. `step` counts this worker's steps; `trace` says what it did and when."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, strategy: Strategy, replica: Replica, connection: Connection
    ) -> None:
        self.strategy, self.replica = strategy, replica
        self.comm, self.trace = connection.comm, connection.comm.trace
        self.step = 0
        self.seconds = 0.0  # from the start to the final average, once that is done
        self._model, self._optimizer = model, optimizer
        self._computing_since = 0.0
        self._along = False  # with others that still have data
        self._trained: tuple[Tensor, ...] | None = None  # x, once a trail has taken its place
        self._gradients = (
            Gradients(model, connection.gradient_ranks, connection.gradient_group, self.comm, self._averages_gradients)
            if connection.gradient_group is not None
            else None
        )
        merges = type(strategy).after_step is not Strategy.after_step
        idle = self._gradients is None and not merges and not strategy.trail
        parameters = [x for slot, x in zip(replica.slots, replica.tensors, strict=True) if slot.is_parameter]
        self._lead = Lead(replica.flats[0].device, parameters if merges else ())  # of the others nothing comes late
        self._hook = optimizer.register_step_post_hook(self._idle_hook() if idle else self._after_step)

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def layout(self) -> Layout:
        return self.comm.layout

    def state_dict(self) -> dict[str, Any]:
        """What this worker must remember across a restart, beside the model and the optimizer. With a trail the model
        holds the mean over steps after the block, and `trained` what is to be trained on from; else that is empty."""
        return {
            "step": self.step,
            "strategy": self.strategy.state_dict(),
            "trail": self.strategy.trail_state(),
            "trained": {} if self._trained is None else self._named(self._trained),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights = self._model.state_dict()
        for name, x in state.get("trained", {}).items():
            if name in weights and not torch.equal(x.to(weights[name]), weights[name]):
                raise BadInput(
                    f"{name} of the model is not as it was trained, but perhaps the mean over steps: before you "
                    f"attach it, model.load_state_dict(state['trained'], strict=False)"
                )
        self.step = state["step"]
        self.strategy.load_state_dict(state["strategy"])
        self.strategy.load_trail_state(state.get("trail", {}))

    def weights(self) -> dict[str, Tensor]:
        """A copy of what this worker would hand in now, by the names that its model has for it: with a trail, the mean
        over its latest steps. `torch.func.functional_call(model, run.weights(), inputs)` evaluates it."""
        return self._named(self.strategy.handed_in)

    def _named(self, flats: Sequence[Tensor]) -> dict[str, Tensor]:
        """Copies of what lies in buffers like those of x, by all names of the model; tied weights are one tensor."""
        own = zip(self.replica.slots, self.replica.tensors, strict=True)
        copies = {id(x): slot.view(flats[slot.flat]).to(x.dtype, copy=True) for slot, x in own}
        named = itertools.chain(
            self._model.named_parameters(remove_duplicate=False), self._model.named_buffers(remove_duplicate=False)
        )
        return {name: copies[id(tensor)] for name, tensor in named if id(tensor) in copies}

    def observe(self, loss: Tensor | float) -> None:
        """Tell the strategy the loss of a step, before `optimizer.step()`: daso, say, adapts to it."""
        self.strategy.observe(loss.detach() if isinstance(loss, Tensor) else loss)

    def start(self) -> None:
        self.comm.run(self.strategy.start(self.replica, self.comm))
        self._computing_since = self.comm.now()

    def finish(self) -> None:
        """No more data here. While others of the gradient group have some, step along with them; then drain."""
        self.replica.check(self._model)
        if self._gradients is not None:
            self._along = True
            while self._gradients.follow():
                self._step_along()
            self._gradients.adopt(self.replica)
        self.comm.run(self.strategy.finish())
        if self.strategy.trail:
            self._trained = tuple(map(torch.clone, self.replica.flats))
            self.comm.run(self.strategy.hand_in())
        self.seconds = self.comm.now()

    def detach(self) -> None:
        """Leave the model and the optimizer as ordinary ones."""
        self._hook.remove()
        self._lead.close()
        if self._gradients is not None:
            self._gradients.close()

    def lost_peer(self) -> LostPeer | None:
        """What went wrong where torch, not Offbeat, was talking to the others."""
        return None if self._gradients is None else self._gradients.failure

    def _averages_gradients(self) -> bool:
        return self.strategy.averages_gradients(self.step + 1)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        waited = self._gradients.end_step() if self._gradients is not None else 0.0
        self._lead.wait()
        since, now = self._computing_since, self.comm.now()
        self.trace.add("compute", "step", since, now - since - waited)
        self._computing_since = now
        if self.step & (self.step + 1) == 0:  # at steps 1, 2, 4, 8, ...: soon, and then seldom
            self.replica.check(self._model)
        if self._gradients is None or self._gradients.stopped or self._averages_gradients():
            self.step += 1
            hook = self.strategy.after_step if self._along else self.strategy.at_boundary
            self.comm.run(hook(self.step))
            self._computing_since = self.comm.now()
        # Otherwise this step's gradients were averaged for another rank that is behind, because it skipped a step:
        # for the strategy no step has gone by, or it would go on where that rank does not follow yet.
        self._lead.mark()

    def _idle_hook(self) -> Callable[[Optimizer, Any, Any], None]:
        """The same where there is nothing to do but to note the step, without a call: a step of a fraction of a
        millisecond would feel each of them."""
        clock, origin = time.perf_counter, time.perf_counter() - self.comm.now()
        note, seconds, rank, new = self.trace.events.append, self.trace.seconds, self.rank, tuple.__new__

        def after_step(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            now = clock() - origin
            since = self._computing_since
            note(new(Event, ("compute", "step", rank, since, now - since, 0, ())))
            seconds["compute"] += now - since
            self._computing_since = now
            self.step = step = self.step + 1
            if step & (step - 1) == 0:
                self.replica.check(self._model)

        return after_step

    def _step_along(self) -> None:
        needs_closure = inspect.signature(self._optimizer.step).parameters.get("closure")
        if needs_closure is not None and needs_closure.default is inspect.Parameter.empty:
            self._optimizer.step(lambda: 0.0)
        else:
            self._optimizer.step()


def describe(strategy: Strategy) -> str:
    values = (f"{name}={getattr(strategy, name)}" for name in options_of(type(strategy)))
    return f"{strategy.name}({', '.join(values)})"


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Every parameter that the optimizer moves must be one of the model's, and floating point."""
    known = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in known for parameter in held)
    if strangers:
        raise BadInput(
            f"the optimizer holds {strangers} of {len(held)} parameters that are not in the model: "
            f"build it from model.parameters(), and attach before any copy of the model is made"
        )
    for parameter in held:
        if not torch.is_floating_point(parameter):
            raise BadInput(
                f"the optimizer holds a parameter of type {parameter.dtype}, and only floating-point parameters "
                f"can be trained and averaged: leave it out of the optimizer"
            )
