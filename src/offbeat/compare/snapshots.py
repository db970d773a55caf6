"""Snapshots: the weights of every worker along the way, and the accuracy of their mean at those moments.

An averaged model exists only in thought while the workers are apart; each keeps a copy of its own weights now and then,
and the mean of what was there around a moment is evaluated after the run. Files are written then too: on the clock is
only the copy, beside the model.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..train.task import Task, evaluate

TEST_SAMPLES = 2000  # of the points along the way, on a CPU; on a GPU, and for the last one, all
AT_ONCE = {"cpu": 128, "cuda": 1000}  # samples
MOST_HELD_NBYTES = 12 << 30  # of all workers' copies, who may share a GPU, before they are written after all


@dataclass(frozen=True)
class Point:
    """The mean of all workers around a moment."""

    seconds: float  # mean over workers, as are the steps
    steps: float
    accuracy: float | None
    loss: float


class Album:
    """The snapshots of one worker."""

    def __init__(self, folder: Path, rank: int, workers: int) -> None:
        self._folder, self._rank = folder, rank
        self._most_nbytes = MOST_HELD_NBYTES // workers
        self._number = self._held_nbytes = 0
        self._held: list[tuple[Path, Tensor, dict[str, str]]] = []

    def take(self, model: nn.Module, *, seconds: float, step: int, instead: Mapping[str, Tensor] | None = None) -> None:
        """Of the model, but for what others hand in `instead`."""
        path = self._folder / f"{self._rank:05d}-{self._number:05d}.safetensors"
        x = flat_of(model, instead)
        self._held.append((path, x, {"seconds": repr(seconds), "step": str(step)}))
        self._number += 1
        self._held_nbytes += x.nbytes
        if self._held_nbytes > self._most_nbytes:
            self.write()

    def write(self) -> None:
        for path, x, about in self._held:
            safetensors.torch.save_file({"x": x.cpu()}, str(path), metadata=about)
        self._held.clear()
        self._held_nbytes = 0


def curve(folder: Path, task: Task, model: nn.Module, ranks: int) -> list[Point]:
    """Around every snapshot of the rank that trains longest, and at the end, the mean of all ranks."""
    albums: list[list[_Snapshot]] = [[] for _ in range(ranks)]
    for snapshot in sorted(_read_all(folder), key=lambda snapshot: snapshot.number):
        albums[snapshot.rank].append(snapshot)
    trained = [album[:-1] for album in albums]  # the last one is what the contestant hands in when all are through
    longest = max(trained, key=lambda album: album[-1].seconds if album else 0.0)
    around = [[_nearest(album, snapshot.seconds) for album in trained] for snapshot in longest]
    device = next(model.parameters()).device
    quick = task if device.type == "cuda" else _first_samples_of(task)
    points = [_point(near, model, quick) for near in around]
    last = _point([album[-1] for album in albums], model, task)
    return [*points, replace(last, seconds=max(album[-1].seconds for album in albums))]


def _first_samples_of(task: Task) -> Task:
    inputs, targets = task.test.inputs[:TEST_SAMPLES], task.test.targets[:TEST_SAMPLES]
    return replace(task, test=replace(task.test, inputs=inputs, targets=targets))


def flat_of(model: nn.Module, instead: Mapping[str, Tensor] | None = None) -> Tensor:
    """All floating-point tensors of a model, or what is given instead of some, as one vector, beside them."""
    given = instead or {}
    return torch.cat([given.get(name, x).detach().reshape(-1).float() for name, x in _floats(model).items()])


def load_flat(model: nn.Module, flat: Tensor) -> None:
    start = 0
    with torch.no_grad():
        for tensor in _floats(model).values():
            tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()


def _floats(model: nn.Module) -> Mapping[str, Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


@dataclass(frozen=True)
class _Snapshot:
    rank: int
    number: int
    seconds: float
    step: int
    path: Path

    def x(self, device: torch.device) -> Tensor:
        return safetensors.torch.load_file(str(self.path), device=str(device))["x"]


def _point(snapshots: Sequence[_Snapshot], model: nn.Module, task: Task) -> Point:
    """Of the mean of these, which `model` has afterwards."""
    device = next(model.parameters()).device
    load_flat(model, torch.stack([snapshot.x(device) for snapshot in snapshots]).mean(0))
    accuracy, loss = evaluate(model, task, batch=AT_ONCE[device.type])
    seconds, steps = (statistics.fmean(each) for each in zip(*((s.seconds, s.step) for s in snapshots), strict=True))
    return Point(seconds, steps, accuracy, loss)


def _nearest(album: Sequence[_Snapshot], moment: float) -> _Snapshot:
    """What a worker had closest to a moment, before or after it. One that trains no more, and waits for the others,
    keeps its weights."""
    found = min(album, key=lambda snapshot: abs(snapshot.seconds - moment))
    return replace(found, seconds=max(found.seconds, moment)) if found is album[-1] else found


def _read_all(folder: Path) -> Iterator[_Snapshot]:
    for path in folder.glob("*.safetensors"):
        rank, number = map(int, path.stem.split("-"))
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata()
        yield _Snapshot(rank, number, float(about["seconds"]), int(about["step"]), path)
