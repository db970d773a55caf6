"""Who meets whom, without a coordinator: i asks k, k says yes, i confirms.

    i -- ASK -->  k      k is free and wants i:     YES, and i answers CONFIRM: both are paired
                         k is not looking for i:    NO, and i asks the next
                         k's own question is out:   WAIT if i < k (YES or NO follows), else NO and k asks i later
    i -- ASK -->  k  <-- ASK -- at once:            the lower rank's question counts
    i -- RETRACT --> k   k was silent for too long: i goes on with the next, k asks i when it comes round
    i <-- FREE --  k     k refused i before, can be asked now, but does not ask yet itself (`after`)

Nobody is missed. Let i and k both look for each other, i the later to begin. i asks k. k says NO only while
its own question is out and i > k, and then asks i later; i, asked by the lower k, never says NO to it but
makes it WAIT. If i does not ask yet, it tells k, whom it refused before, that it is FREE, and k asks. Waits
run from lower to higher ranks only, so they form no cycle. A question that is retracted is remembered by the
one asked, and a peer that was silent is asked again as soon as it is heard.

Only frames and times go in and out of here, so the tests run it on a simulated network, too.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..errors import LostPeer, Stopped
from ..layout import Ranks
from .wire import Kind
from .work import Pending


@dataclass
class _Search:
    work: Pending[int]
    candidates: Ranks
    ask_from_seconds: float
    to_ask: deque[int]
    held: dict[int, int] = field(default_factory=dict)  # who waits for our answer -> number of the question
    stopping: bool = False


@dataclass
class _Question:
    peer: int
    number: int
    until_seconds: float
    heard: bool = False  # it said WAIT: it lives


class Matching:
    """One endpoint's side of the protocol. All times are seconds on the caller's clock."""

    def __init__(
        self, rank: int, send: Callable[[int, Kind, int], None], *, patience_seconds: float, timeout_seconds: float
    ) -> None:
        self.rank = rank
        self._send = send
        self._patience_seconds = patience_seconds
        self._timeout_seconds = timeout_seconds
        self._number = 0
        self._search: _Search | None = None
        self._asking: _Question | None = None  # our question, not yet answered
        self._promised: _Question | None = None  # we said YES, not yet confirmed; never both
        self._refused: set[int] = set()  # asked in vain, and neither asked nor told FREE since
        self._silent: set[int] = set()  # left a question without any reply; asked again once heard
        self._lost: set[int] = set()

    def begin(self, work: Pending[int], candidates: Ranks, after_seconds: float, now: float) -> None:
        self._search = _Search(work, candidates, now + after_seconds, deque(candidates))
        for peer in candidates:
            if peer in self._refused and after_seconds > 0:
                self._invite(peer)
        self._go_on(now)

    def stop(self, work: Pending[int], now: float) -> None:
        if self._search is not None and self._search.work is work:
            self._search.stopping = True
            self._go_on(now)

    def fail(self, error: Exception) -> None:
        """End the search, if there is one: the endpoint closes."""
        if self._search is not None:
            self._end().fail(error)

    def lose(self, peer: int, now: float) -> None:
        """The peer is gone for good."""
        self._lost.add(peer)
        self._silent.discard(peer)
        if self._asking is not None and self._asking.peer == peer:
            self._asking = None
        if self._promised is not None and self._promised.peer == peer:
            self._promised = None
        if self._search is not None:
            self._search.held.pop(peer, None)
            self._go_on(now)

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        question = self._asking or self._promised
        if question is not None:
            return question.until_seconds
        search = self._search
        if search is not None and search.to_ask and not self._all_silent(search.to_ask):
            return search.ask_from_seconds
        return None

    def tick(self, now: float) -> int | None:
        """See to what is due; returns a peer that broke its word and must be given up."""
        if self._promised is not None and now >= self._promised.until_seconds:
            return self._promised.peer
        if self._asking is not None and now >= self._asking.until_seconds:
            self._send(self._asking.peer, Kind.RETRACT, self._asking.number)
            if not self._asking.heard:
                self._silent.add(self._asking.peer)
            self._asking = None
        self._go_on(now)
        return None

    def hear(self, peer: int, kind: Kind, number: int, now: float) -> None:
        """A frame from a peer."""
        if peer in self._silent:
            self._silent.remove(peer)
            self._ask_later(peer)
        if kind is Kind.ASK:
            self._asked(peer, number, now)
        elif kind is Kind.RETRACT:
            self._retracted(peer, number, now)
        elif kind is Kind.FREE:
            self._ask_later(peer)
        elif kind is Kind.CONFIRM and _is(self._promised, peer, number):
            self._paired(peer)
        elif kind is Kind.YES and _is(self._asking, peer, number):
            self._send(peer, Kind.CONFIRM, number)
            self._paired(peer)
        elif kind is Kind.YES:  # to a question that we retracted, or dropped for one of theirs: they must not wait
            self._send(peer, Kind.RETRACT, number)
        elif kind is Kind.NO and _is(self._asking, peer, number):
            self._asking = None
        elif kind is Kind.WAIT and self._asking is not None and _is(self._asking, peer, number):
            self._asking.heard = True
            self._asking.until_seconds = now + self._patience_seconds
        # Any other NO or WAIT answers a question that is void by now.
        self._go_on(now)

    def _asked(self, peer: int, number: int, now: float) -> None:
        search = self._search
        if search is not None and self._asking is not None and self._asking.peer == peer:
            if peer < self.rank:
                self._asking = None
                self._promise(peer, number, now)
            return  # the lower rank's question counts: the peer will answer ours and drop its own
        if search is None or search.stopping or peer not in search.candidates:
            self._refused.add(peer)
            self._send(peer, Kind.NO, number)
        elif self._asking is None and self._promised is None:
            self._promise(peer, number, now)
        elif self._promised is not None or peer < self.rank:
            search.held[peer] = number
            self._send(peer, Kind.WAIT, number)
        else:
            self._refused.add(peer)
            self._ask_later(peer)
            self._send(peer, Kind.NO, number)

    def _retracted(self, peer: int, number: int, now: float) -> None:
        self._refused.add(peer)
        if _is(self._promised, peer, number):
            self._promised = None
        if self._search is not None:
            if self._search.held.get(peer) == number:
                del self._search.held[peer]
            if now < self._search.ask_from_seconds and peer in self._search.candidates:
                self._invite(peer)
            self._ask_later(peer)

    def _invite(self, peer: int) -> None:
        self._refused.discard(peer)
        self._send(peer, Kind.FREE, 0)

    def _ask_later(self, peer: int) -> None:
        search = self._search
        if search is not None and peer in search.candidates and peer not in search.to_ask:
            search.to_ask.append(peer)

    def _promise(self, peer: int, number: int, now: float) -> None:
        self._promised = _Question(peer, number, now + self._timeout_seconds)
        self._send(peer, Kind.YES, number)

    def _go_on(self, now: float) -> None:
        """If no question is out: serve who waits, else ask the next, else wait to be asked."""
        search = self._search
        if search is None or self._asking is not None or self._promised is not None:
            return
        if search.stopping:
            self._end().fail(Stopped(f"the search for a partner among {search.candidates} was called off"))
        elif self._lost.issuperset(search.candidates):
            last = search.candidates[-1]
            self._end().fail(LostPeer(last, f"and so is every candidate of {search.candidates}"))
        elif search.held:
            peer = next(iter(search.held))
            self._promise(peer, search.held.pop(peer), now)
        elif now >= search.ask_from_seconds:
            self._ask_next(search, now)

    def _ask_next(self, search: _Search, now: float) -> None:
        while search.to_ask:
            peer = search.to_ask.popleft()
            if peer not in self._lost and peer not in self._silent:
                self._refused.discard(peer)
                self._number = (self._number + 1) % 2**32
                self._asking = _Question(peer, self._number, now + self._patience_seconds)
                self._send(peer, Kind.ASK, self._number)
                return

    def _all_silent(self, ranks: Iterable[int]) -> bool:
        return all(rank in self._silent or rank in self._lost for rank in ranks)

    def _paired(self, peer: int) -> None:
        self._asking = self._promised = None
        self._end().resolve(peer)

    def _end(self) -> Pending[int]:
        search = self._search
        assert search is not None
        self._search = None
        for peer, number in search.held.items():
            self._refused.add(peer)
            self._send(peer, Kind.NO, number)
        return search.work


def _is(question: _Question | None, peer: int, number: int) -> bool:
    return question is not None and question.peer == peer and question.number == number
