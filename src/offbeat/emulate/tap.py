"""A link with a delay: a TAP interface at each end, and a process that carries frames from one to the other.

TAPs pass on segments as large as TCP makes them, with the header that says how they are to be cut, so that the
process handles few frames. They vanish with the last process that holds them.
"""

import fcntl
import os
import struct
import sys
from pathlib import Path

from .support import needing

DEVICE = "/dev/net/tun"
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUM, TSO4, TSO6, TSO_ECN = 1, 2, 4, 8
QUEUE_NBYTES_AT_LEAST = 1 << 20


def make_tap(name: str) -> int:
    """The descriptor of a new TAP in the namespace that this thread is in; to be closed by the caller."""
    with needing(f"TAP interfaces ({DEVICE})"):
        tap = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
            fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUM | TSO4 | TSO6 | TSO_ECN)
        except OSError:
            os.close(tap)
            raise
    return tap


def forwarder(delay: float, bytes_per_second: float) -> list[str]:
    """The command of the process in between, whose stdin is the node's TAP and whose stdout the bridge's. Its queue
    holds twice what the link carries during the delay."""
    queue_nbytes = int(2 * delay * bytes_per_second) + QUEUE_NBYTES_AT_LEAST
    script = Path(__file__).with_name("forward.py")
    return [sys.executable, "-I", "-S", str(script), str(delay), str(queue_nbytes)]
