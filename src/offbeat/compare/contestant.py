"""Contestant: a way of synchronising, as a context around the training loop.

    with contestant(model, optimizer, setup) as (module, stepper):
        loss = task.loss(module(inputs), targets); loss.backward(); stepper.step()

One of our strategies by its spec, such as `lasgd:every=8`, or a rival: `path/to/file.py:function`, where the function
is a context manager like this one.
"""

import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ..attach import Attachment, attach
from ..errors import BadInput
from ..layout import Layout
from ..strategies import make_strategy
from ..strategy import Plan


class Stepper(Protocol):
    """An optimizer, or what a rival puts around one."""

    def step(self) -> Any: ...

    def zero_grad(self) -> Any: ...


@dataclass(frozen=True)
class Setup:
    """What a contestant may know of the run."""

    rank: int
    layout: Layout
    steps: int
    steps_per_epoch: int
    seed: int
    timeout_seconds: float  # for whatever waits for other workers: nobody gives up before the lap does
    attachment: list[Attachment]  # filled by ours, for what only they can tell
    hands_in: list[Callable[[], Mapping[str, Tensor]]]  # filled by those who would hand in other weights


Contestant = Callable[[nn.Module, Optimizer, Setup], AbstractContextManager[tuple[Callable[..., Any], Stepper]]]


def find_contestant(spec: str) -> Contestant:
    file, colon, function = spec.partition(".py:")
    if not colon:
        return ours(spec)
    path = Path(f"{file}.py")
    if not path.is_file():
        raise BadInput(f"{path} is not there: name a rival's file and its function, as in rivals/ddp.py:train")
    try:
        names = runpy.run_path(str(path))
    except ImportError as error:
        raise BadInput(f"{path} cannot be run ({error}): install what it imports, or leave it out") from error
    name, _, options = function.partition(":")
    if name not in names:
        raise BadInput(f"{path} has no function {name}: choose among {', '.join(k for k in names if k[0] != '_')}")
    found: Contestant = names[name](**_options(options)) if options else names[name]
    return found


def _options(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",")) if text else {}


def ours(spec: str) -> Contestant:
    @contextmanager
    def run(model: nn.Module, optimizer: Optimizer, setup: Setup) -> Iterator[tuple[Callable[..., Any], Stepper]]:
        strategy = make_strategy(spec)
        strategy.prepare(Plan(setup.steps, setup.steps_per_epoch))
        with attach(
            model, optimizer, strategy, layout=setup.layout, seed=setup.seed, timeout_seconds=setup.timeout_seconds
        ) as attachment:
            setup.attachment.append(attachment)
            if strategy.trail:
                setup.hands_in.append(attachment.weights)
            yield model, optimizer

    make_strategy(spec)  # refused now if it does not fit
    return run
