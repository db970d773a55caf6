"""One connection: each side OFFERs its swap; once both have, each sends a BODY, both ways at the same time.

The k-th offer here meets the k-th there. Sizes and dtypes are compared before any body is sent, so a mismatch
is an error on both sides and the stream stays whole; and a body never sits unread in front of other frames.
Bytes go straight from and into the tensors' memory, at most about `CHUNK_NBYTES` per call, so that no link keeps the
endpoint's thread for long. Between peers on one host, large bodies take the way of shared.py instead of the socket.
Nothing here blocks, and nothing here knows of threads.
"""

import os
import socket
from collections import deque
from collections.abc import Callable

from ..errors import BadInput
from .ring import Filler, receive_with_descriptor
from .shared import SharedBodies
from .swap import Swap
from .wire import FRAME_NBYTES, Frame, Kind, WireError, dtype_name, pack, unpack

CHUNK_NBYTES = 2 << 20  # per call: few turns of Python per megabyte, and small against the L3 cache
WAKE_NBYTES = 1 << 20  # within a body, do not wake for less: SO_RCVLOWAT
SWAPS_AT_MOST = 64  # under way with one peer
RING_FRAME = pack(Frame(Kind.RING))


class Link:
    """Frames and bodies to and from one peer. Created before its socket is: what is sent meanwhile waits here."""

    def __init__(self, rank: int, peer: int, hear: Callable[[int, Frame], None]) -> None:
        self.peer = peer
        self.socket: socket.socket | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.progress_seconds = 0.0  # when a swap last moved
        self.blocked = False  # the socket took less than it was given: wait until it is writable
        self._hear = hear
        self._near = False  # whether descriptors can be passed
        self._queue: deque[memoryview | Swap | Filler] = deque()  # to be sent, in this order
        self._shared = SharedBodies(
            say=self.say,
            hand_over=self._queue.append,
            sent=self._queue.append,
            received=self._settle,
            gives_way=rank > peer,
        )
        self._posted: deque[tuple[Swap, bool]] = deque()  # ours that met no offer yet, and if they could be shared
        self._offered: deque[Frame] = deque()  # theirs that met no swap of ours yet
        self._matched: deque[Swap] = deque()  # agreed on, body not yet received
        self._swaps: dict[Swap, None] = {}
        self._frame = bytearray(FRAME_NBYTES)
        self._frame_nbytes = 0
        self._descriptor: int | None = None  # came along with it
        self._body: Swap | None = None  # being received
        self._wake_nbytes = 1

    @property
    def swapping(self) -> bool:
        return bool(self._swaps)

    @property
    def wants_to_send(self) -> bool:
        return bool(self._queue) or self._shared.can_fill

    @property
    def wants_to_receive(self) -> bool:
        return self._body is None or self._body.room_nbytes > 0

    @property
    def in_frame(self) -> bool:
        """Whether the end of the stream would cut something in two."""
        return self._body is not None or self._frame_nbytes > 0 or self._shared.receiving

    def join(self, sock: socket.socket) -> None:
        """There is a connection now."""
        self.socket = sock
        self._near = sock.family == socket.AF_UNIX
        self._offer_ring()

    def say(self, frame: Frame) -> None:
        self._queue.append(memoryview(pack(frame)))

    def post(self, swap: Swap, now: float) -> None:
        if len(self._swaps) == SWAPS_AT_MOST:
            swap.fail(
                BadInput(f"{SWAPS_AT_MOST} swaps with rank {self.peer} are under way already: wait for one of them")
            )
            return
        if not self._swaps:
            self.progress_seconds = now
        self._swaps[swap] = None
        shared = self._shared.could_carry(swap.nbytes)
        self._posted.append((swap, shared))
        self.say(Frame(Kind.OFFER, number=int(shared), dtype=swap.dtype, nbytes=swap.nbytes))
        self._offer_ring()
        self._match(now)

    def _offer_ring(self) -> None:
        if self._near and self._posted:
            self._shared.offer_ring(max(swap.nbytes for swap, _ in self._posted))

    def fail(self, error: Exception) -> None:
        for swap in self._swaps:
            swap.fail(error)
        self._swaps.clear()
        for queue in (self._queue, self._posted, self._offered, self._matched):
            queue.clear()
        self._body = None
        self._drop_descriptor()
        self._shared.close()

    def send(self, now: float) -> None:
        """Send until the socket is full or a chunk has gone. Raises OSError."""
        budget = CHUNK_NBYTES
        self.blocked = False
        while budget > 0 and not self.blocked:
            if self._queue:
                budget -= self._send_next(budget, now)
            elif copied := self._shared.fill():
                budget -= copied
                self.bytes_sent += copied
                self.progress_seconds = now
            else:
                break
        self._empty_slots(now)  # in place, there may be more room now

    def _send_next(self, budget: int, now: float) -> int:
        """Give the socket the head of the queue or a part of it; how many bytes it took."""
        assert self.socket is not None
        head = self._queue[0]
        piece = (
            head.outgoing[head.bytes_sent : head.bytes_sent + budget]
            if isinstance(head, Swap)
            else memoryview(RING_FRAME)
            if isinstance(head, Filler)
            else head
        )
        try:
            if isinstance(head, Filler):
                head.hand_over(self.socket, RING_FRAME)
                sent = piece.nbytes
            else:
                sent = self.socket.send(piece) if piece.nbytes else 0
        except BlockingIOError:
            sent = 0
        self.blocked = sent < piece.nbytes
        self.bytes_sent += sent
        if isinstance(head, Swap):
            head.bytes_sent += sent
            self.progress_seconds = now
            if head.bytes_sent == head.nbytes:
                self._queue.popleft()
                self._settle(head)
        elif not self.blocked:
            self._queue.popleft()
        elif isinstance(head, memoryview):
            self._queue[0] = head[sent:]
        return sent

    def receive(self, now: float) -> bool:
        """Receive until the socket is empty or a chunk has come; False at the end of the stream. Raises OSError."""
        assert self.socket is not None
        until_nbytes = self.bytes_received + CHUNK_NBYTES
        while self.bytes_received < until_nbytes and self.wants_to_receive:
            into = self._space(until_nbytes - self.bytes_received)
            try:
                received = self._receive_into(into)
            except BlockingIOError:
                return True
            if received == 0:
                return False
            self.bytes_received += received
            self._take(received, now)
            if received < into.nbytes:
                break  # the socket is empty; to chase the next few bytes would only keep us from sending
        return True

    def _receive_into(self, into: memoryview) -> int:
        assert self.socket is not None
        if self._body is not None or not self._near:
            return self.socket.recv_into(into)
        received, descriptor = receive_with_descriptor(self.socket, into)
        if descriptor is not None:
            self._drop_descriptor()
            self._descriptor = descriptor
        return received

    def _drop_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _empty_slots(self, now: float) -> None:
        moved = self._shared.empty()
        if moved:
            self.bytes_received += moved
            self.progress_seconds = now

    def _space(self, budget: int) -> memoryview:
        body = self._body
        if body is None:
            return memoryview(self._frame)[self._frame_nbytes :]
        start = body.bytes_received
        return body.incoming[start : start + min(budget, body.room_nbytes)]

    def _take(self, received: int, now: float) -> None:
        body = self._body
        if body is not None:
            body.bytes_received += received
            self.progress_seconds = now
            self._wake_for(body.nbytes - body.bytes_received)
            if body.bytes_received == body.nbytes:
                self._body = None
                self._settle(body)
            return
        self._frame_nbytes += received
        if self._frame_nbytes == FRAME_NBYTES:
            self._frame_nbytes = 0
            try:
                self._act(unpack(self._frame), now)
            finally:
                self._drop_descriptor()  # a ring has its own by now, and nothing else should have come with one

    def _act(self, frame: Frame, now: float) -> None:
        if frame.kind is Kind.OFFER:
            if len(self._offered) == SWAPS_AT_MOST:
                raise WireError(f"it offered more than {SWAPS_AT_MOST} swaps that nobody here asked for")
            self._offered.append(frame)
            self._match(now)
        elif frame.kind is Kind.RING:
            self._shared.hear_ring(self._descriptor)
        elif frame.kind in (Kind.READY, Kind.PIECE, Kind.FREED):
            self._shared.hear(frame)
            self.progress_seconds = now
            self._empty_slots(now)
        elif frame.kind is Kind.BODY:
            if not self._matched or self._matched[0].nbytes != frame.nbytes:
                raise WireError(f"it sent a body of {frame.nbytes} bytes that was not agreed on")
            body = self._matched.popleft()
            if body.nbytes:
                self._body = body
                self._wake_for(body.nbytes)
            else:
                self._settle(body)
        else:
            self._hear(self.peer, frame)

    def _match(self, now: float) -> None:
        while self._posted and self._offered:
            (swap, shared), offer = self._posted.popleft(), self._offered.popleft()
            self.progress_seconds = now
            if (swap.dtype, swap.nbytes) == (offer.dtype, offer.nbytes):
                if shared and offer.number:
                    self._shared.carry(swap)
                else:
                    self._matched.append(swap)
                    self.say(Frame(Kind.BODY, dtype=swap.dtype, nbytes=swap.nbytes))
                    self._queue.append(swap)
            else:
                del self._swaps[swap]
                swap.fail(
                    BadInput(
                        f"rank {self.peer} swaps {offer.nbytes} bytes of {dtype_name(offer.dtype)} and this rank "
                        f"{swap.nbytes} bytes of {dtype_name(swap.dtype)}: both must give the same size and dtype"
                    )
                )

    def _settle(self, swap: Swap) -> None:
        """One direction is through; an empty swap needs both bodies' frames as well, as a full one does."""
        waits = swap in self._matched or swap is self._body or swap in self._queue
        if not waits and not self._shared.carrying(swap):
            del self._swaps[swap]
            swap.complete_if_moved()

    def _wake_for(self, remaining: int) -> None:
        """Within a large body, let the kernel gather before it wakes us; it wakes anyway when its buffer is full."""
        wake = min(WAKE_NBYTES, remaining) if remaining >= WAKE_NBYTES // 16 else 1
        if wake != self._wake_nbytes:
            assert self.socket is not None
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)
            self._wake_nbytes = wake
