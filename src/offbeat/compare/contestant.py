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
from inspect import isgeneratorfunction, signature
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ..attach import Attachment, attach
from ..errors import BadInput, OffbeatError
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


class CannotLoad(OffbeatError):
    """A rival whose file imports what cannot be had here: listed with the reason."""


def find_contestant(spec: str) -> Contestant:
    """Raises `BadInput` where the spec is wrong, `CannotLoad` where what the rival imports cannot be had here."""
    file, colon, rest = spec.partition(".py:")
    if not colon:
        return ours(spec)
    name, _, settings = rest.partition(":")
    return rival(spec, Path(f"{file}.py"), name, _settings(spec, settings))


def rival(spec: str, path: Path, name: str, settings: Mapping[str, str]) -> Contestant:
    names = _load(path)
    if name not in names:
        raise BadInput(f"{path} has no function {name}: choose among {', '.join(k for k in names if k[0] != '_')}")
    try:
        found = names[name](**settings) if settings else names[name]
    except ImportError as error:
        raise _missing(path, error) from error
    except (TypeError, ValueError) as error:  # of a setting, in words for its user
        raise BadInput(f"{spec} does not fit: {_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"{spec} does not fit ({_story(error)}): correct its settings, or that file") from error
    if isgeneratorfunction(found) or not _takes_three(found):
        raise BadInput(f"{spec} does not fit: {PROTOCOL}")

    @contextmanager
    def run(model: nn.Module, optimizer: Optimizer, setup: Setup) -> Iterator[tuple[Callable[..., Any], Stepper]]:
        context = found(model, optimizer, setup)
        if not isinstance(context, AbstractContextManager):
            raise BadInput(f"{spec} does not fit: {PROTOCOL}, and it returned {type(context).__name__}")
        with context as given:
            if not (isinstance(given, tuple) and len(given) == 2):
                raise BadInput(f"{spec} does not fit: {PROTOCOL}, and it yielded {type(given).__name__}")
            yield given

    return run


PROTOCOL = (
    "a rival is a function of (model, optimizer, setup) under @contextmanager that yields what to call in place of the "
    "model and what to step in place of the optimizer"
)


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise BadInput(f"{path} is not there: name a rival's file and its function, as in rivals/ddp.py:train")
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{path} is no Python ({_line(error)}): correct that file") from error
    try:
        return runpy.run_path(str(path))
    except ImportError as error:
        raise _missing(path, error) from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"{path} cannot be loaded ({_story(error)}): correct that file, or leave it out") from error


def _missing(path: Path, error: ImportError) -> CannotLoad:
    return CannotLoad(f"{path} cannot be loaded ({_story(error)}): install what it imports, or leave it out")


def _settings(spec: str, text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.split(",")] if text else []
    for name, equals, _ in parts:
        if not (name and equals):
            raise BadInput(f"{spec} does not fit: settings are written name=value, and {name!r} is not")
    return {name: value for name, _, value in parts}


def _takes_three(found: object) -> bool:
    try:
        signature(found).bind("model", "optimizer", "setup")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _story(error: BaseException) -> str:
    return f"{type(error).__name__}: {_line(error)}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


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
