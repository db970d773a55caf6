"""Interfaces inside the namespace that the calling thread is in, through pyroute2."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .support import needing

BRIDGE = "bridge"
INTERFACE = "eth0"  # of a node
PREFIX_BITS = 16

QUEUE_SECONDS = 0.02
QUEUE_NBYTES_AT_LEAST = 20 * 1514
BURST_NBYTES_AT_MOST = 128 * 1024
BURST_NBYTES_AT_LEAST = 2 * 1514


def address(node: int) -> str:
    return f"10.213.{(node + 1) // 256}.{(node + 1) % 256}"


def port_name(node: int) -> str:
    """The end at the bridge."""
    return f"node{node}"


@contextmanager
def kernel() -> Iterator[Any]:
    from pyroute2 import IPRoute

    with IPRoute() as connection:
        yield connection


def index_of(connection: Any, name: str) -> int:
    return int(connection.link_lookup(ifname=name)[0])


def make_bridge() -> None:
    with kernel() as connection, needing("a bridge"):
        connection.link("add", ifname=BRIDGE, kind="bridge", br_mcast_snooping=0)
        connection.link("set", index=index_of(connection, BRIDGE), state="up")


def make_veth(node: int, namespace: int) -> None:
    """One end at the bridge, whose namespace we are in; the other in the node's, of this descriptor."""
    with kernel() as connection, needing("veth pairs"):
        peer = {"ifname": INTERFACE, "net_ns_fd": namespace}
        connection.link("add", ifname=port_name(node), kind="veth", peer=peer)


def plug_in(node: int, bytes_per_second: float) -> None:
    """The end at the bridge: what the node receives is shaped here."""
    with kernel() as connection:
        index = index_of(connection, port_name(node))
        connection.link("set", index=index, master=index_of(connection, BRIDGE), state="up")
        shape(connection, index, bytes_per_second)


def furnish(node: int, bytes_per_second: float) -> None:
    """A node's own end: its address, its loopback; what it sends is shaped here. There is no default route."""
    with kernel() as connection:
        connection.link("set", index=index_of(connection, "lo"), state="up")
        index = index_of(connection, INTERFACE)
        connection.addr("add", index=index, address=address(node), prefixlen=PREFIX_BITS)
        connection.link("set", index=index, state="up")
        shape(connection, index, bytes_per_second)


def shape(connection: Any, index: int, bytes_per_second: float) -> None:
    """A token bucket. On a slow link the burst is what it carries in 20 ms, for else a second's worth would pass at
    once."""
    worth = bytes_per_second * QUEUE_SECONDS
    burst = int(min(BURST_NBYTES_AT_MOST, max(BURST_NBYTES_AT_LEAST, worth)))
    limit = int(min(2**32 - 1, burst + max(QUEUE_NBYTES_AT_LEAST, worth)))
    with needing("the tbf queueing discipline (sch_tbf)"):
        connection.tc("add", "tbf", index, rate=int(bytes_per_second), burst=burst, limit=limit)


def switch_port(node: int, *, up: bool) -> None:
    """Down is a pulled cable: the node keeps its address and its routes, and what it sends is lost."""
    with kernel() as connection:
        connection.link("set", index=index_of(connection, port_name(node)), state="up" if up else "down")


def bytes_out(name: str) -> int:
    """What left this interface through its shaper, which counts the headers of every frame. (The statistics of the
    interface count those of 64 kB segments once: they would tell 4 % too little.)"""
    with kernel() as connection:
        index = index_of(connection, name)
        for qdisc in connection.get_qdiscs(index=index):
            if qdisc["index"] == index and qdisc.get_attr("TCA_KIND") == "tbf":
                return int(qdisc.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])
    raise LookupError(f"{name} has no shaper")
