"""Pairwise exchange on one host: Offbeat's peers, gloo, and bare blocking sockets, taking turns.

Two processes move a buffer each way at the same time, again and again, one method after the other in every
round, so that whatever else the machine does falls on all of them alike. On one host Offbeat takes shared memory, from
the second round on; how it does over TCP, as between hosts, is shown beside it.

    python benchmarks/swap.py [--megabytes 44] [--repeats 15] [--json FILE]
"""

import argparse
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kept import Start, keep
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from offbeat.peers import Peers, listen
from offbeat.peers.wire import memory

HOST = "127.0.0.1"
TARGET_RATIO = 1.5
LIMIT_SECONDS = 300.0


def gloo(rank: int, x: Tensor, out: Tensor) -> None:
    for work in (dist.isend(x, 1 - rank), dist.irecv(out, 1 - rank)):
        work.wait()  # type: ignore[union-attr]


def gloo_batch(rank: int, x: Tensor, out: Tensor) -> None:
    sides = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, out, 1 - rank)]
    for work in dist.batch_isend_irecv(sides):
        work.wait()


def bare(sock: socket.socket, x: Tensor, out: Tensor) -> None:
    """A thread that sends all, while this one receives all: two system calls."""
    sender = threading.Thread(target=sock.sendall, args=(memory(x, "x"),))
    sender.start()
    into, got = memory(out, "out"), 0
    while got < into.nbytes:
        got += sock.recv_into(into[got:], 0, socket.MSG_WAITALL)
    sender.join()


def ours(peers: Peers, rank: int, x: Tensor, out: Tensor) -> None:
    work = peers.swap(x, 1 - rank, out)
    work.wait()
    work.result()


def payload(numbers: int, rank: int, repeat: int, turn: int) -> Tensor:
    """Others for every rank, round and turn, and rising from place to place, so that what is old or in the wrong place
    shows; the same again after 65,521 places or 8 rounds."""
    return torch.arange(numbers, dtype=torch.float32) % 65_521 + 65_536 * (rank + 2 * (turn + 8 * (repeat % 8)))


def connect(rank: int, store: TCPStore, name: str) -> socket.socket:
    if rank == 0:
        with socket.create_server((HOST, 0)) as listener:
            store.set(name, str(listener.getsockname()[1]))
            sock, _ = listener.accept()
    else:
        sock = socket.create_connection((HOST, int(store.get(name))))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def endpoint(rank: int, store: TCPStore, *, local: bool) -> Peers:
    listener = listen(HOST)
    store.set(f"peer {rank} {local}", str(listener.port))
    addresses = {peer: (HOST, int(store.get(f"peer {peer} {local}"))) for peer in (0, 1)}
    return Peers(rank, addresses, listener, key=b"only for this benchmark", local=local)


def run(rank: int, nbytes: int, repeats: int, port: Connection, results: Connection) -> None:
    """One of the two processes; rank 0 sends the seconds that the slower took, of every round, back."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if rank == 0:  # the system chooses the port, and rank 0 tells
        store = TCPStore(HOST, 0, 2, True, timedelta(seconds=60), wait_for_workers=False)
        port.send(store.port)
    else:
        store = TCPStore(HOST, port.recv(), 2, False, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    endpoints = [endpoint(rank, store, local=local) for local in (True, False)]
    x, out = torch.empty(nbytes // 4), torch.empty(nbytes // 4)
    with endpoints[0] as near, endpoints[1] as far, connect(rank, store, "bare") as sock:
        methods: dict[str, Callable[[], None]] = {
            "offbeat": lambda: ours(near, rank, x, out),
            "offbeat, made to use TCP": lambda: ours(far, rank, x, out),
            "gloo isend/irecv": lambda: gloo(rank, x, out),
            "gloo batch_isend_irecv": lambda: gloo_batch(rank, x, out),
            "bare blocking sockets": lambda: bare(sock, x, out),
        }
        seconds: dict[str, list[float]] = {name: [] for name in methods}
        for repeat in range(repeats + 1):
            for turn, (name, method) in enumerate(methods.items()):
                x.copy_(payload(len(x), rank, repeat, turn))
                dist.barrier()
                began = time.perf_counter()
                method()
                took = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
                assert torch.equal(out, payload(len(x), 1 - rank, repeat, turn)), f"{name} moved the wrong bytes"
                dist.all_reduce(took, dist.ReduceOp.MAX)
                if repeat > 0:  # the first round connects and warms up
                    seconds[name].append(took.item())
        dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        results.send(seconds)


def measure(nbytes: int, repeats: int) -> dict[str, list[float]]:
    context = get_context("spawn")
    port_here, port_there = context.Pipe()
    receive, send = context.Pipe(duplex=False)
    ports = (port_here, port_there)
    processes = [
        context.Process(target=run, args=(rank, nbytes, repeats, ports[rank], send), daemon=True) for rank in (0, 1)
    ]
    try:
        for process in processes:
            process.start()
        for end in (port_here, port_there, send):
            end.close()  # only the processes hold them now, so their death ends the wait below
        if not receive.poll(LIMIT_SECONDS):
            raise SystemExit(f"no result in {LIMIT_SECONDS:g} s")
        return dict(receive.recv())
    except EOFError:
        raise SystemExit("a process died before it had a result: see its message above") from None
    finally:
        for process in processes:
            if process.pid is not None:
                process.join(10)
                process.kill()
                process.join()


def summary(seconds: dict[str, list[float]], nbytes: int) -> dict[str, Any]:
    rates = {name: sorted(nbytes / took / 1e9 for took in times) for name, times in seconds.items()}
    rows = {name: {"median": statistics.median(rate), "min": rate[0], "max": rate[-1]} for name, rate in rates.items()}
    best_gloo = max(row["median"] for name, row in rows.items() if name.startswith("gloo"))
    return {"gigabytes_per_second_each_way": rows, "ratio_to_gloo": rows["offbeat"]["median"] / best_gloo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=44.0, help="each way (default: 44)")
    parser.add_argument("--repeats", type=int, default=15, help="rounds that count, after one that does not")
    parser.add_argument("--json", type=Path, help="keep the rounds, with machine, versions and verdict, here")
    options = parser.parse_args()
    if options.megabytes <= 0 or options.repeats < 1:
        parser.error(f"--megabytes {options.megabytes:g} and --repeats {options.repeats} must be positive")
    start = Start()
    nbytes = max(4, int(options.megabytes * 1e6) // 4 * 4)
    seconds = measure(nbytes, options.repeats)
    figures = summary(seconds, nbytes)
    print(f"{nbytes / 1e6:g} MB each way at the same time, {options.repeats} rounds, GB/s per direction")
    for name, row in figures["gigabytes_per_second_each_way"].items():
        print(f"  {name:<26}{row['median']:6.2f}   ({row['min']:.2f} to {row['max']:.2f})")
    held = figures["ratio_to_gloo"] >= TARGET_RATIO
    verdict = "held" if held else "NOT held"
    print(f"offbeat is {figures['ratio_to_gloo']:.2f} x the better gloo: at least {TARGET_RATIO} x {verdict}")
    if options.json is not None:
        runs = [{"method": name, "seconds": times} for name, times in seconds.items()]
        keep(options.json, start=start, held=held, runs=runs, nbytes=nbytes, target=TARGET_RATIO, **figures)


if __name__ == "__main__":
    main()
