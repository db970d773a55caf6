"""Pairing in virtual time: an asker gets the first of its candidates that is free, or waits for one."""

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import BadInput
from ..layout import Ranks
from .clock import Clock, Event
from .work import SimWork, stopped


@dataclass(slots=True)
class _Free:
    """A rank that waits to be paired."""

    candidates: frozenset[int]
    work: SimWork[int]
    asks: Event | None = None


class Pairing:
    def __init__(self, clock: Clock, round_trip: Callable[[int, int], float]) -> None:
        self._clock, self._round_trip = clock, round_trip
        self._latest: dict[int, tuple[Ranks, SimWork[int]]] = {}  # of each rank: under way, agreed or over
        self._free: dict[int, _Free] = {}
        self._asking: dict[int, int] = {}  # free ranks whose candidates were all busy -> which question it was
        self._questions = 0

    def pair(self, rank: int, candidates: Ranks, after: float) -> SimWork[int]:
        among, latest = self._latest.get(rank, ((), None))
        if latest is not None and not latest.done:
            raise BadInput(
                f"<search for a partner among {among}: under way> already: "
                f"stop() it or wait() for it before the next pair()"
            )
        interrupt = stopped(self._clock)

        def withdraw(work: SimWork[int]) -> None:
            if rank in self._free and self._free[rank].work is work:  # else agreed already: carried through
                self._leave(rank)
                interrupt(work)

        work: SimWork[int] = SimWork("pair", on_stop=withdraw)
        self._latest[rank] = (candidates, work)
        free = self._free[rank] = _Free(frozenset(candidates), work)
        askers = [other for other in candidates if other in self._asking and self._may_meet(rank, other)]
        if askers:
            self._match(min(askers, key=self._asking.__getitem__), rank)
            return work
        free.asks = self._clock.after(after, lambda: self._ask(rank, candidates))
        return work

    def _ask(self, rank: int, candidates: Ranks) -> None:
        self._free[rank].asks = None
        for other in candidates:
            if self._may_meet(rank, other):
                self._match(rank, other)
                return
        self._questions += 1
        self._asking[rank] = self._questions

    def _may_meet(self, a: int, b: int) -> bool:
        return a in self._free and b in self._free and b in self._free[a].candidates and a in self._free[b].candidates

    def _match(self, a: int, b: int) -> None:
        works = {a: self._leave(a), b: self._leave(b)}

        def agree() -> None:
            works[a].complete(b)
            works[b].complete(a)

        self._clock.after(self._round_trip(a, b), agree)

    def _leave(self, rank: int) -> SimWork[int]:
        self._asking.pop(rank, None)
        free = self._free.pop(rank)
        if free.asks is not None:
            self._clock.cancel(free.asks)
        return free.work
