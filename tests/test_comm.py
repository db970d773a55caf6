"""One contract, both Comms; and the driver's lock, without which the contract would be broken."""

import os
import threading
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from contract import CASES, RANKS, Case
from workers import run_workers

from offbeat.comm import Comm, Steps
from offbeat.connect import connect
from offbeat.driver import Driver, Sleep
from offbeat.errors import OffbeatError
from offbeat.layout import Layout
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE
from offbeat.sim.comm import SimComm, World
from offbeat.sim.network import Link, Network
from offbeat.sim.work import SimProcess
from offbeat.strategy import Strategy
from offbeat.torch_comm import TorchComm
from offbeat.trace import Trace


@dataclass(kw_only=True)
class MeetsPeers(Strategy):
    meets_peers = True


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
LAYOUT = Layout((0, 0, 1, 1))


@every_case
def test_virtual(case: Case) -> None:
    clock = Clock()
    network = Network(
        LAYOUT, clock, link=Link(bytes_per_second=1e6, seconds=1e-4), local=Link(bytes_per_second=1e9, seconds=0)
    )
    world = World.of(LAYOUT, clock, network, groups=MeetsPeers().groups(LAYOUT), meets_peers=True)
    processes = [SimProcess(f"rank {rank}", case(SimComm(rank, world, 0)), clock) for rank in RANKS]
    clock.run()
    assert all(process.done for process in processes), "a rank waits for ever"


def real_cases() -> dict[str, str]:
    """In a real worker: what each case raised, if anything."""
    torch.distributed.init_process_group("gloo")
    connection = connect(MeetsPeers(), device=torch.device("cpu"), layout=LAYOUT)
    stories = {}
    for case in CASES:
        try:
            connection.comm.run(case(connection.comm))
            stories[case.__name__] = ""
        except (AssertionError, pytest.fail.Exception):
            stories[case.__name__] = f"rank {os.environ['RANK']}: {traceback.format_exc()}"
    connection.close(orderly=True)
    torch.distributed.destroy_process_group()
    return stories


@pytest.fixture(scope="module")
def stories() -> list[dict[str, str]]:
    return run_workers(real_cases, len(RANKS))


@every_case
def test_real(case: Case, stories: list[dict[str, str]]) -> None:
    failures = [story[case.__name__] for story in stories if story[case.__name__]]
    assert not failures, "\n".join(failures)


def test_virtual_time_passes_only_at_a_yield() -> None:
    clock = Clock()
    world = World.of(LAYOUT, clock, Network(LAYOUT, clock, link=ETHERNET, local=INSIDE_A_NODE))
    comm = SimComm(0, world, 0)
    seen = []

    def steps() -> Steps:
        before = comm.now()
        time.sleep(0.01)
        work = comm.average(torch.zeros(1000), (0, 1))
        seen.append(comm.now() - before)
        yield work
        seen.append(comm.now() - before)

    def other() -> Steps:
        yield SimComm(1, world, 0).average(torch.zeros(1000), (0, 1))

    SimProcess("rank 0", steps(), clock)
    SimProcess("rank 1", other(), clock)
    clock.run()
    assert seen[0] == 0
    assert seen[1] > 0


def virtual_world(*, meets_peers: bool = True) -> World:
    clock = Clock()
    return World.of(LAYOUT, clock, Network(LAYOUT, clock, link=ETHERNET, local=INSIDE_A_NODE), meets_peers=meets_peers)


@pytest.mark.parametrize(
    "comm", [SimComm(0, virtual_world(meets_peers=False), 0), TorchComm(0, LAYOUT)], ids=["virtual", "real"]
)
def test_who_meets_peers_must_say_so(comm: Comm) -> None:
    for call in (lambda: comm.pair((1,)), lambda: comm.swap(torch.zeros(1), 1)):
        with pytest.raises(OffbeatError, match="the strategy must set `meets_peers`"):
            call()


@pytest.mark.parametrize("other", [torch.zeros(5), torch.zeros(4, dtype=torch.float64)], ids=["size", "dtype"])
def test_virtual_averages_must_be_alike(other: torch.Tensor) -> None:
    """In real time gloo cannot tell."""
    world = virtual_world()
    SimComm(1, world, 0).average(other, (0, 1))
    with pytest.raises(OffbeatError, match="rank 0 calls average with 16 bytes of float32 and rank 1 with"):
        SimComm(0, world, 0).average(torch.zeros(4), (0, 1))


def interleavings(driver: Driver, seconds: float) -> int:
    """How often a background loop and the step hooks met inside code between two yields."""
    inside: list[str] = []
    met = 0
    stop = threading.Event()

    def body(name: str) -> Steps:
        nonlocal met
        inside.append(name)
        total = 0
        for number in range(2000):
            total += number
        time.sleep(0)  # gives the interpreter away, as any blocking call would
        met += len(inside) > 1
        inside.remove(name)
        yield Sleep(0.0, time.monotonic)

    def background() -> Steps:
        while not stop.is_set():
            yield from body("background")

    process = driver.spawn(background())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        driver.run(body("hook"))
    stop.set()
    process.wait()
    return met


def test_hooks_and_background_never_interleave() -> None:
    assert interleavings(Driver(time.monotonic, Trace(0)), seconds=2.0) == 0


def test_the_hammer_finds_a_driver_without_its_lock() -> None:
    class Unlocked(nullcontext[None]):
        def take(self) -> bool:
            return True

        def acquire(self) -> None: ...
        def release(self) -> None: ...
        def give_way(self) -> None: ...

    driver = Driver(time.monotonic, Trace(0))
    driver._turns = Unlocked()  # type: ignore[assignment]
    assert interleavings(driver, seconds=2.0) > 0


def test_what_a_background_process_raises_is_raised_by_the_next_hook() -> None:
    driver = Driver(time.monotonic, Trace(0))

    def breaks() -> Steps:
        yield Sleep(0.0, time.monotonic)
        raise RuntimeError("the wire is cut")

    process = driver.spawn(breaks())
    process.wait()

    def hook() -> Any:
        yield from ()

    with pytest.raises(RuntimeError, match="the wire is cut"):
        driver.run(hook())


def test_a_wait_is_traced() -> None:
    trace = Trace(0)
    driver = Driver(time.monotonic, trace)

    def waits() -> Steps:
        yield Sleep(0.03, time.monotonic)

    driver.run(waits())
    assert [event.name for event in trace.events if event.kind == "wait"] == ["sleep"]
    assert trace.seconds["wait"] >= 0.03
