"""Lap: one run of one contestant on a course, from the start of its workers to what they saw."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..emulate.folders import folder_of_run
from ..train.tasks import load_task
from .config import Config
from .course import PYTHON, Course
from .failures import LapFailed, any_story, check_workers
from .mps import mps
from .odometer import new_odometer
from .snapshots import Point, curve
from .worker import Report

SAMPLE_SECONDS = 0.2  # between two looks at the wire


@dataclass(frozen=True)
class Underway:
    """A lap that is being run."""

    seconds: float  # since its workers were started
    made: float  # steps, mean over workers
    steps: int  # to make


Watch = Callable[[Underway], None]  # told now and then


@dataclass(frozen=True)
class Lap:
    config: Config
    reports: list[Report]  # by rank
    sent: list[tuple[float, list[int]]]  # moments, and what each node had sent by then
    curve: list[Point]


def run_lap(course: Course, config: Config, *, watch: Watch = lambda _: None) -> Lap:
    with folder_of_run("lap", in_ram=True) as name:  # snapshots must not wait for a disk
        folder = Path(name)
        (folder / "snapshots").mkdir()
        made = new_odometer(folder, len(config.node_of))
        config = replace(config, folder=name)
        config.write(folder / "config.json")
        with mps(config.device) as env:
            processes = _start(course, config, folder, env)
            sent = _wait(
                course, config, processes, lambda seconds: watch(Underway(seconds, float(made.mean()), config.steps))
            )
        reports = [_read_report(folder, rank) for rank in range(len(config.node_of))]
        points = []
        if config.snapshots:
            task = load_task(
                config.task, data=Path(config.data) if config.data else None, model=config.model, seed=config.seed
            )
            model = task.model().to(config.device)
            points = curve(folder / "snapshots", task, model, len(config.node_of))
        return Lap(config, reports, sent, points)


def _start(course: Course, config: Config, folder: Path, more: Mapping[str, str]) -> list[subprocess.Popen[Any]]:
    workers, port = len(config.node_of), _free_port()
    hosts = [course.address(node) for node in range(course.nodes)]
    processes = []
    for rank, node in enumerate(config.node_of):
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "LOCAL_RANK": str([hosts[other] for other in config.node_of[:rank]].count(hosts[node])),
            "GROUP_RANK": str(hosts.index(hosts[node])),  # nodes that share an address are one host
            "MASTER_ADDR": course.address(config.node_of[0]),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": course.interface,
            "OMP_NUM_THREADS": "1",
            **more,
        }
        with (folder / f"{rank}.log").open("wb") as log:
            argv = [PYTHON, "-m", "offbeat.compare.worker", str(folder / "config.json")]
            processes.append(course.run(node, argv, env=env, stdout=log, stderr=log))
    return processes


def _wait(
    course: Course, config: Config, processes: list[subprocess.Popen[Any]], tell: Callable[[float], None]
) -> list[tuple[float, list[int]]]:
    """Look at the wire until all are done. One that fails, or a lap that takes too long, ends them all."""
    began, sent, folder, limit = time.monotonic(), [], Path(config.folder), config.limit_seconds
    try:
        while any(process.poll() is None for process in processes):
            check_workers(processes, folder)
            if time.monotonic() > began + limit:
                raise LapFailed(f"it was not done after {limit:g} s (--limit-seconds): {any_story(folder)}")
            sent.append((time.monotonic(), [course.bytes_sent(node) for node in range(course.nodes)]))
            tell(time.monotonic() - began)
            time.sleep(SAMPLE_SECONDS)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    check_workers(processes, folder)
    return sent


def _read_report(folder: Path, rank: int) -> Report:
    return Report(**json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")))


def _free_port() -> int:
    """On loopback others may have it; in a namespace of its own nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
