"""How a connection begins and ends: the one who needs it first dials and says HELLO, the other says WELCOME.

If both dial at once, the lower rank's connection counts: it answers the other's HELLO with MINE.
Nothing here blocks; each greeting has its own socket and deadline, so a stranger or a slow peer delays nobody.
"""

import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from ..errors import BadInput
from .wire import GREETING_NBYTES, Reply, WireError, greet, ungreet

FAREWELL_SECONDS = 1.0  # how long close() waits for peers to read what was sent to them
BACKLOG = 1024  # connections that wait to be accepted
UNIX_SOCKETS = sys.platform == "linux"  # where they have abstract names
UNIX_BUFFER_NBYTES = 1 << 20
STRANGERS_AT_MOST = 64  # greeting at the same time, beside the run's own ranks


class Address(NamedTuple):
    """Resolved, so that dialling never waits for a name server."""

    family: int
    numeric: Any  # what connect() takes for this family
    near: str | None = None  # the Unix socket beside it, if it is on this very host

    @classmethod
    def of(cls, host: str, port: int, *, local: bool = True) -> "Address":
        try:
            family, _, _, _, numeric = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise BadInput(f"{host}:{port} is no address that this machine can resolve: {error}") from None
        return cls(family, numeric, local_name(port) if local and is_here(host) else None)


class Listener:
    """Where peers connect: a TCP port, and beside it, for those on the same host, a Unix socket of that number."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        tcp = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self.port = int(tcp.getsockname()[1])
        self.sockets = [tcp]
        if UNIX_SOCKETS:
            near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            near.bind(local_name(self.port))
            near.listen(BACKLOG)
            self.sockets.append(near)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *story: object) -> None:
        self.close()


def listen(host: str = "") -> Listener:
    """To be given to `Peers`, on a port of the system's choice. Peers may connect from now on: they are served once
    `Peers` runs."""
    return Listener(host)


def local_name(port: int) -> str:
    """The Unix socket beside a TCP port. An abstract name: like the port it is gone with its process, and seen only
    inside the same network namespace, so it is no way around a network that lies between."""
    return f"\0offbeat-{port}"


def is_here(host: str) -> bool:
    """Whether an address is one of this host's own."""
    if not UNIX_SOCKETS:
        return False
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def dial(to: Address) -> socket.socket:
    """A socket that is connecting; it becomes writable when connected or refused. Raises OSError."""
    if to.near is not None:
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.setblocking(False)
        try:
            near.connect(to.near)
            return near
        except OSError:
            near.close()  # not there after all: by TCP, then
    sock = socket.socket(to.family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(to.numeric)
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
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_NBYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        third = max(1, int(timeout_seconds / 3))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_seconds * 1000)))
        if sock.getpeername()[0] == sock.getsockname()[0]:
            # On one host there is nothing to congest, and bbr, a common default, paces what should run free.
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def farewell(socks: list[socket.socket]) -> None:
    """End our streams and read the peers' to the end: to close with unread data would cut off ours, too."""
    until = time.monotonic() + FAREWELL_SECONDS
    scratch = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            with suppress(OSError):  # gone already
                sock.shutdown(socket.SHUT_WR)
                selector.register(sock, selectors.EVENT_READ, sock)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                try:
                    ended = key.data.recv_into(scratch) == 0
                except OSError:
                    ended = True
                if ended:
                    selector.unregister(key.data)


class Greeting:
    """A connection whose other end has not proved itself yet. `peer` is known if we dialled."""

    def __init__(self, sock: socket.socket | None, until_seconds: float, peer: int = -1) -> None:
        self.socket = sock  # None: the peer said MINE and we wait for its connection, or it cannot be reached
        self.peer = peer
        self.until_seconds = until_seconds
        self.connected = False
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


class Door:
    """Dials and answers for one endpoint, on its thread; hands over sockets that passed the greeting."""

    def __init__(
        self,
        rank: int,
        addresses: dict[int, Address],
        listener: Listener,
        key: bytes,
        timeout_seconds: float,
        selector: selectors.BaseSelector,
        *,
        join: Callable[[int, socket.socket], None],
        lose: Callable[[int, str], None],
        takes: Callable[[int], bool],  # whether a connection from this rank is still wanted
    ) -> None:
        self._rank = rank
        self._addresses = addresses
        self._listener = listener
        self._key = key
        self._timeout_seconds = timeout_seconds
        self._selector = selector
        self._join, self._lose, self._takes = join, lose, takes
        self._dialled: dict[int, Greeting] = {}
        self._strangers: dict[Greeting, None] = {}
        self._unreachable: dict[int, str] = {}
        for sock in listener.sockets:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ, partial(self._accept, sock))

    def sockets(self) -> list[socket.socket]:
        greetings = (*self._strangers, *self._dialled.values())
        return [*self._listener.sockets, *(greeting.socket for greeting in greetings if greeting.socket is not None)]

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        greetings = (*self._strangers, *self._dialled.values())
        return min((greeting.until_seconds for greeting in greetings), default=None)

    def tick(self, now: float) -> None:
        for stranger in [stranger for stranger in self._strangers if stranger.until_seconds <= now]:
            self._turn_away(stranger)
        for peer in [peer for peer, greeting in self._dialled.items() if greeting.until_seconds <= now]:
            silence = f"it did not answer our call in {self._timeout_seconds:g} s"
            self._lose(peer, self._unreachable.get(peer, silence))

    def call(self, peer: int) -> None:
        """Dial; `join` or `lose` follows, but never from within this call."""
        now = time.monotonic()
        try:
            sock = dial(self._addresses[peer])
        except OSError as error:
            self._unreachable[peer] = f"it cannot be reached: {error}"
            self._dialled[peer] = Greeting(None, now, peer)
            return
        greeting = Greeting(sock, now + self._timeout_seconds, peer)
        self._dialled[peer] = greeting
        self._selector.register(sock, selectors.EVENT_WRITE, partial(self._greet, greeting))

    def forget(self, peer: int) -> None:
        """End our call to a peer, if there is one."""
        greeting = self._dialled.pop(peer, None)
        if greeting is not None and greeting.socket is not None:
            self._selector.unregister(greeting.socket)
            greeting.socket.close()

    def _greet(self, greeting: Greeting, _events: int) -> None:
        """We dialled: say HELLO once connected, then wait for WELCOME or MINE."""
        sock, peer = greeting.socket, greeting.peer
        assert sock is not None
        try:
            if not greeting.connected:
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                greeting.connected = True
                sock.send(greet(Reply.HELLO, self._key, self._rank, peer))  # fits an empty socket's buffer
                self._selector.modify(sock, selectors.EVENT_READ, partial(self._greet, greeting))
                return
            raw = greeting.receive()
            if raw is None:
                return
            reply, sender = ungreet(raw, self._key, self._rank)
            if sender != peer:
                raise WireError(f"rank {sender} answers at its address")
        except (OSError, WireError) as error:
            self._lose(peer, f"it cannot be reached: {error}")
            return
        self._selector.unregister(sock)
        if reply is Reply.WELCOME:
            del self._dialled[peer]
            self._join(peer, sock)
        else:
            sock.close()
            greeting.socket = None

    def _accept(self, listener: socket.socket, _events: int) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            time.sleep(0.01)  # no descriptor to spare, and the caller stays in the queue: do not spin
            return
        sock.setblocking(False)
        stranger = Greeting(sock, time.monotonic() + self._timeout_seconds)
        self._strangers[stranger] = None
        self._selector.register(sock, selectors.EVENT_READ, partial(self._meet, stranger))
        if len(self._strangers) > STRANGERS_AT_MOST + len(self._addresses):
            self._turn_away(next(iter(self._strangers)))

    def _meet(self, stranger: Greeting, _events: int) -> None:
        """Someone dialled us: a peer is welcome, unless our own call to it counts."""
        sock = stranger.socket
        assert sock is not None
        try:
            raw = stranger.receive()
            if raw is None:
                return
            reply, peer = ungreet(raw, self._key, self._rank)
            if reply is not Reply.HELLO or peer not in self._addresses or not self._takes(peer):
                raise WireError(f"a connection from rank {peer} is not wanted")
            counts = peer not in self._dialled or peer < self._rank
            sock.send(greet(Reply.WELCOME if counts else Reply.MINE, self._key, self._rank, peer))
        except (OSError, WireError):
            self._turn_away(stranger)
            return
        if not counts:
            self._turn_away(stranger)
            return
        self.forget(peer)
        del self._strangers[stranger]
        self._selector.unregister(sock)
        self._join(peer, sock)

    def _turn_away(self, stranger: Greeting) -> None:
        del self._strangers[stranger]
        assert stranger.socket is not None
        self._selector.unregister(stranger.socket)
        stranger.socket.close()
