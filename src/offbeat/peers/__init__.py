"""Peers: pairwise exchange, the transport behind `Comm.pair` and `Comm.swap` in the real world.

TCP between hosts; Unix sockets on one host, and shared memory for what is large. The code above is the same.

Pattern: rank i asks its candidates one by one who is free; the two that agree swap one buffer each, full
duplex, on the one connection between them. No coordinator, and nobody else takes part or waits.

    work.py      what a call returns
    wire.py      bytes: the greeting, the frame, the memory of a tensor
    pairing.py   who meets whom: messages in, messages out, no sockets
    swap.py      one exchange and its memory
    ring.py      memory shared with a process on the same host
    cores.py     which core a thread is on, and how to leave it
    shared.py    bodies that go through such memory
    link.py      one connection: frames and bodies, never blocking
    greeting.py  how a connection begins: dial, prove the key, agree on one
    endpoint.py  `Peers`: one thread that serves all connections of a process
"""

from .endpoint import Peers
from .greeting import listen
from .swap import Swap
from .work import Closed, Pairing, Pending

__all__ = ["Closed", "Pairing", "Peers", "Pending", "Swap", "listen"]
