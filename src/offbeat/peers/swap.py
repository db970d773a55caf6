"""Swap: the work of one exchange with one peer, and the memory that it moves."""

from torch import Tensor

from ..errors import BadInput
from .wire import dtype_code, memory
from .work import Pending


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
