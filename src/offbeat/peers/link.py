"""One connection: each side OFFERs its swap; once both have, each sends a BODY, both ways at the same time.

The k-th offer here meets the k-th there. Sizes and dtypes are compared before any body is sent, so a mismatch
is an error on both sides and the stream stays whole; and a body never sits unread in front of other frames.
Bytes go straight from and into the tensors' memory, at most `CHUNK_NBYTES` per call, so that no link keeps the
endpoint's thread for long. Nothing here blocks, and nothing here knows of threads.
"""

import socket
from collections import deque
from collections.abc import Callable

from torch import Tensor

from ..errors import BadInput
from .wire import FRAME_NBYTES, Frame, Kind, WireError, dtype_code, dtype_name, memory, pack, unpack
from .work import Pending

CHUNK_NBYTES = 2 << 20  # per call: few turns of Python per megabyte, and small against the L3 cache
WAKE_NBYTES = 1 << 20  # within a body, do not wake for less: SO_RCVLOWAT
SWAPS_AT_MOST = 64  # under way with one peer


class Swap(Pending[Tensor]):
    """One buffer for another. `bytes_sent` is how much of ours has left so far."""

    def __init__(self, x: Tensor, peer: int, out: Tensor) -> None:
        super().__init__(f"swap of {x.numel()} {x.dtype} with rank {peer}")
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0
        self._out = out
        self.outgoing, self.incoming = memory(x, "x"), memory(out, "out")
        self.dtype, self.nbytes = dtype_code(x), self.outgoing.nbytes
        if out.dtype != x.dtype or self.incoming.nbytes != self.nbytes:
            raise BadInput(f"out holds {out.numel()} {out.dtype} and x {x.numel()} {x.dtype}: give an out like x")
        apart = abs(x.data_ptr() - out.data_ptr())
        self.in_place = self.nbytes > 0 and apart == 0
        if 0 < apart < self.nbytes:
            raise BadInput("out overlaps x in part: give the same tensor, or one of its own memory")

    @property
    def room_nbytes(self) -> int:
        """How much may be received now; in place, only what has been sent may be overwritten."""
        return (self.bytes_sent if self.in_place else self.nbytes) - self.bytes_received

    def complete_if_moved(self) -> None:
        if self.bytes_sent == self.bytes_received == self.nbytes:
            self._let_go()
            self.resolve(self._out)

    def fail(self, error: Exception) -> None:
        self._let_go()
        super().fail(error)

    def _let_go(self) -> None:
        self.outgoing = self.incoming = memoryview(b"")


class Link:
    """Frames and bodies to and from one peer. Created before its socket is: what is sent meanwhile waits here."""

    def __init__(self, peer: int, hear: Callable[[int, Frame], None]) -> None:
        self.peer = peer
        self.socket: socket.socket | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.progress_seconds = 0.0  # when a swap last moved
        self._hear = hear
        self._queue: deque[memoryview | Swap] = deque()  # to be sent, in this order
        self._posted: deque[Swap] = deque()  # ours that met no offer yet
        self._offered: deque[Frame] = deque()  # theirs that met no swap of ours yet
        self._matched: deque[Swap] = deque()  # agreed on, body not yet received
        self._swaps: dict[Swap, None] = {}
        self._frame = bytearray(FRAME_NBYTES)
        self._frame_nbytes = 0
        self._body: Swap | None = None  # being received
        self._wake_nbytes = 1

    @property
    def swapping(self) -> bool:
        return bool(self._swaps)

    @property
    def wants_to_send(self) -> bool:
        return bool(self._queue)

    @property
    def wants_to_receive(self) -> bool:
        return self._body is None or self._body.room_nbytes > 0

    @property
    def in_frame(self) -> bool:
        """Whether the end of the stream would cut something in two."""
        return self._body is not None or self._frame_nbytes > 0

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
        self._posted.append(swap)
        self.say(Frame(Kind.OFFER, dtype=swap.dtype, nbytes=swap.nbytes))
        self._match(now)

    def fail(self, error: Exception) -> None:
        for swap in self._swaps:
            swap.fail(error)
        self._swaps.clear()
        for queue in (self._queue, self._posted, self._offered, self._matched):
            queue.clear()
        self._body = None

    def send(self, now: float) -> None:
        """Send until the socket is full or a chunk has gone. Raises OSError."""
        budget = CHUNK_NBYTES
        assert self.socket is not None
        while self._queue and budget > 0:
            head = self._queue[0]
            piece = head.outgoing[head.bytes_sent : head.bytes_sent + budget] if isinstance(head, Swap) else head
            try:
                sent = self.socket.send(piece) if piece.nbytes else 0
            except BlockingIOError:
                return
            self.bytes_sent += sent
            budget -= sent
            if isinstance(head, Swap):
                head.bytes_sent += sent
                self.progress_seconds = now
                if head.bytes_sent == head.nbytes:
                    self._queue.popleft()
                    self._settle(head)
            elif sent == head.nbytes:
                self._queue.popleft()
            else:
                self._queue[0] = head[sent:]
            if sent < piece.nbytes:
                return

    def receive(self, now: float) -> bool:
        """Receive until the socket is empty or a chunk has come; False at the end of the stream. Raises OSError."""
        assert self.socket is not None
        budget = CHUNK_NBYTES
        while budget > 0 and self.wants_to_receive:
            into = self._space(budget)
            try:
                received = self.socket.recv_into(into)
            except BlockingIOError:
                return True
            if received == 0:
                return False
            budget -= received
            self.bytes_received += received
            self._take(received, now)
            if received < into.nbytes:
                break  # the socket is empty; to chase the next few bytes would only keep us from sending
        return True

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
            self._act(unpack(self._frame), now)

    def _act(self, frame: Frame, now: float) -> None:
        if frame.kind is Kind.OFFER:
            if len(self._offered) == SWAPS_AT_MOST:
                raise WireError(f"it offered more than {SWAPS_AT_MOST} swaps that nobody here asked for")
            self._offered.append(frame)
            self._match(now)
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
            swap, offer = self._posted.popleft(), self._offered.popleft()
            self.progress_seconds = now
            if (swap.dtype, swap.nbytes) == (offer.dtype, offer.nbytes):
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
        if not waits:
            del self._swaps[swap]
            swap.complete_if_moved()

    def _wake_for(self, remaining: int) -> None:
        """Within a large body, let the kernel gather before it wakes us; it wakes anyway when its buffer is full."""
        wake = min(WAKE_NBYTES, remaining) if remaining >= WAKE_NBYTES // 16 else 1
        if wake != self._wake_nbytes:
            assert self.socket is not None
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)
            self._wake_nbytes = wake
