"""Work and Comm: all that a strategy may know of the world it runs in.

A strategy is a set of generators that yield `Work`. Two rules hold in every world:

1. Time passes only at a `yield`.
2. Code between two yields is atomic: no other code of the same worker's strategy runs meanwhile.
"""

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from torch import Tensor

from .layout import Layout, Ranks

T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    """Something under way: `value = yield work` waits for it; `work.done` never blocks."""

    @property
    def done(self) -> bool: ...

    def result(self) -> T_co:
        """The value of work that is done; raises what went wrong, such as `LostPeer`."""
        ...


class Average(Work[Tensor], Protocol):
    """An average under way."""

    @property
    def found_idle(self) -> bool:
        """Whether this rank had nothing else under way over the same ranks when it really began, on a GPU maybe later
        than it was called: then the wire may have waited for this rank."""
        ...


class Process(Work[None], Protocol):
    """A generator that runs beside the steps (see `Comm.spawn`)."""

    def stop(self) -> None:
        """Ask it to end: its pending or next `pair` or `sleep` raises `Stopped` there.

        A pair that has been agreed and a swap under way are carried through first, so no peer is left waiting.
        """
        ...


Steps = Generator[Work[Any], Any, None]


class Comm(Protocol):
    """Every call starts something and returns at once.

    Tensors: the value that travels is the one at the moment of the call for `average` and `add_up`; for `swap`, `shift`
    and `broadcast` the tensor must stay as it is until the work is done. The result lands in `out` if given
    (it may be the same tensor), else in a fresh buffer; `out` belongs to the comm until the work is done.

    Collectives (`average`, `add_up`, `broadcast`) over the same ranks are matched by order: the k-th call here meets
    the k-th call there. The same ranks in another order are another lane: nothing on the one waits for the other.
    """

    rank: int
    layout: Layout
    seed: int  # of the run: whatever a strategy draws at random comes from (seed, rank)

    def now(self) -> float:
        """Seconds: monotonic, or virtual."""
        ...

    def alive(self) -> Ranks:
        """The ranks not known to be lost, this one included."""
        ...

    def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> Average:
        """The mean of x over `ranks`; completes when the last of them has called it."""
        ...

    def add_up(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> Average:
        """The sum of x over `ranks`, as `average`; whole numbers must be so small that it fits their dtype."""
        ...

    def broadcast(self, x: Tensor, source: int, ranks: Ranks, out: Tensor | None = None) -> Work[Tensor]:
        """The x of rank `source`, on all `ranks`."""
        ...

    def pair(self, candidates: Ranks, after: float = 0.0) -> Work[int]:
        """A candidate that is in `pair` too and names us among its candidates; both get each other.

        We can be asked at once, and begin to ask, in the order given, when `after` seconds have passed.
        """
        ...

    def swap(self, x: Tensor, peer: int, out: Tensor | None = None) -> Work[Tensor]:
        """The peer's x for ours. Raises `LostPeer` if the peer dies."""
        ...

    def shift(self, x: Tensor, to: int, source: int, out: Tensor | None = None) -> Work[Tensor]:
        """Sends x to rank `to`, and gives what rank `source` sends here, of the same size and dtype.

        The k-th x for a rank meets its k-th shift from us. Raises `LostPeer` if one of the two dies.
        """
        ...

    def sleep(self, seconds: float) -> Work[None]: ...

    def mark(self, name: str) -> None:
        """Write into the trace that the strategy decided something, such as another interval."""
        ...

    def spawn(self, steps: Steps) -> Process:
        """Run `steps` beside the training steps, under the same two rules."""
        ...


def ring_bytes(nbytes: int, ranks: int) -> int:
    """Bytes that each rank sends in a ring all-reduce of `nbytes` over so many ranks."""
    return 2 * (ranks - 1) * nbytes // ranks
