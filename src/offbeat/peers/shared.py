"""Bodies of one link through shared memory, for peers on one host; the socket carries only the frames.

Each direction has its own ring, made when the first large swap is posted. Its maker says RING, the descriptor with
it, and the peer answers READY if it can see that memory. With both rings ready an OFFER says so, and if both offers
of a swap do, its bodies go this way; the first swaps of a link, and all if READY never comes, go through the socket.
(Never one body here and the other there: in place, the one in the socket could stop the FREED behind it.)
A PIECE frame says that the next slot is full, and FREED that it was emptied. Every piece fills its slot, but for the
last of a body, so neither lengths nor positions travel.
In memory a byte is copied twice by user code at the speed of the cache; through a socket the kernel also makes,
counts and frees its buffers, at about twice the cost.
"""

from collections import deque
from collections.abc import Callable

from .cores import NOWHERE, here, step_aside
from .ring import AVAILABLE, SLOT_NBYTES, SLOTS, Emptier, Filler
from .swap import Swap
from .wire import Frame, Kind, WireError

SHARED_NBYTES_AT_LEAST = 1 << 20  # smaller swaps gain little


class SharedBodies:
    """Both directions of one link. `say` sends a frame, `hand_over` the RING frame with its ring, `sent` and
    `received` hear of a swap whose body is through."""

    def __init__(
        self,
        *,
        say: Callable[[Frame], None],
        hand_over: Callable[[Filler], None],
        sent: Callable[[Swap], None],
        received: Callable[[Swap], None],
        gives_way: bool,  # on a core that both ends' threads use; one of the two must be willing
    ) -> None:
        self._say, self._hand_over, self._sent, self._received = say, hand_over, sent, received
        self._filler: Filler | None = None
        self._asked = self._ready = False  # whether we said RING, and heard READY
        self._to_send: deque[Swap] = deque()
        self._emptier: Emptier | None = None
        self._to_receive: deque[Swap] = deque()
        self._pieces_due = 0  # of these bodies, and not yet announced
        self._full = 0  # slots that the peer filled and we did not empty yet
        self._gives_way = gives_way
        self._moved_for: Swap | None = None

    @property
    def receiving(self) -> bool:
        return bool(self._to_receive)

    @property
    def can_fill(self) -> bool:
        return bool(self._to_send) and self._filler is not None and self._filler.free > 0

    def carrying(self, swap: Swap) -> bool:
        return swap in self._to_receive or swap in self._to_send

    # -- ours to send ---------------------------------------------------------------------------------------------

    def offer_ring(self, nbytes: int) -> None:
        """A swap of this size is to come: make a ring, unless there is one or none can be had."""
        if self._asked or not AVAILABLE or nbytes < SHARED_NBYTES_AT_LEAST:
            return
        self._asked = True
        try:
            self._filler = Filler()
        except (OSError, ValueError):
            return
        self._hand_over(self._filler)

    def could_carry(self, nbytes: int) -> bool:
        return self._ready and self._emptier is not None and nbytes >= SHARED_NBYTES_AT_LEAST

    def carry(self, swap: Swap) -> None:
        """Both sides could: so this is the way for both bodies."""
        self._to_send.append(swap)
        self._to_receive.append(swap)
        self._pieces_due += -(-swap.nbytes // SLOT_NBYTES)

    def fill(self) -> int:
        """Copy one piece into a free slot and say so; how many bytes."""
        if not self.can_fill:
            return 0
        assert self._filler is not None
        swap = self._to_send[0]
        piece = swap.outgoing[swap.bytes_sent : swap.bytes_sent + SLOT_NBYTES]
        self._filler.put(piece)
        self._say(Frame(Kind.PIECE, number=here()))
        swap.bytes_sent += piece.nbytes
        if swap.bytes_sent == swap.nbytes:
            self._to_send.popleft()
            self._sent(swap)
        return piece.nbytes

    # -- theirs to receive ----------------------------------------------------------------------------------------

    def hear(self, frame: Frame) -> None:
        """READY, PIECE or FREED. Raises WireError."""
        if frame.kind is Kind.READY:
            if self._filler is None or self._ready:
                raise WireError("it is ready for a ring that it was not given")
            self._ready = True
        elif frame.kind is Kind.FREED:
            if self._filler is None or self._filler.free == SLOTS:
                raise WireError("it freed a slot that was not full")
            self._filler.free += 1
        elif self._pieces_due == 0 or self._full == SLOTS:
            raise WireError("it filled a slot that was not its to fill")
        else:
            self._pieces_due -= 1
            self._full += 1
            self._keep_apart(frame.number)

    def hear_ring(self, descriptor: int | None) -> None:
        """RING, with the descriptor that came along; one that is of no use is not answered."""
        if self._emptier is not None:
            raise WireError("it gave a second ring")
        if descriptor is not None:
            try:
                self._emptier = Emptier(descriptor)
            except (OSError, ValueError):
                return
            self._say(Frame(Kind.READY))

    def _keep_apart(self, core: int) -> None:
        """Once per body, if the peer's thread and this one share a core, and we are the one of the two to move."""
        if self._gives_way and self._to_receive[0] is not self._moved_for and core == here() != NOWHERE:
            self._moved_for = self._to_receive[0]
            step_aside()

    def empty(self) -> int:
        """Copy what may be copied out of full slots and say so; how many bytes."""
        moved = 0
        while self._full:
            assert self._emptier is not None
            swap = self._to_receive[0]
            nbytes = min(SLOT_NBYTES, swap.nbytes - swap.bytes_received)
            if swap.room_nbytes < nbytes:
                break  # in place, and not sent yet
            self._emptier.take(swap.incoming[swap.bytes_received : swap.bytes_received + nbytes])
            self._full -= 1
            self._say(Frame(Kind.FREED))
            moved += nbytes
            swap.bytes_received += nbytes
            if swap.bytes_received == swap.nbytes:
                self._moved_for = None
                self._to_receive.popleft()
                self._received(swap)
        return moved

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for ring in (self._filler, self._emptier):
            if ring is not None:
                ring.close()
        self._filler = self._emptier = None
        self._to_send.clear()
        self._to_receive.clear()
        self._full = 0
        self._moved_for = None
