"""Task: what is trained, on what, and how good it has become. Nothing here knows about workers."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, TensorDataset

from ..errors import BadInput


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """All samples of one part (train or test), in memory.

    `uint8` inputs are images with pixels 0..255: they stay so in memory, and `batch` makes floats of them,
    (pixel / 255 - mean) / std per channel. Inputs of any other type are handed out as they are.
    """

    inputs: Tensor  # [samples, ...]; images are [samples, channels, height, width]
    targets: Tensor  # [samples, ...]
    mean: tuple[float, ...] = ()  # one per channel, or one for all; only for uint8 inputs
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.dim() == 0 or self.targets.dim() == 0 or len(self.inputs) != len(self.targets):
            raise BadInput(
                f"inputs {tuple(self.inputs.shape)} and targets {tuple(self.targets.shape)} do not pair up: "
                f"their first dimensions must be the same number of samples"
            )
        if len(self.inputs) == 0:
            raise BadInput("0 samples train nothing: give at least one")
        if not self.mean and not self.std:
            return
        if self.inputs.dtype != torch.uint8:
            raise BadInput(
                f"mean and std are for uint8 images, and these inputs are {self.inputs.dtype}: "
                f"normalise them beforehand and leave mean and std out"
            )
        channels = self.inputs.shape[1] if self.inputs.dim() > 1 else 1
        if len(self.mean) not in (1, channels) or len(self.std) not in (1, channels) or min(self.std) <= 0:
            raise BadInput(
                f"mean {self.mean} and std {self.std} do not fit {channels} channels: "
                f"give one value for all or one per channel, each std above 0"
            )

    @classmethod
    def of(cls, dataset: Dataset[Any]) -> "Samples":
        """Read a map-style dataset of (tensor, int or tensor) pairs once, whole."""
        if isinstance(dataset, TensorDataset):
            if len(dataset.tensors) != 2:
                raise BadInput(f"a TensorDataset of {len(dataset.tensors)} tensors: give it inputs and targets")
            return cls(inputs=dataset.tensors[0], targets=dataset.tensors[1])
        if not isinstance(dataset, Sized):
            raise BadInput(f"{type(dataset).__name__} has no len(): give a map-style dataset")
        inputs, targets = [], []
        for index in range(len(dataset)):
            pair = dataset[index]
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Tensor)):
                raise BadInput(
                    f"sample {index} of {type(dataset).__name__} is {_kinds(pair)}: "
                    f"it must be a pair of a tensor and an int or a tensor (convert images with a transform)"
                )
            inputs.append(pair[0])
            targets.append(torch.as_tensor(pair[1]))
        if not inputs:
            raise BadInput(f"{type(dataset).__name__} is empty: give at least one sample")
        try:
            return cls(inputs=torch.stack(inputs), targets=torch.stack(targets))
        except RuntimeError as error:
            raise BadInput(
                f"the samples of {type(dataset).__name__} differ in shape, and a batch needs one shape: "
                f"crop or pad them ({error})"
            ) from error

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device | str) -> "Samples":
        """The same samples on another device."""
        return Samples(inputs=self.inputs.to(device), targets=self.targets.to(device), mean=self.mean, std=self.std)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of `indices` [...]: [..., *sample shape] each; integer targets come as int64."""
        inputs, targets = self.inputs[indices], self.targets[indices]
        if inputs.dtype == torch.uint8:
            inputs = inputs.float().div_(255)
            if self.mean:
                mean, std = self._mean_std
                inputs = inputs.sub_(mean).div_(std)
        return inputs, targets if targets.is_floating_point() else targets.long()

    @cached_property
    def _mean_std(self) -> tuple[Tensor, Tensor]:
        per_channel = (-1, *[1] * (self.inputs.dim() - 2))
        device = self.inputs.device
        mean = torch.tensor(self.mean, device=device).view(per_channel)
        return mean, torch.tensor(self.std, device=device).view(per_channel)


def _kinds(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(type(part).__name__ for part in value) + ")"
    return type(value).__name__


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, its optimiser and loss, and the data."""

    name: str
    model: Callable[[], nn.Module]  # called right after torch.manual_seed(seed); must be deterministic
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]  # (model(inputs), targets) -> scalar mean loss
    train: Samples
    test: Samples
    batch: int = 32  # samples per worker and step
    epochs: int = 10

    def __post_init__(self) -> None:
        if self.batch < 1 or self.epochs < 1:
            raise BadInput(f"batch {self.batch} and epochs {self.epochs} must both be at least 1")


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of scores [..., classes] against class numbers [...]."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def cross_entropy_of_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """`cross_entropy` of several workers at once, [workers, ...] -> [workers]; mapped over them it is much slower."""
    classes = outputs.shape[-1]
    losses = nn.functional.cross_entropy(outputs.reshape(-1, classes), targets.reshape(-1), reduction="none")
    return losses.view(len(outputs), -1).mean(1)


def correct(outputs: Tensor, targets: Tensor) -> tuple[int, int] | None:
    """(how many of the highest scores are right, of how many): scores [..., classes], classes [...]; else None."""
    if targets.is_floating_point() or outputs.shape[:-1] != targets.shape or outputs.shape[-1:] < (2,):
        return None
    return int((outputs.argmax(-1) == targets).sum()), targets.numel()


def evaluate(model: nn.Module, task: Task, batch: int = 128) -> tuple[float | None, float]:
    """(accuracy, mean loss) on the test part, in eval mode; each module's training mode is put back.

    Accuracy is None where outputs are no scores of classes, as in a regression.
    """
    modes = [(module, module.training) for module in model.modules()]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    right, answers, loss = 0, 0, 0.0
    model.eval()
    try:
        with torch.no_grad():
            for indices in torch.split(torch.arange(len(task.test)), batch):
                inputs, targets = (part.to(device) for part in task.test.batch(indices))
                outputs = model(inputs)
                loss += float(task.loss(outputs, targets)) * len(indices)
                hits, count = correct(outputs, targets) or (0, 0)
                right, answers = right + hits, answers + count
    finally:
        for module, training in modes:
            module.training = training
    return right / answers if answers else None, loss / len(task.test)
