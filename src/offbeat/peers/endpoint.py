"""Peers: one thread that serves all connections of a process, waiting in one selector.

Every call hands a command to that thread and returns a work; the thread owns all state, so none of it is
locked. Sockets never block it and each moves a bounded piece per turn: a dead, stopped or slow peer delays
nobody else. A connection is made when it is first needed, and a peer that is lost stays lost.
"""

import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, LostPeer
from ..layout import Ranks
from .greeting import Address, Door, Listener, farewell, prepare
from .link import Link
from .pairing import Matching
from .swap import Swap
from .wire import KEY_NBYTES_AT_LEAST, Frame, Kind, WireError
from .work import Closed, Pairing, Pending

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Peers:
    """This process among its peers: find a partner with `pair`, exchange buffers with `swap`.

    `addresses[rank]` is where each peer listens (this rank's own entry is not needed), `listener` comes from
    `listen()` and is closed with the endpoint, and `key` is a secret of 16 or more random bytes that all ranks
    of the run share. A peer on which a swap makes no progress for `timeout_seconds` is lost, and so is one that
    does not even start the swap that we wait for. A peer that leaves the question of `pair` unanswered for
    `patience_seconds` is passed over until it is heard again. Peers on this host are met over Unix sockets, and
    large buffers take the way through shared memory, unless `local` is False.
    """

    def __init__(
        self,
        rank: int,
        addresses: Mapping[int, tuple[str, int]],
        listener: Listener,
        *,
        key: bytes,
        timeout_seconds: float = 30.0,
        patience_seconds: float = 1.0,
        local: bool = True,
    ) -> None:
        if len(key) < KEY_NBYTES_AT_LEAST:
            raise BadInput(
                f"a key of {len(key)} bytes is too short: share {KEY_NBYTES_AT_LEAST} or more from os.urandom"
            )
        if timeout_seconds <= 0 or patience_seconds <= 0:
            raise BadInput(f"a timeout of {timeout_seconds} and a patience of {patience_seconds} s must be positive")
        self.rank = rank
        self._timeout_seconds = timeout_seconds
        self._addresses = {peer: Address.of(*at, local=local) for peer, at in addresses.items() if peer != rank}
        self._links: dict[int, Link] = {}
        self._lost: dict[int, str] = {}
        self._matching = Matching(
            rank, self._tell, patience_seconds=min(patience_seconds, timeout_seconds), timeout_seconds=timeout_seconds
        )
        self._pairing: Pairing | None = None
        self._bytes_sent = 0  # over links that are gone

        self._lock = threading.Lock()  # guards the commands, and nothing else
        self._commands: deque[tuple[Pending[Any], Callable[[float], None]]] = deque()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        for sock in (self._bell, self._rope):
            sock.setblocking(False)
        self._selector.register(self._bell, READ, self._answer_bell)
        self._door = Door(
            rank, self._addresses, listener, key, timeout_seconds, self._selector,
            join=self._join, lose=self._lose, takes=self._takes,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=f"offbeat-peers-{rank}", daemon=True)
        _open_endpoints.add(self)
        self._thread.start()

    # -- what a strategy's driver calls, from any thread --------------------------------------------------------

    def swap(self, x: Tensor, peer: int, out: Tensor | None = None) -> Swap:
        """The peer's x for ours, which must be equal in size and dtype; the k-th swap with a peer here meets the
        k-th with us there. x stays untouched, and out (it may be x) is ours, until the work is done."""
        self._check(peer)
        swap = Swap(x, peer, torch.empty_like(x, requires_grad=False) if out is None else out)
        self._command(swap, lambda now: self._post(swap, now))
        return swap

    def pair(self, candidates: Ranks, after: float = 0.0) -> Pairing:
        """A candidate that looks for us too. We can be asked at once, and ask, in the order given, when `after`
        seconds have passed. One at a time; `stop()` on the work calls it off."""
        if not candidates:
            raise BadInput("pair() got no candidates: name at least one rank")
        for peer in candidates:
            self._check(peer)
        work = Pairing(f"search for a partner among {candidates}", self._stop)
        with self._lock:
            if self._pairing is not None and not self._pairing.done:
                raise BadInput(f"{self._pairing} already: stop() it or wait() for it before the next pair()")
            self._pairing = work
        self._command(work, lambda now: self._matching.begin(work, candidates, after, now))
        return work

    def alive(self) -> set[int]:
        """The ranks not known to be lost, this one included."""
        return {self.rank, *self._addresses} - set(self._lost)

    @property
    def bytes_sent(self) -> int:
        """To all peers since the start, frames included."""
        return self._bytes_sent + sum(link.bytes_sent for link in list(self._links.values()))

    def close(self) -> None:
        """Fail what is under way with `Closed`, say farewell, and leave no thread or socket behind."""
        with self._lock:
            self._closing = True
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Peers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, peer: int) -> None:
        if peer not in self._addresses:
            raise BadInput(f"rank {peer} is no peer of rank {self.rank}: choose among {sorted(self._addresses)}")

    def _stop(self, work: Pairing) -> None:
        with suppress(Closed):
            self._command(work, lambda now: self._matching.stop(work, now))

    def _command(self, work: Pending[Any], begin: Callable[[float], None]) -> None:
        with self._lock:
            if self._closing:
                raise Closed(f"the endpoint of rank {self.rank} is closed: nothing can be started on it")
            self._commands.append((work, begin))
            first = len(self._commands) == 1
        if first:
            self._ring()

    def _ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: nobody is left to hear it
            self._rope.send(b"!")

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception = Closed(f"the endpoint of rank {self.rank} was closed")
        try:
            while not self._closing:
                for key, events in self._selector.select(self._seconds_to_sleep()):
                    if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]  # closed by an earlier one?
                        key.data(events)
                self._obey()
                self._tick()
        except Exception as bug:  # a work must never hang, so whoever waits learns of it
            error = bug
            raise
        finally:
            with self._lock:
                self._closing = True
            self._shut(error)

    def _seconds_to_sleep(self) -> float | None:
        due = [link.progress_seconds + self._timeout_seconds for link in self._links.values() if link.swapping]
        due += [at for at in (self._matching.deadline, self._door.deadline) if at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _answer_bell(self, _events: int) -> None:
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def _obey(self) -> None:
        while True:
            with self._lock:
                if not self._commands:
                    return
                _, begin = self._commands.popleft()
            begin(time.monotonic())

    def _tick(self) -> None:
        now = time.monotonic()
        self._door.tick(now)
        for link in [link for link in self._links.values() if link.swapping]:
            if link.progress_seconds + self._timeout_seconds <= now:
                self._turn(link, READ)  # what came may be less than the socket was told to wake for
                if link.progress_seconds + self._timeout_seconds <= now and link.swapping:
                    self._lose(link.peer, f"a swap with it made no progress for {self._timeout_seconds:g} s")
        if self._matching.deadline is not None and self._matching.deadline <= now:
            liar = self._matching.tick(now)
            if liar is not None:
                self._lose(liar, f"it asked to be paired, and then said nothing for {self._timeout_seconds:g} s")

    # -- frames and swaps -----------------------------------------------------------------------------------------

    def _post(self, swap: Swap, now: float) -> None:
        if swap.peer in self._lost:
            swap.fail(LostPeer(swap.peer, self._lost[swap.peer]))
            return
        link = self._link(swap.peer)
        link.post(swap, now)
        self._watch(link)

    def _tell(self, peer: int, kind: Kind, number: int) -> None:
        if peer not in self._lost:
            link = self._link(peer)
            link.say(Frame(kind, number))
            self._watch(link)

    def _hear(self, peer: int, frame: Frame) -> None:
        self._matching.hear(peer, frame.kind, frame.number, time.monotonic())

    def _link(self, peer: int) -> Link:
        if peer not in self._links:
            self._links[peer] = Link(self.rank, peer, self._hear)
            self._door.call(peer)
        return self._links[peer]

    def _takes(self, peer: int) -> bool:
        return peer not in self._lost and (peer not in self._links or self._links[peer].socket is None)

    def _join(self, peer: int, sock: socket.socket) -> None:
        link = self._links.setdefault(peer, Link(self.rank, peer, self._hear))
        link.join(sock)
        self._selector.register(sock, READ, partial(self._turn, link))
        try:
            prepare(sock, self._timeout_seconds)
        except OSError as error:  # gone again already
            self._lose(peer, str(error))
        else:
            self._watch(link)

    def _watch(self, link: Link) -> None:
        """Wait for what the link can make use of."""
        if link.socket is not None:
            events = (READ if link.wants_to_receive else 0) | (WRITE if link.wants_to_send else 0)
            key = self._selector.get_key(link.socket)
            if key.events != events:
                self._selector.modify(link.socket, events, key.data)

    def _turn(self, link: Link, events: int) -> None:
        """Move what can be moved on one link."""
        if link.socket is None:
            return
        now = time.monotonic()
        try:
            if events & WRITE:
                self._send(link, now)
            if events & READ and not link.receive(now):
                raise ConnectionResetError("it hung up" + (" in the middle of a swap" if link.in_frame else ""))
            if not events & WRITE and link.wants_to_send and not link.blocked:
                self._send(link, now)  # an answer to what came
        except (OSError, WireError) as error:
            self._lose(link.peer, str(error))
        else:
            self._watch(link)

    def _send(self, link: Link, now: float) -> None:
        try:
            link.send(now)
        except OSError:
            # The peer is gone, but its last words may still lie in our buffer.
            before = -1
            while link.bytes_received > before:
                before = link.bytes_received
                link.receive(now)
            raise

    def _lose(self, peer: int, reason: str) -> None:
        self._lost[peer] = reason
        self._door.forget(peer)
        link = self._links.pop(peer, None)
        if link is not None:
            if link.socket is not None:
                self._selector.unregister(link.socket)
                link.socket.close()
                link.socket = None
            self._bytes_sent += link.bytes_sent
            link.fail(LostPeer(peer, reason))
        self._matching.lose(peer, time.monotonic())

    # -- the end --------------------------------------------------------------------------------------------------

    def _shut(self, error: Exception) -> None:
        with self._lock:
            late, self._commands = self._commands, deque()
        for work, _ in late:
            work.fail(error)
        self._matching.fail(error)
        for link in self._links.values():
            if link.socket is not None:
                with suppress(OSError):  # a CONFIRM may be on its way: the other side relies on it
                    link.send(time.monotonic())
            self._bytes_sent += link.bytes_sent
            link.bytes_sent = 0
            link.fail(error)
        farewell([link.socket for link in self._links.values() if link.socket is not None])
        for sock in self._sockets():
            sock.close()
        self._selector.close()
        _open_endpoints.discard(self)

    def _sockets(self) -> list[socket.socket]:
        linked = [link.socket for link in self._links.values() if link.socket is not None]
        return [self._bell, self._rope, *self._door.sockets(), *linked]

    def _forget(self) -> None:
        """In a forked child, such as a data loader's worker: a copy of a socket held there would keep the
        connection open when this process dies, and nobody would notice."""
        for sock in self._sockets():
            sock.close()


_open_endpoints: "weakref.WeakSet[Peers]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for peers in list(_open_endpoints):
        peers._forget()


os.register_at_fork(after_in_child=_forget_in_child)
