"""Does a process age? The same steps in a new process, and in one that has trained many models, in turns.

    OMP_NUM_THREADS=1 python benchmarks/findings/ageing.py [--models 100] [--looks 120]

Printed is how much longer the aged process takes. This is why a calibration makes its visits afresh, a few in each
process (`offbeat.cost.afresh`).
"""

import argparse
import itertools
import statistics
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

from offbeat.cost.gauge import Gauge
from offbeat.cost.random_layers import random_layers
from offbeat.cost.random_models import random_models
from offbeat.cost.real_step import RealStep, one_after_the_other
from offbeat.cost.zoo import references
from offbeat.malloc import keep_freed_memory

CPU = torch.device("cpu")
MOST_BYTES = 4 << 30  # of a model in training
STEPS = 3  # of each model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--looks", type=int, default=120)
    given = parser.parse_args()
    context = get_context("spawn")
    ends = []
    for models in (0, given.models):
        end, theirs = context.Pipe()
        context.Process(target=look_when_asked, args=(theirs, models), daemon=True).start()
        theirs.close()  # so that the end of that process is seen
        ends.append(end)
        end.recv()
    looks = [in_turn(ends, number) for number in range(given.looks)]
    ratios = sorted(aged / new for new, aged in looks)
    tenth, nine_tenths = ratios[len(ratios) // 10], ratios[9 * len(ratios) // 10]
    print(
        f"the same steps in a process that has trained {given.models} models take {statistics.median(ratios):.3f} "
        f"times as long as in a new one (eight in ten between {tenth:.3f} and {nine_tenths:.3f}; the new one "
        f"{1e3 * statistics.median(new for new, _ in looks):.1f} ms)"
    )


def in_turn(ends: list[Connection], number: int) -> list[float]:
    """Neither is always the first."""
    order = [0, 1] if number % 2 else [1, 0]
    seconds = {place: asked(ends[place]) for place in order}
    return [seconds[0], seconds[1]]


def asked(end: Connection) -> float:
    end.send(None)
    seconds: float = end.recv()
    return seconds


def look_when_asked(asker: Connection, models: int) -> None:
    keep_freed_memory()
    gauge = Gauge(one_after_the_other(references(), CPU))
    sources = [
        drawn(seed=5, platform="cpu", autocast=precision, most_bytes=MOST_BYTES)
        for drawn in (random_models, random_layers)
        for precision in (None, torch.bfloat16)
    ]
    for subject, batch in itertools.islice(itertools.chain.from_iterable(zip(*sources, strict=True)), models):
        step = RealStep(subject, batch, CPU)
        for _ in range(STEPS):
            step()
        gauge()
    asker.send(None)
    while True:
        asker.recv()
        asker.send(gauge.look())


if __name__ == "__main__":
    main()
