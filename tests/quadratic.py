"""A problem small enough to write out: each worker pulls x towards its own target, with seeded noise."""

import torch
from torch import Tensor, nn

from offbeat.layout import Ranks
from offbeat.replica import Replica

ELEMENTS, CUT = 32, 10  # a multiple of 16, so that a replica of it has no padding
RATE = 0.1


def target(rank: int) -> Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1000 + rank), dtype=torch.float64)


def delta(rank: int, number: int, x: Tensor) -> Tensor:
    """One step of plain SGD of worker `rank`: depends on x, on the worker and on the step."""
    generator = torch.Generator().manual_seed(rank * 7919 + number)
    noise = torch.randn(ELEMENTS, generator=generator, dtype=torch.float64)
    return RATE * (target(rank) - x + 0.3 * noise)


def start() -> Tensor:
    return torch.linspace(-1, 1, ELEMENTS, dtype=torch.float64)


class Quadratic:
    """Learners of this problem for the virtual world; remembers the sum of all changes that steps made.

    x lies in two flat buffers, as that of a model of two dtypes does.
    """

    def __init__(self, workers: int) -> None:
        self.replicas = [Replica((start()[:CUT].clone(), start()[CUT:].clone())) for _ in range(workers)]
        self.moved = [torch.zeros(ELEMENTS, dtype=torch.float64) for _ in range(workers)]
        self._under_way: dict[int, tuple[int, bool]] = {}
        self._deltas: dict[int, Tensor] = {}

    def x(self, rank: int) -> Tensor:
        return torch.cat(self.replicas[rank].flats)

    def begin(self, rank: int, step: int, *, alone: bool) -> None:
        self._under_way[rank] = (step, alone)

    def end(self, rank: int) -> float:
        step, alone = self._under_way.pop(rank)
        x = self.x(rank)
        self._deltas[rank] = delta(rank, step, x)
        if alone:
            self._move(rank, self._deltas[rank])
        return float((x - target(rank)).square().sum())

    def apply(self, ranks: Ranks, sources: Ranks) -> None:
        mean = torch.stack([self._deltas[rank] for rank in sources]).mean(0)
        for rank in ranks:
            self._move(rank, mean)

    def mean_model(self) -> nn.Module:
        raise AssertionError("there is no model")

    def _move(self, rank: int, change: Tensor) -> None:
        for flat, part in zip(self.replicas[rank].flats, (change[:CUT], change[CUT:]), strict=True):
            flat.add_(part)
        self.moved[rank] += change


class Pull(nn.Module):
    """The same problem as a model: with SGD at RATE its step is `delta`."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(start())

    def forward(self, rank: int, number: int) -> Tensor:
        pull = delta(rank, number, self.x.detach()) / RATE
        return -(self.x * pull).sum()  # its gradient is -pull
