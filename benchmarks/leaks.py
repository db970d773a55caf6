"""Does an emulated network leave anything behind? Up, kill -9, up again, so many times.

Every cycle is a process that brings up a cluster whose workers listen on a fixed port and have children of their own,
and that keeps a folder in memory, as a lap does: nothing but the next run can end and remove them. After the next run
no process, namespace, interface, port or folder may be left.

    python benchmarks/leaks.py [--cycles 50] [--json FILE]     (as root)
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from kept import Start, keep

from offbeat.emulate import Cluster
from offbeat.emulate.folders import folder_of_run, folders
from offbeat.emulate.runs import owner_lives

PORT = 5000
READY_SECONDS = 30.0
GONE_SECONDS = 5.0
WORKER = f"""
import os, socket, subprocess, sys, time
listener = socket.create_server(("", {PORT}))
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.stat("/proc/self/ns/net").st_ino, os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Held:
    """What a run holds: namespaces by their number, processes by their ids, folders by their names."""

    namespaces: frozenset[int]
    processes: frozenset[int]
    folders: frozenset[str] = frozenset()

    def left(self) -> list[str]:
        """What of it is still there."""
        pids = [f"process {pid}" for pid in sorted(self.processes) if is_running(pid)]
        pids += [f"folder {name}" for name in sorted(self.folders) if Path(name).exists()]
        return pids + [f"namespace {number}" for number in sorted(self.namespaces & set(namespaces_in_use()))]

    def left_at_last(self) -> list[str]:
        """What does not go by itself in a few seconds."""
        until = time.monotonic() + GONE_SECONDS
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.02)
        return left


def is_running(pid: int) -> bool:
    try:
        _, _, state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return False
    return state[0] not in "ZX"


def namespaces_in_use() -> Iterator[int]:
    """Network namespaces that some thread is in or some process holds open."""
    for pattern in ("[0-9]*/task/*/ns/net", "[0-9]*/fd/*"):
        for path in Path("/proc").glob(pattern):
            with suppress(OSError):
                kind, _, number = os.readlink(path).partition(":[")
                if kind == "net":
                    yield int(number.rstrip("]"))


def hold(nodes: int = 2, delay: float = 0.0) -> tuple[Cluster, Held]:
    """A cluster that is up, with a worker in every node."""
    cluster = Cluster(nodes, delay=delay)
    cluster.__enter__()
    namespaces, processes = set(), set()
    for node in range(nodes):
        worker = cluster.run(node, [sys.executable, "-I", "-S", "-c", WORKER], stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        with worker.stdout:
            namespace, *pids = map(int, worker.stdout.readline().split())
        namespaces.add(namespace)
        processes.update(pids)
    return cluster, Held(frozenset(namespaces), frozenset(processes))


def victim(report: Connection, delay: float, ending: str) -> None:
    """Tells what it holds, then ends as asked, or waits to be ended."""
    cluster, held = hold(delay=delay)
    folder = folder_of_run("lap", in_ram=True)
    (Path(folder.name) / "snapshots").mkdir()
    try:
        report.send(replace(held, folders=frozenset([folder.name])))
        if ending == "wait":
            while True:
                time.sleep(60)
        if ending == "exception":
            raise RuntimeError("on purpose")
    except BaseException:
        folder.cleanup()
        cluster.__exit__(*sys.exc_info())
        raise
    folder.cleanup()
    cluster.__exit__(None, None, None)


def start(delay: float = 0.0, ending: str = "wait") -> tuple[BaseProcess, Held]:
    """A run in a process of its own, and what it holds."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["offbeat.emulate", "pyroute2"])  # torch is loaded once
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=victim, args=(there, delay, ending), daemon=True)  # ends with us at the latest
    process.start()
    there.close()
    with here:
        if not here.poll(READY_SECONDS):
            raise SystemExit(f"a cluster did not come up in {READY_SECONDS:g} s")
        held: Held = here.recv()
    return process, held


def kill_and_start_again(delay: float = 0.0) -> list[str]:
    """One cycle; what was left after it."""
    interfaces = socket.if_nameindex()
    process, held = start(delay)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with Cluster(1):
        pass
    left = held.left_at_last()  # now, for the new namespaces may have had the numbers of those that went
    if socket.if_nameindex() != interfaces:
        left.append(f"interfaces {socket.if_nameindex()}, which were {interfaces}")
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=50, help="how often (default: 50)")
    parser.add_argument("--json", type=Path, help="keep the cycles, with machine, versions and verdict, here")
    options = parser.parse_args()
    if options.cycles < 1:
        parser.error(f"--cycles {options.cycles} must be at least 1")
    begun, before = Start(), set(namespaces_in_use())
    runs = []
    for cycle in range(options.cycles):
        since = time.monotonic()
        delay = 0.001 if cycle % 2 else 0.0  # TAPs and their forwarders every other time
        left = kill_and_start_again(delay)
        runs.append({"cycle": cycle, "delay": delay, "left": left, "seconds": time.monotonic() - since})
        if left:
            print(f"cycle {cycle}: left behind {', '.join(left)}")
    failures = sum(1 for run in runs if run["left"])
    more = len(set(namespaces_in_use()) - before)
    ownerless = sum(1 for _, name in folders() if not owner_lives(name))
    print(
        f"{options.cycles} cycles of up, kill -9, up again, {(time.time() - begun.seconds) / options.cycles:.2f} s each"
    )
    print(f"left something behind: {failures}; network namespaces more than before: {more}; "
          f"folders without an owner: {ownerless}")  # fmt: skip
    held = not failures and not more and not ownerless
    print(f"nothing is left behind: {'held' if held else 'NOT held'}")
    if options.json is not None:
        keep(options.json, start=begun, held=held, runs=runs, namespaces_more=more, folders_without_owner=ownerless)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
