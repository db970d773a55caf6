"""How a connection begins: the one who needs it first dials and says HELLO, the other says WELCOME.

If both dial at once, the lower rank's connection counts: it answers the other's HELLO with MINE.
Nothing here blocks; each greeting has its own socket and deadline, so a stranger or a slow peer delays nobody.
"""

import socket
import sys
from collections.abc import Callable

from .wire import GREETING_NBYTES

Address = tuple[str, int]


def listen(host: str = "") -> socket.socket:
    """A listening socket on a port of the system's choice, to be given to `Peers`; its port is
    `listen().getsockname()[1]`. Peers may connect from now on: they are served once `Peers` runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=1024)


def dial(to: Address) -> socket.socket:
    """A socket that is connecting; it becomes writable when connected or refused. Raises OSError."""
    family, kind, protocol, _, resolved = socket.getaddrinfo(*to, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    try:
        sock.connect(resolved)
    except BlockingIOError:
        pass
    except OSError:
        sock.close()
        raise
    return sock


def prepare(sock: socket.socket, timeout_seconds: float) -> None:
    """No delay for small frames; an error, not silence, when the network goes. Buffers stay with the kernel's
    autotuning, which was faster than any fixed size."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        third = max(1, int(timeout_seconds / 3))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_seconds * 1000)))


class Greeting:
    """A connection whose other end has not proved itself yet. `peer` is known if we dialled."""

    def __init__(self, sock: socket.socket | None, until_seconds: float, peer: int | None = None) -> None:
        self.socket = sock  # None: the peer said MINE, and we wait for its connection
        self.peer = peer
        self.until_seconds = until_seconds
        self.connected = peer is None
        self._raw = bytearray()

    def receive(self) -> bytes | None:
        """The other end's greeting, once it is complete, and not a byte more. Raises OSError, also at the end."""
        assert self.socket is not None
        try:
            piece = self.socket.recv(GREETING_NBYTES - len(self._raw))
        except BlockingIOError:
            return None
        if not piece:
            raise ConnectionResetError("it hung up during the greeting")
        self._raw += piece
        return bytes(self._raw) if len(self._raw) == GREETING_NBYTES else None


Ready = Callable[[int], None]  # what the endpoint's thread calls when a socket is ready: (events)
