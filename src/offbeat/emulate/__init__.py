"""Emulate: a cluster on one machine, its nodes joined by links with the speed of a real network.

Every node is a network namespace; a veth pair, shaped in both directions, leads to a bridge in a namespace of its own.
Nothing is named and nothing is mounted: the kernel takes all of it back when the processes that hold it are gone.

    cluster.py    `Cluster`: what a user sees
    network.py    its namespaces, and the cables between them
    check.py      what a user may ask for, one sentence otherwise
    support.py    what the machine must have, one sentence otherwise
    namespace.py  network namespaces, and the one thread that goes into them
    links.py      bridge, veth, addresses, shaping, counters
    tap.py        links with a delay: a TAP at each end
    forward.py    the process between the two TAPs
    enter.py      the program that becomes a worker inside a namespace
    children.py   processes of a cluster: how they start and end
    signals.py    SIGTERM ends a run as Ctrl-C does
    runs.py       the name of a run, and whether its owner lives
    folders.py    temporary folders with the name of their run
    strays.py     processes and folders that a killed run left behind
"""

from .cluster import Cluster
from .support import missing

__all__ = ["Cluster", "missing"]
