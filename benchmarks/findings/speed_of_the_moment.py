"""A shared CPU is not always as fast. Which correction by the calibration's references makes steps most alike?

    OMP_NUM_THREADS=2 python benchmarks/findings/speed_of_the_moment.py [--minutes 5]

Steps of a few models and of the references, in turns. Printed are the tenths of each model's steps, from the shortest
to the longest (two threads may have two speeds), and the spread (standard deviation over median): as the clock said;
divided by the references' speed, as calibrate and cost_accuracy.py do; and less what the references took longer than
usual, by the number of operations, as if every operation cost a little more.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from offbeat.cost.real_step import RealStep, one_after_the_other
from offbeat.cost.subject import Subject
from offbeat.cost.zoo import held_out, references
from offbeat.malloc import keep_freed_memory

CASES = (("deep mlp", 8), ("mobile", 8), ("resnet8", 8), ("vgg16", 8), ("cnn3m", 8), ("gpt of 6", 8), ("mixer", 16))
TURNS = 4


def operations(subject: Subject, batch: int) -> int:
    return sum(op.nbytes > 0 for op in subject.at(batch).ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    given = parser.parse_args()
    keep_freed_memory()
    subjects = {subject.name: subject for subject in held_out("cpu")}
    steps = {case: RealStep(subjects[case[0]], case[1], torch.device("cpu")) for case in CASES}
    beside = one_after_the_other(references(), torch.device("cpu"))
    of_references = sum(operations(*case) for case in references())
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in CASES}
    taken_beside: list[float] = []
    end = time.monotonic() + 60 * given.minutes
    while time.monotonic() < end or len(taken_beside) < 3:
        taken_beside.append(median_seconds(beside))
        for case, step in steps.items():
            taken[case].append(median_seconds(step))
    usual = statistics.median(taken_beside)
    print(f"{len(taken_beside)} rounds; the references vary by {spread(taken_beside):.1%}")
    for (name, batch), seconds in taken.items():
        share = operations(subjects[name], batch) / of_references
        pairs = list(zip(seconds, taken_beside, strict=True))
        divided = [each * usual / reference for each, reference in pairs]
        less = [each - share * (reference - usual) for each, reference in pairs]
        print(
            f"{name:>9} batch {batch:>2}, {1e3 * statistics.median(seconds):6.1f} ms: spread {spread(seconds):.1%}, "
            f"divided {spread(divided):.1%}, less by operations {spread(less):.1%}; tenths {tenths(seconds)}"
        )


def median_seconds(step: Callable[[], object]) -> float:
    step()
    found = []
    for _ in range(TURNS):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def tenths(values: list[float]) -> str:
    return " ".join(f"{1e3 * each:.3g}" for each in statistics.quantiles(values, n=10))


def spread(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.median(values)


if __name__ == "__main__":
    main()
