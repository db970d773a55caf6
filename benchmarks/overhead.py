"""What does Offbeat itself cost? Against a bare loop and against the memory's own speed, in one run.

1. attach without communication (strategy `none`), per step, against the same loop without it; blocks interleaved.
2. lasgd between two workers on loopback: the time of its own copies and merges, against the time that the memory
   needs to move the bytes they must touch (measured beside it, with plain copies). Compute is emulated: the workers
   sleep for their step, so that averages are there when they are polled.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.multiprocessing.spawn import spawn

import offbeat
from offbeat.sim.learners import initial_model
from offbeat.train.launch import LOOPBACK, loopback_interface
from offbeat.train.models import cnn3m
from offbeat.train.task import Task
from offbeat.train.tasks import load_task

WANTED_SHARE, WANTED_TIMES = 0.02, 2.0
MUST_TOUCH = 7  # times the parameters: the snapshot reads x, writes two copies; the merge reads three, writes x


def step_seconds(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, batch: int) -> float:
    indices = torch.arange(batch)
    start = time.perf_counter()
    for _ in range(steps):
        inputs, targets = task.train.batch(indices)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    return (time.perf_counter() - start) / steps


def attach_share(task: Task, *, batch: int, steps: int, repeats: int) -> list[float]:
    """By how much a step with attach is longer than one without, relative; one number per pair of blocks."""
    bare_model, model = initial_model(task, 0), initial_model(task, 0)
    bare_optimizer, optimizer = (task.optimizer(m.parameters()) for m in (bare_model, model))
    shares = []
    with offbeat.attach(model, optimizer, "none"):
        for repeat in range(repeats + 1):
            order = [(bare_model, bare_optimizer), (model, optimizer)]
            if repeat % 2:
                order.reverse()
            seconds = {id(m): step_seconds(task, m, o, steps, batch) for m, o in order}
            if repeat:  # the first warms up
                shares.append(seconds[id(model)] / seconds[id(bare_model)] - 1)
    return shares


def lasgd_worker(rank: int, port: int, steps: int, queue: "torch.multiprocessing.Queue[object]") -> None:
    import os

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = cnn3m((3, 32, 32), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    source, target = (torch.zeros(sum(p.numel() for p in model.parameters())) for _ in range(2))
    own, limit = [], []
    with offbeat.attach(model, optimizer, "lasgd") as run:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        for step in range(steps):
            time.sleep(0.06)  # emulated compute; the average travels meanwhile
            start = time.perf_counter()
            target.copy_(source)
            copied = time.perf_counter()
            merged = run.strategy.report()["averages"]
            since = time.perf_counter()
            run.comm.run(run.strategy.after_step(step + 1))
            until = time.perf_counter()
            if step > 5 and run.strategy.report()["averages"] > merged:
                own.append(until - since)
                limit.append((copied - start) / 2 * MUST_TOUCH)  # a copy touches the parameters twice
    if rank == 0:
        queue.put({"own": own, "limit": limit, "megabytes": source.nbytes / 1e6})


def lasgd_times(steps: int) -> dict[str, list[float]]:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = spawn(lasgd_worker, args=(free_port(), steps, queue), nprocs=2, join=False)
    found: dict[str, list[float]] = queue.get(timeout=120)
    while not processes.join():
        pass
    return found


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def spread(values: list[float], scale: float, unit: str) -> str:
    return (
        f"{statistics.median(values) * scale:.2f}{unit} "
        f"({min(values) * scale:.2f} to {max(values) * scale:.2f}{unit}, {len(values)} pairs)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, object] = {"torch": torch.__version__}

    print("attach without communication: what it adds to a step (1 thread, real compute)")
    for label, task, batch, steps in (
        ("digits, small cnn", load_task("digits", model="cnn", seed=0), 32, 40),
        ("digits, resnet8", load_task("digits", model="resnet8", seed=0), 32, 20),
        ("digits, mlp", load_task("digits", seed=0), 16, 400),
    ):
        shares = attach_share(task, batch=batch, steps=steps, repeats=arguments.repeats)
        record[label] = shares
        held = "held" if statistics.median(shares) <= WANTED_SHARE else "NOT held"
        print(f"  {label:<20} {spread(shares, 100, ' %')}; wanted at most {WANTED_SHARE:.0%}: {held}")

    found = lasgd_times(steps=40)
    times = [own / limit for own, limit in zip(found["own"], found["limit"], strict=True)]
    record["lasgd"] = found
    held = "held" if statistics.median(times) <= WANTED_TIMES else "NOT held"
    print(f"lasgd, {found['megabytes']:.0f} MB of parameters, 2 workers on loopback (emulated compute)")
    print(f"  own work per average {spread(found['own'], 1e3, ' ms')}")
    print(f"  memory's limit       {spread(found['limit'], 1e3, ' ms')}")
    print(f"  ratio                {spread(times, 1, ' x')}; wanted at most {WANTED_TIMES:.0f} x: {held}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
