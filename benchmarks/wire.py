"""Does a swap between two hosts fill the wire? Offbeat's peers and a bare TCP connection on a shaped link, in turns.

Two nodes of an emulated cluster move a buffer each way at the same time, one method after the other in every round.
Of a link's nominal speed 4.4 % go to the headers of Ethernet, IP and TCP: the rest is what it can carry.

    python benchmarks/wire.py [--links 100mbit,1gbit] [--seconds 1] [--repeats 7] [--json FILE]     (as root)
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from kept import Start, keep
from swap import bare, ours, payload

from offbeat.emulate import Cluster
from offbeat.errors import BadInput
from offbeat.peers import Peers, listen

PORT = 5000
KEY = b"only for this benchmark"
TARGET = 0.95
PAYLOAD = 1448 / 1514  # of a full frame: 14 bytes Ethernet, 20 IP, 32 TCP with time stamps
METHODS = ("offbeat", "bare TCP")


def worker(rank: int, addresses: list[str], nbytes: int, repeats: int) -> None:
    """One of the two processes; prints the seconds of every round that counts."""
    torch.set_num_threads(1)
    sock = connect(rank, addresses[0])
    listener = listen(addresses[rank])
    port = int(exchange(sock, f"{listener.port:5}"))
    x, out = torch.empty(nbytes // 4), torch.empty(nbytes // 4)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    with sock, Peers(rank, {1 - rank: (addresses[1 - rank], port)}, listener, key=KEY) as peers:
        for repeat in range(repeats + 1):
            for turn, name in enumerate(METHODS):
                x.copy_(payload(len(x), rank, repeat, turn))
                exchange(sock, "go")
                began = time.perf_counter()
                if name == "offbeat":
                    ours(peers, rank, x, out)
                else:
                    bare(sock, x, out)
                took = time.perf_counter() - began
                assert torch.equal(out, payload(len(x), 1 - rank, repeat, turn)), f"{name} moved the wrong bytes"
                slower = max(took, float(exchange(sock, f"{took:020.9f}")))
                if repeat > 0:  # the first round connects and warms up
                    seconds[name].append(slower)
    print(json.dumps(seconds))


def connect(rank: int, host: str) -> socket.socket:
    until = time.monotonic() + 60
    if rank == 0:
        with socket.create_server((host, PORT)) as listener:
            sock, _ = listener.accept()
    else:
        while True:
            try:
                sock = socket.create_connection((host, PORT), timeout=60)
                break
            except ConnectionRefusedError:  # it is not up yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def exchange(sock: socket.socket, text: str) -> str:
    """The other's text for ours, of equal length: both are here now."""
    sock.sendall(text.encode())
    return sock.recv(len(text), socket.MSG_WAITALL).decode()


def measure(link: str, seconds: float, repeats: int) -> dict[str, Any]:
    with Cluster(2, link) as cluster:
        speed = cluster.bytes_per_second[0]
        nbytes = int(speed * seconds) // 4 * 4
        processes = [
            cluster.run(
                rank,
                [sys.executable, __file__, "--worker", str(rank), *cluster.addresses, str(nbytes), str(repeats)],
                stdout=subprocess.PIPE,
                text=True,
                env={"OMP_NUM_THREADS": "1"},
            )
            for rank in (0, 1)
        ]
        printed = [process.communicate(timeout=120 + 10 * seconds * repeats)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("a worker failed: see its message above")
        on_the_wire = [cluster.bytes_sent(node) for node in (0, 1)]
    rates = {name: sorted(nbytes / took for took in times) for name, times in json.loads(printed[0]).items()}
    median = {name: statistics.median(each) for name, each in rates.items()}
    offbeat, bare_tcp = (median[name] for name in METHODS)
    return {
        "link": link,
        "nbytes": nbytes,
        "bytes_per_second": speed,
        "rates": rates,
        "of_nominal": {name: rate / speed for name, rate in median.items()},
        "of_what_it_can_carry": offbeat / (speed * PAYLOAD),
        "of_bare_tcp": offbeat / bare_tcp,
        "wire_bytes_per_payload_byte": max(on_the_wire) / (nbytes * len(METHODS) * (repeats + 1)),
        "held": offbeat >= TARGET * speed * PAYLOAD and offbeat >= TARGET * bare_tcp,
    }


def tell(figures: dict[str, Any]) -> None:
    print(f"{figures['link']}: {figures['nbytes'] / 1e6:g} MB each way at the same time, mbit/s per direction")
    for name, rates in figures["rates"].items():
        low, middle, high = (8e-6 * rate for rate in (rates[0], statistics.median(rates), rates[-1]))
        share = figures["of_nominal"][name]
        print(f"  {name:<10}{middle:8.1f}   ({low:.1f} to {high:.1f})   {share:.3f} of nominal")
    print(f"  on the wire, headers and repeats included: {figures['wire_bytes_per_payload_byte']:.3f} x the payload")
    print(
        f"  offbeat moves {figures['of_what_it_can_carry']:.3f} of what the link can carry and "
        f"{figures['of_bare_tcp']:.3f} of bare TCP: at least {TARGET} {'held' if figures['held'] else 'NOT held'}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        rank, *addresses, nbytes, repeats = sys.argv[2:]
        worker(int(rank), addresses, int(nbytes), int(repeats))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="100mbit,1gbit", help="speeds, separated by commas")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a buffer should take at that speed")
    parser.add_argument("--repeats", type=int, default=7, help="rounds that count, after one that does not")
    parser.add_argument("--json", type=Path, help="keep the figures, with machine, versions and verdict, here")
    options = parser.parse_args()
    if not 0 < options.seconds <= 60 or options.repeats < 1:
        parser.error(
            f"--seconds {options.seconds:g} and --repeats {options.repeats} must be positive, at most a minute"
        )
    print(f"{os.cpu_count()} cores, {os.getloadavg()[0]:.1f} processes wanted one in the last minute")
    start, results = Start(), []
    for link in options.links.split(","):
        try:
            results.append(measure(link, options.seconds, options.repeats))
        except BadInput as error:
            parser.error(str(error))
        tell(results[-1])
    held = all(each["held"] for each in results)
    if options.json is not None:
        keep(options.json, start=start, held=held, runs=results, target=TARGET)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
