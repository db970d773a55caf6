"""How fast is virtual time? Simulated worker-steps per second against a bare loop of the same model, in one run.

Prints, for the digits MLP and the small CNN, the ratio of 64 simulated workers to a bare single-process loop (repeats
interleaved, median and spread), with workers of equal speed and with 10 % jitter, then the cost of timing-only gossip
as the number of workers grows.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from offbeat.layout import Layout
from offbeat.sim.cluster import Cluster
from offbeat.sim.learners import NoModel, initial_model
from offbeat.sim.run import run
from offbeat.sim.together import make_learners
from offbeat.strategies import make_strategy
from offbeat.train.models import cnn
from offbeat.train.shards import Shard
from offbeat.train.task import Samples, Task, cross_entropy
from offbeat.train.tasks import load_task, sgd

WORKERS = 64
STRATEGIES = ("local_sgd", "lasgd:every=8", "lasgd", "gossip", "ddp")
WANTED = {"digits mlp": 3.0, "small cnn": 0.8}  # times the bare loop
TIMING_ONLY_SECONDS = 60.0  # 4,096 workers x 100 steps of gossip


def cnn_task() -> Task:
    """The small CNN on 28 x 28 images, as for Fashion-MNIST; what is on them does not change the speed."""
    images = torch.randint(0, 256, (8192, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    samples = Samples(inputs=images, targets=torch.arange(8192) % 10, mean=(0.5,), std=(0.25,))
    return Task(
        name="images",
        model=lambda: cnn((1, 28, 28), 10),
        optimizer=lambda parameters: sgd(parameters, learning_rate=0.01),
        loss=cross_entropy,
        train=samples,
        test=samples,
    )


def bare(task: Task, batch: int, steps: int) -> Callable[[], float]:
    """Steps per second of the loop that anybody would write."""
    model = initial_model(task, 0)
    optimizer = task.optimizer(model.parameters())
    shard = Shard(samples=len(task.train), rank=0, workers=1, batch=batch, seed=0)

    def measure() -> float:
        start = time.perf_counter()
        for step in range(steps):
            inputs, targets = task.train.batch(shard.indices(step))
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()
            optimizer.step()
        return steps / (time.perf_counter() - start)

    return measure


def simulated(task: Task, batch: int, steps: int, strategy: str, jitter: float) -> Callable[[], float]:
    """Worker-steps per second of virtual time, the making of the replicas not counted."""
    shards = [
        Shard(samples=len(task.train), rank=rank, workers=WORKERS, batch=batch, seed=0) for rank in range(WORKERS)
    ]
    cluster = Cluster(layout=Layout.even(WORKERS, WORKERS // 2), jitter=jitter)

    def measure() -> float:
        learners = make_learners(task, shards, 0)
        start = time.perf_counter()
        run(make_strategy(strategy), cluster, learners, [steps] * WORKERS, seed=0)
        return WORKERS * steps / (time.perf_counter() - start)

    return measure


def timing_only(workers: int, steps: int) -> float:
    """Seconds for so many workers, a node each, of gossip that trains nothing."""
    cluster = Cluster(layout=Layout.even(workers, workers), jitter=0.1)
    start = time.perf_counter()
    run(make_strategy("gossip"), cluster, NoModel(workers), [steps] * workers, seed=0, nbytes=12_000_000)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of torch, for the bare loop too (default: torch's own choice)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} {'thread' if threads == 1 else 'threads'}")
    record: dict[str, Any] = {"threads": threads, "torch": torch.__version__}

    for name, task, batch, steps in (
        ("digits mlp", load_task("digits", seed=0), 16, 60),
        ("small cnn", cnn_task(), 32, 2),
    ):
        measures = {"bare loop": bare(task, batch, steps * 8)}
        for jitter in (0.0, 0.1):
            for strategy in STRATEGIES:
                measures[f"{strategy}, jitter {jitter:.0%}"] = simulated(task, batch, steps, strategy, jitter)
        speeds: dict[str, list[float]] = {label: [] for label in measures}
        for repeat in range(arguments.repeats + 1):
            for label, measure in measures.items():
                speed = measure()
                if repeat:  # the first round warms up
                    speeds[label].append(speed)
        print(f"\n{name}, batch {batch}: worker-steps per second of {WORKERS} simulated workers")
        record[name] = {}
        for label, values in speeds.items():
            ratios = [value / base for value, base in zip(values, speeds["bare loop"], strict=True)]
            middle = statistics.median(ratios)
            record[name][label] = {"per_second": statistics.median(values), "ratios": ratios}
            print(
                f"  {label:<22} {statistics.median(values):8.0f}   {middle:5.2f} x the bare loop "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
                + ("" if label == "bare loop" or middle >= WANTED[name] else f"   below {WANTED[name]}")
            )
        print(f"  wanted: at least {WANTED[name]} x the bare loop")

    print("\ntiming only, gossip at rate 1, 100 steps, a node per worker")
    for workers in (256, 1024, 4096):
        seconds = timing_only(workers, 100)
        record[f"timing only, {workers} workers"] = seconds
        print(f"  {workers:5d} workers   {seconds:6.2f} s   {seconds / workers / 100 * 1e6:6.1f} us per worker-step")
    verdict = "held" if seconds < TIMING_ONLY_SECONDS else "NOT held"
    print(f"  wanted: 4,096 workers in under {TIMING_ONLY_SECONDS:.0f} s: {verdict}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
