"""How well is a data-parallel step predicted, whose all-reduces overlap with backward? On an emulated cluster.

    python benchmarks/overlap_accuracy.py --device profile.json [--links 100mbit,1gbit] [--json FILE]     (as root)

The profile is of this machine with one thread (OMP_NUM_THREADS=1 offbeat calibrate ...): every rank computes with one.
Ranks share caches and memory here, so calibrate on as many cores at once, each into a file of its own, and take one:

    for n in 1 2; do OMP_NUM_THREADS=1 offbeat calibrate --minutes 6 --no-bf16 --out $n.json & done; wait

On each link all-reduces of a few sizes are measured among the ranks, and fitted. Then each model's step with torch's
DistributedDataParallel is predicted: its operations by the profile, its buckets by the fit. Then it is measured: blocks
of steps with and without DistributedDataParallel, and of the calibration's references, in turns.

A shared machine is not always as fast. Beside the plain prediction there is the one for the speed that the references
showed, as in cost_accuracy.py, and one with the compute time that was measured: the error of the overlap alone.
Wanted: a mean error of at most 5 % of the plain prediction; exits with 1 if that is not met.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from collective_accuracy import PATIENCE, PORT
from collective_accuracy import measure as measure_collectives
from kept import Start, keep
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from offbeat.cost.device_profile import load_profile
from offbeat.cost.fit import Fitted, fit
from offbeat.cost.predict import predict
from offbeat.cost.real_step import RealStep, one_after_the_other
from offbeat.cost.step import StepTime, synchronous
from offbeat.cost.subject import Subject, find_subject
from offbeat.cost.zoo import references
from offbeat.emulate import Cluster
from offbeat.malloc import keep_freed_memory

RANKS = 2
MODELS: dict[str, tuple[tuple[int, ...], int]] = {  # input, batch per rank
    "lenet": ((3, 32, 32), 16), "cnn3m": ((3, 32, 32), 8), "resnet20": ((3, 32, 32), 16), "vgg11": ((3, 32, 32), 8),
    "gpt": ((64,), 8),
}  # fmt: skip
SIZES = [1 << power for power in range(18, 26)]
BLOCKS, BLOCK_SECONDS = 5, 1.2
WANTED = 0.05


def subject_of(name: str) -> tuple[Subject, int]:
    shape, batch = MODELS[name]
    return find_subject(name, platform="cpu", input_shape=shape), batch


def worker(rank: int, addresses: list[str], name: str) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    store = TCPStore(addresses[0], PORT, len(addresses), rank == 0, PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(addresses), timeout=PATIENCE)
    subject, batch = subject_of(name)
    device = torch.device("cpu")
    alone, together = RealStep(subject, batch, device), RealStep(subject, batch, device)
    together.model = DistributedDataParallel(together.model)
    beside = one_after_the_other(references(), torch.device("cpu"))
    seconds: dict[str, list[float]] = {"alone": [], "together": [], "reference": []}
    for block in range(-1, BLOCKS):  # the first one warms up, and makes DistributedDataParallel's buckets
        for what, step in (("alone", alone), ("together", together), ("reference", beside)):
            taken = median_of_a_block(step)
            if block >= 0:
                seconds[what].append(taken)
    dist.barrier()
    if rank == 0:
        print(json.dumps({what: statistics.median(taken) for what, taken in seconds.items()}), flush=True)
    os._exit(0)  # DistributedDataParallel and the group's threads were seen to wait for each other for ever


def median_of_a_block(step: Callable[[], None]) -> float:
    """As many steps on every rank; the slowest rank counts."""
    dist.barrier()
    began = time.perf_counter()
    step()
    count = torch.tensor([BLOCK_SECONDS / (time.perf_counter() - began)], dtype=torch.float64)
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    taken = []
    for _ in range(max(3, min(60, int(count)))):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    slowest = torch.tensor([statistics.median(taken)], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def measure(cluster: Cluster, name: str) -> dict[str, float]:
    processes = [
        cluster.run(
            rank,
            [sys.executable, __file__, "--worker", str(rank), *cluster.addresses, "--model", name],
            stdout=subprocess.PIPE,
            text=True,
            env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cluster.interface},
        )
        for rank in range(RANKS)
    ]
    printed = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a worker failed: see its message above")
    read: dict[str, float] = json.loads(printed[0])
    return read


def step_seconds(time: StepTime, wire: Fitted) -> float:
    return synchronous(time, lambda nbytes: wire.cost(nbytes, RANKS).seconds).seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="a profile of this machine with one thread")
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--json", type=Path, help="keep the steps, with machine, versions and verdict, here")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(int(given.worker[0]), given.worker[1:], given.model)
        return
    if given.device is None:
        parser.error("--device is needed")
    if os.geteuid() != 0:
        raise SystemExit("an emulated cluster needs root")
    start, profile, rows = Start(), load_profile(given.device), list[dict[str, Any]]()
    if profile.setup.get("threads") != 1 or profile.reference_seconds is None:
        raise SystemExit(f"{given.device} was not calibrated with one thread: OMP_NUM_THREADS=1 offbeat calibrate")
    for link in given.links.split(","):
        wire = fit(measure_collectives(link, RANKS, SIZES, ["all-reduce"])["all-reduce"])
        said = {}
        for name in MODELS:
            subject, batch = subject_of(name)
            said[name] = predict(subject.at(batch), profile)
            print(f"{name}, {link}: predicted {1e3 * step_seconds(said[name].bucketed, wire):.1f} ms")
        for name, prediction in said.items():
            alone, bucketed = prediction.time.seconds, prediction.bucketed
            with Cluster(RANKS, link) as cluster:
                found = measure(cluster, name)
            speed = found["reference"] / profile.reference_seconds
            guesses = {
                "plain": step_seconds(bucketed, wire),
                "at its speed": step_seconds(bucketed.scaled(speed), wire),
                "overlap alone": step_seconds(bucketed.scaled(found["alone"] / alone), wire),
            }
            errors = {what: guess / found["together"] - 1 for what, guess in guesses.items()}
            rows.append({"model": name, "link": link, "ranks": RANKS, "measured": found, "errors": errors})
            print(
                f"{name}, {link}: alone {1e3 * found['alone']:.1f} ms (predicted {1e3 * alone:.1f}), "
                f"together {1e3 * found['together']:.1f} ms: "
                + ", ".join(f"{what} {100 * error:+.1f} %" for what, error in errors.items()),
                flush=True,
            )
    means = {what: statistics.mean(abs(row["errors"][what]) for row in rows) for what in rows[0]["errors"]}
    print(f"{len(rows)} combinations, mean error: " + ", ".join(f"{what} {100 * m:.1f} %" for what, m in means.items()))
    if given.json is not None:
        keep(given.json, start=start, held=means["plain"] <= WANTED, runs=rows, means=means)
    raise SystemExit(0 if means["plain"] <= WANTED else 1)


if __name__ == "__main__":
    main()
