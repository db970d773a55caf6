"""Subject: the model of a plan, from a zoo name, `timm:NAME` or `file.py:function`, traced at any batch size."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from ..errors import BadInput, unknown
from ..train.models import MODELS, find_model
from ..train.task import Task, cross_entropy
from ..train.tasks import adamw, call_own, sgd
from .fake import Model, parameters_without_memory
from .trace import Platform, TracedStep, trace

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": sgd, "adamw": adamw}
SMALL, LARGE, CHARACTERS = ((3, 32, 32), 10), ((3, 224, 224), 1000), ((256,), 65)
USUAL_INPUT = {"resnet18": LARGE, "resnet50": LARGE, "vgg11": LARGE, "vgg16": LARGE, "gpt": CHARACTERS}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something to train. `sample` is a batch of one: (inputs, targets), of which only shapes and types count."""

    name: str
    model: Model
    sample: tuple[Any, Any]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    platform: Platform
    autocast: torch.dtype | None = None
    batch: int = 32  # what it is usually trained with
    classes: int = 2  # integers of inputs and targets lie below
    otherwise: Callable[[], "Subject"] | None = None  # the same with all its numbers, if a trace asks for them
    _traced: dict[int, TracedStep] = field(default_factory=dict, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: traces are large, and can be made again."""
        return {**self.__dict__, "_traced": {}}

    def at(self, batch: int) -> TracedStep:
        """The step with so many samples, traced once."""
        if batch < 1:
            raise BadInput(f"a batch of {batch} samples trains nothing: give at least 1")
        if batch not in self._traced:
            try:
                self._traced[batch] = self._trace(batch)
            except BadInput:
                if self.otherwise is None:
                    raise
                self._traced[batch] = self.otherwise().at(batch)
        return self._traced[batch]

    def _trace(self, batch: int) -> TracedStep:
        inputs, targets = tree_map_only(Tensor, partial(_repeated, batch=batch), self.sample)
        return trace(
            self.model,
            inputs,
            targets,
            loss=self.loss,
            optimizer=self.optimizer,
            platform=self.platform,
            autocast=self.autocast,
        )


Case = tuple[Subject, int]  # and the batch


def find_subject(
    name: str,
    *,
    platform: Platform,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    optimizer: str | None = None,
    bf16: bool = False,
) -> Subject:
    """`resnet50`, `timm:vit_base_patch16_224` or `models.py:build`."""
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    common: dict[str, Any] = {"name": name, "platform": platform, "autocast": torch.bfloat16 if bf16 else None}
    if name.startswith("timm:"):
        build, shape, classes = _timm(name.removeprefix("timm:"), input_shape, classes)
        return _classifier(build, shape, classes, optimizer or "sgd", common)
    if ":" in name or name.endswith(".py"):
        if input_shape is not None or classes is not None:
            raise BadInput(f"{name} says itself what goes in: leave out --input and --classes")
        return _own(name, optimizer, common)
    if name not in MODELS:
        raise unknown("model", name, [*MODELS, "timm:NAME", "path/to/file.py:function"])
    usual_shape, usual_classes = USUAL_INPUT.get(name, SMALL)
    shape, classes = input_shape or usual_shape, usual_classes if classes is None else classes
    build = partial(find_model(name), shape, classes)
    return _classifier(build, shape, classes, optimizer or ("adamw" if name == "gpt" else "sgd"), common)


def _classifier(
    build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, optimizer: str, common: dict[str, Any]
) -> Subject:
    if min(shape) < 1 or classes < 1:
        raise BadInput(f"an input of {shape} with {classes} classes does not fit: all must be at least 1")
    reads_text = len(shape) == 1 and common["name"] == "gpt"
    inputs = torch.zeros(1, *shape, dtype=torch.long if reads_text else torch.float32, device="meta")
    targets = torch.zeros(inputs.shape if reads_text else 1, dtype=torch.long, device="meta")
    return Subject(
        model=build,
        sample=(inputs, targets),
        loss=cross_entropy,
        optimizer=partial(OPTIMIZERS[optimizer], learning_rate=0.1),
        classes=classes,
        **common,
    )


def _timm(
    name: str, shape: tuple[int, ...] | None, classes: int | None
) -> tuple[Callable[[], nn.Module], tuple[int, ...], int]:
    try:
        import timm
    except ImportError as error:
        raise BadInput(f"timm:{name} needs the package timm, which is not installed: pip install timm") from error
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models(f"*{name[:4]}*"))
    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    usual = tuple(config.input_size) if config is not None else (3, 224, 224)
    classes = 1000 if classes is None else classes
    return partial(timm.create_model, name, pretrained=False, num_classes=classes), shape or usual, classes


def subject_of(task: Task, *, name: str, platform: Platform, autocast: torch.dtype | None = None) -> Subject:
    """What a task trains; one sample of its data tells the shapes of all."""
    return Subject(
        name=name,
        model=task.model,
        sample=task.train.batch(torch.tensor([0])),
        loss=task.loss,
        optimizer=task.optimizer,
        platform=platform,
        autocast=autocast,
        batch=task.batch,
    )


def _own(name: str, optimizer: str | None, common: dict[str, Any]) -> Subject:
    """What a function of the user's returns, without its memory if it and the trace can do without the numbers."""

    def built(within: Callable[[], AbstractContextManager[object]]) -> Subject:
        return _subject_from(call_own(name, within), optimizer, common)

    for_real = cache(partial(built, nullcontext))
    try:
        return replace(built(parameters_without_memory), otherwise=for_real)
    except BadInput:
        return for_real()


def _subject_from(made: object, optimizer: str | None, common: dict[str, Any]) -> Subject:
    """Of a Task, or of a model and the inputs for one sample."""
    if isinstance(made, Task):
        subject = subject_of(made, **common)
        if optimizer is None:
            return subject
        return replace(subject, optimizer=partial(OPTIMIZERS[optimizer], learning_rate=0.1))
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise BadInput(
            f"{common['name']} returned {type(made).__name__}: it must return an offbeat Task, or a model and the "
            f"inputs of one sample, as in (model, torch.zeros(1, 3, 224, 224))"
        )
    return Subject(
        model=made[0],
        sample=(made[1], None),
        loss=_mean_of_outputs,
        optimizer=partial(OPTIMIZERS[optimizer or "sgd"], learning_rate=0.1),
        **common,
    )


def _mean_of_outputs(outputs: Any, _targets: None) -> Tensor:
    """Where no loss is given: that a gradient flows to all that comes out."""
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, outputs)
    floating = [each for each in found if each.is_floating_point()]
    if not floating:
        raise BadInput("the model returns no tensor of floats: return a Task, which says what the loss is")
    return torch.stack([each.float().mean() for each in floating]).sum()


def _repeated(part: Tensor, batch: int) -> Tensor:
    if part.dim() == 0:
        return part
    return torch.empty((batch, *part.shape[1:]), dtype=part.dtype, device="meta")
