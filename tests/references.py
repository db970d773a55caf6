"""The methods written out as plain loops over all workers, to hold the strategies against.

Every reference takes the start x0, the local step `step(rank, number, x) -> delta` (number from 0), the number of
workers and of steps, and returns x at the end, after the final exact average.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[int, int, Tensor], Tensor]


def none(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
    xs = [x0.clone() for _ in range(workers)]
    for number in range(steps):
        xs = [x + step(rank, number, x) for rank, x in enumerate(xs)]
    return torch.stack(xs).mean(0)


def ddp(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
    x = x0.clone()
    for number in range(steps):
        x = x + torch.stack([step(rank, number, x) for rank in range(workers)]).mean(0)
    return x


def local_sgd(every: int, warmup: int = 0) -> Callable[[Tensor, Step, int, int], Tensor]:
    def reference(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
        xs = [x0.clone() for _ in range(workers)]
        for number in range(steps):
            deltas = [step(rank, number, x) for rank, x in enumerate(xs)]
            if number < warmup:
                deltas = [torch.stack(deltas).mean(0)] * workers
            xs = [x + delta for x, delta in zip(xs, deltas, strict=True)]
            local = number + 1 - warmup
            if local > 0 and local % every == 0:
                xs = [torch.stack(xs).mean(0)] * workers
        return torch.stack(xs).mean(0)

    return reference


def lasgd(every: int, delay: int, fragments: int = 1) -> Callable[[Tensor, Step, int, int], Tensor]:
    interval = max(every, delay)

    def reference(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
        xs = x0.repeat(workers, 1)
        cuts = [round(len(x0) * part / fragments) for part in range(fragments + 1)]
        corrections: dict[tuple[int, int], Tensor] = {}  # fragment, the step at which it is due
        for number in range(1, steps + 1):
            xs = torch.stack([x + step(rank, number - 1, x) for rank, x in enumerate(xs)])
            for part in range(fragments):
                piece = xs[:, cuts[part] : cuts[part + 1]]
                piece += corrections.pop((part, number), 0.0)
                first = every + part * interval // fragments
                if number >= first and (number - first) % interval == 0:
                    corrections[part, number + delay] = piece.mean(0) - piece
                    piece += corrections.pop((part, number), 0.0)  # where the delay is 0
        return xs.mean(0)  # a correction still in flight changes no mean

    return reference
