"""The methods written out as plain loops over all workers, to hold the strategies against.

Every reference takes the start x0, the local step `step(rank, number, x) -> delta` (number from 0), the number of
workers and of steps, and returns x at the end, after the final exact average.
"""

import math
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


def daso(every: int, wait: int, nodes: int = 2) -> Callable[[Tensor, Step, int, int], Tensor]:
    """Cycling with constant B and W; workers in blocks over nodes of equal size, which hold one x each."""

    def reference(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
        xs, local = [x0.clone() for _ in range(nodes)], workers // nodes
        total, sent_at = torch.zeros_like(x0), 0  # the sum on its way, and since when
        for number in range(1, steps + 1):
            for node, x in enumerate(xs):
                ranks = range(node * local, (node + 1) * local)
                xs[node] = x + torch.stack([step(rank, number - 1, x) for rank in ranks]).mean(0)
            if sent_at and number == sent_at + wait > sent_at:
                xs = [(2 * wait * x + total) / (2 * wait + nodes) for x in xs]
            if number % every == 0:
                total, sent_at = torch.stack(xs).sum(0), number
                if wait == 0:
                    xs = [total / nodes] * nodes
        if sent_at + wait > steps:  # in flight at the end: merged with the steps that have gone by
            late = steps - sent_at
            xs = [(2 * late * x + total) / (2 * late + nodes) for x in xs]
        return torch.stack(xs).mean(0)

    return reference


def lasgd_with_momentum(every: int, delay: int, momentum: float) -> Callable[[Tensor, Step, int, int], Tensor]:
    def reference(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
        xs, common, velocity = x0.repeat(workers, 1), x0.clone(), torch.zeros_like(x0)
        snapshots: dict[int, Tensor] = {}  # by the step at which they are merged

        def merge(xs: Tensor, snapshot: Tensor) -> Tensor:
            learned = snapshot.mean(0) - common
            velocity.mul_(momentum).add_(learned)
            common.add_(learned + momentum * velocity)
            return xs + snapshot.mean(0) - snapshot + momentum * velocity

        for number in range(1, steps + 1):
            xs = torch.stack([x + step(rank, number - 1, x) for rank, x in enumerate(xs)])
            if number in snapshots:
                xs = merge(xs, snapshots.pop(number))
            if number >= every and (number - every) % max(every, delay) == 0:
                snapshots[number + delay] = xs.clone()
        for snapshot in snapshots.values():
            xs = merge(xs, snapshot)
        return merge(xs, xs).mean(0)  # the average that tells them that nobody trains any more

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


def diloco(
    every: int,
    lr: float = 0.7,
    momentum: float = 0.9,
    fragments: int = 1,
    delay: int = 0,
    merge_weight: float = 0.5,
) -> Callable[[Tensor, Step, int, int], Tensor]:
    def reference(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
        xs, old, velocity = x0.repeat(workers, 1), x0.clone(), torch.zeros_like(x0)
        cuts = [round(len(x0) * part / fragments) for part in range(fragments + 1)]
        parts = [slice(cuts[index], cuts[index + 1]) for index in range(fragments)]
        outer_gradients: dict[tuple[int, int], Tensor] = {}  # the step at which it is due, fragment

        def merge(number: int, index: int) -> None:
            gradient, part = outer_gradients.pop((number, index)), parts[index]
            velocity[part] = momentum * velocity[part] + gradient
            old[part] -= lr * (gradient + momentum * velocity[part])
            weight = merge_weight if delay else 0.0
            xs[:, part] = weight * xs[:, part] + (1 - weight) * old[part]

        for number in range(1, steps + 1):
            xs = torch.stack([x + step(rank, number - 1, x) for rank, x in enumerate(xs)])
            for index, part in enumerate(parts):
                if (number, index) in outer_gradients:
                    merge(number, index)
                if number % every == math.ceil((index + 1) * every / fragments) % every:
                    outer_gradients[number + delay, index] = old[part] - xs[:, part].mean(0)
                    if delay == 0:
                        merge(number, index)
        for number, index in sorted(outer_gradients):
            merge(number, index)
        return xs.mean(0)

    return reference


def sgp(overlap: int) -> Callable[[Tensor, Step, int, int], Tensor]:
    def reference(x0: Tensor, step: Step, workers: int, steps: int) -> Tensor:
        xs, ws = x0.repeat(workers, 1), torch.ones(workers, 1, dtype=x0.dtype)
        sent_x, sent_w = torch.zeros_like(xs), torch.zeros_like(ws)  # by rank of the receiver
        for number in range(steps):
            if overlap == 0 or number == 0:
                zs = xs / ws
            xs = xs + torch.stack([step(rank, number, z) for rank, z in enumerate(zs)])
            if overlap == 1:
                xs, ws = xs + sent_x, ws + sent_w
                zs = xs / ws
            hop = 2 ** (number % max(1, math.ceil(math.log2(workers))))
            xs, ws = xs / 2, ws / 2
            sent_x, sent_w = torch.roll(xs, hop, 0), torch.roll(ws, hop, 0)
            if overlap == 0:
                xs, ws = xs + sent_x, ws + sent_w
        return (xs + overlap * sent_x).mean(0)

    return reference
