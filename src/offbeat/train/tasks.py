"""load_task: the built-in tasks by name, or the user's own from `path/to/file.py:function`."""

import importlib.util
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from ..errors import BadInput, unknown
from .data.cifar10 import cifar10
from .data.digits import digits
from .data.idx import fashion_mnist, mnist
from .data.parts import Parts
from .data.synthetic import synthetic
from .data.text import text
from .models import find_model
from .task import Task, cross_entropy


def sgd(parameters: Iterable[nn.Parameter], *, learning_rate: float) -> Optimizer:
    """SGD with momentum 0.9."""
    return SGD(parameters, lr=learning_rate, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter], *, learning_rate: float) -> Optimizer:
    """AdamW with torch's defaults."""
    return AdamW(parameters, lr=learning_rate)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The defaults of one built-in task."""

    parts: Callable[[Path | None, int], Parts]  # (data, seed)
    reads_files: bool = True
    model: str
    learning_rate: float
    optimizer: Callable[..., Optimizer] = sgd
    batch: int = 32
    epochs: int


RECIPES: dict[str, Recipe] = {
    "digits": Recipe(
        parts=lambda _data, _seed: digits(), reads_files=False,
        model="mlp", learning_rate=0.02, batch=16, epochs=40,
    ),
    "mnist": Recipe(parts=lambda data, _seed: mnist(data), model="cnn", learning_rate=0.02, epochs=5),
    "fashion-mnist": Recipe(
        parts=lambda data, _seed: fashion_mnist(data), model="cnn", learning_rate=0.02, epochs=10
    ),
    "cifar10": Recipe(parts=lambda data, _seed: cifar10(data), model="cnn3m", learning_rate=0.02, epochs=20),
    "text": Recipe(
        parts=lambda data, _seed: text(data), model="gpt", learning_rate=1e-3, optimizer=adamw, epochs=3
    ),
    "synthetic": Recipe(
        parts=lambda _data, seed: synthetic(seed=seed), reads_files=False,
        model="mlp", learning_rate=0.02, epochs=20,
    ),
}  # fmt: skip


def load_task(
    name: str,
    *,
    data: Path | None = None,
    model: str | None = None,
    learning_rate: float | None = None,
    seed: int,
) -> Task:
    """A built-in task, with its model and learning rate replaced if given, or the user's own.

    `data` is where the files of the task are; `seed` draws the data of `synthetic`.
    """
    if ":" in name or name.endswith(".py"):
        if (data, model, learning_rate) != (None, None, None):
            raise BadInput(
                f"{name} brings its own data, model and learning rate: set them in that file and leave out "
                f"--data, --model and --learning-rate"
            )
        return own_task(name)
    if name not in RECIPES:
        raise unknown("task", name, [*RECIPES, "path/to/file.py:function"])
    recipe = RECIPES[name]
    model = recipe.model if model is None else model
    build = find_model(model)
    if (name == "text") != (model == "gpt"):
        raise BadInput(
            f"model {model} does not fit task {name}: the task text needs the model gpt, which fits no other"
        )
    rate = recipe.learning_rate if learning_rate is None else learning_rate
    if not (math.isfinite(rate) and rate > 0):
        raise BadInput(f"learning rate {rate} must be a number above 0, such as {recipe.learning_rate}")
    if data is not None and not recipe.reads_files:
        raise BadInput(f"task {name} reads no files, so {data} would go unused: leave out --data")
    parts = recipe.parts(data, seed)
    shape = tuple(parts.train.inputs.shape[1:])
    with torch.device("meta"):  # a model that does not fit the data fails here, without drawing weights
        build(shape, parts.classes)
    return Task(
        name=name,
        model=partial(build, shape, parts.classes),
        optimizer=partial(recipe.optimizer, learning_rate=rate),
        loss=cross_entropy,
        train=parts.train,
        test=parts.test,
        batch=recipe.batch,
        epochs=recipe.epochs,
    )


def own_task(name: str) -> Task:
    """Import `path/to/file.py:function` by path, call the function, and return its Task."""
    task = call_own(name)
    if not isinstance(task, Task):
        file, _, function = name.rpartition(":")
        raise BadInput(f"{function}() of {file} returned {type(task).__name__}: it must return an offbeat Task")
    return task


def call_own(name: str, within: Callable[[], AbstractContextManager[object]] = nullcontext) -> object:
    """What `path/to/file.py:function` returns when it is called within something; the file itself is read before."""
    file, _, function = name.rpartition(":")
    if not file or not function:
        raise BadInput(f"{name!r} names no function of a file: write path/to/file.py:function")
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise BadInput(f"there is no Python file {path}, which {name!r} names: write path/to/file.py:function")
    with _importable(path.parent.resolve()):
        try:
            module = _import(path.resolve())
        except (Exception, SystemExit) as error:
            raise BadInput(f"importing {path} raised {_story(error)}: correct that file") from error
        make = getattr(module, function, None)
        if not callable(make):
            raise BadInput(f"{path} has no function {function!r}: define it there, or name another one")
        try:
            with within():
                return make()
        except (Exception, SystemExit) as error:
            raise BadInput(f"{function}() of {path} raised {_story(error)}: correct that function") from error


def _import(path: Path) -> ModuleType:
    # A name that no import statement can spell, so that it hides no other module.
    name = f"offbeat task {path}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no loader for {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _story(error: BaseException) -> str:
    """The type and message of an exception, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
