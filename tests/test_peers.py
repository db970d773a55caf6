"""The pairwise transport: all endpoints of a test live in this process, unless they have to be killed."""

import array
import fcntl
import os
import random
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from typing import TypeVar

import pytest
import torch

from offbeat.errors import BadInput, LostPeer, OffbeatError, Stopped
from offbeat.layout import Ranks
from offbeat.peers import Closed, Peers, Pending, cores, listen, shared
from offbeat.peers.greeting import Listener, local_name
from offbeat.peers.pairing import Matching
from offbeat.peers.ring import RING_NBYTES, SLOT_NBYTES, Filler
from offbeat.peers.shared import SHARED_NBYTES_AT_LEAST
from offbeat.peers.wire import DTYPES, FRAME_NBYTES, GREETING_NBYTES, Frame, Kind, Reply, greet, pack, unpack

pytestmark = pytest.mark.timeout(30)
T = TypeVar("T")

HOST = "127.0.0.1"
KEY = b"a key that all ranks of this run know"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    threads, fds = set(threading.enumerate()), descriptors()
    yield
    assert set(threading.enumerate()) == threads
    assert descriptors() == fds


LOCAL = {"local": True}


@pytest.fixture(autouse=True, params=[True, False], ids=["unix", "tcp"])
def local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every test runs over Unix sockets, as on one host, and over TCP, as between hosts."""
    monkeypatch.setitem(LOCAL, "local", request.param)
    return bool(request.param)


@contextmanager
def world(size: int, **options: float) -> Iterator[list[Peers]]:
    with ExitStack() as stack:
        listeners = [listen(HOST) for _ in range(size)]
        addresses = {rank: (HOST, listener.port) for rank, listener in enumerate(listeners)}
        yield [
            stack.enter_context(Peers(rank, addresses, listener, key=KEY, **LOCAL, **options))
            for rank, listener in enumerate(listeners)
        ]


def finish(*works: Pending[T], seconds: float = 10.0) -> list[T]:
    for work in works:
        assert work.wait(seconds), f"{work} hangs"
    return [work.result() for work in works]


def both(a: Peers, b: Peers, nbytes: int = 4) -> None:
    """A swap between two endpoints works."""
    x, y = (torch.randint(256, (nbytes,), dtype=torch.uint8) for _ in range(2))
    got_a, got_b = finish(a.swap(x, b.rank), b.swap(y, a.rank))
    assert torch.equal(got_a, y)
    assert torch.equal(got_b, x)


# -- swap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.bool]
)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_swap_gives_the_bytes_of_the_other(dtype: torch.dtype, in_place: bool) -> None:
    with world(2) as (a, b):
        for shape in [(0,), (1,), (), (3, 5), (1000,), (65_537,), (1_500_001,)]:
            x, y = ((torch.randn(shape) * 9).to(dtype) for _ in range(2))
            x_before, y_before = x.clone(), y.clone()
            works = a.swap(x, 1, x if in_place else None), b.swap(y, 0, y if in_place else None)
            got_a, got_b = finish(*works)
            assert torch.equal(got_a, y_before)
            assert torch.equal(got_b, x_before)
            assert got_a.shape == x.shape
            assert (got_a is x) == in_place
            assert [work.bytes_sent for work in works] == [x.nbytes] * 2


def test_the_kth_swap_meets_the_kth() -> None:
    with world(2) as (a, b):
        sizes = [1 << (k % 18) for k in range(40)]
        here = [a.swap(torch.full((n,), k, dtype=torch.int16), 1) for k, n in enumerate(sizes)]
        there = [b.swap(torch.full((n,), -k, dtype=torch.int16), 0) for k, n in enumerate(sizes)]
        for k, (got_a, got_b) in enumerate(zip(finish(*here), finish(*there), strict=True)):
            assert bool((got_a == -k).all())
            assert bool((got_b == k).all())
        assert sum(sizes) * 2 < a.bytes_sent < sum(sizes) * 2 + 40 * 32 + 100


def test_a_mismatch_is_an_error_on_both_sides_and_the_stream_stays_whole() -> None:
    with world(2) as (a, b):
        for x, y in [
            (torch.ones(10), torch.ones(11)),
            (torch.ones(10), torch.ones(10, dtype=torch.int32)),
            (torch.ones(2_000_000), torch.ones(0)),
        ]:
            works = a.swap(x, 1), b.swap(y, 0)
            for work in works:
                with pytest.raises(BadInput, match="same size and dtype"):
                    finish(work)
            both(a, b, 100_000)


def test_what_cannot_be_swapped_is_said_at_once() -> None:
    with world(3) as (a, b, _):
        x = torch.ones(4, 4)
        with pytest.raises(BadInput, match="contiguous"):
            a.swap(x.t(), 1)
        with pytest.raises(BadInput, match="CPU"):
            a.swap(torch.ones(1, device="meta"), 1)
        with pytest.raises(BadInput, match="out like x"):
            a.swap(x, 1, torch.ones(3))
        with pytest.raises(BadInput, match="overlaps"):
            a.swap(x[:3], 1, x[1:])
        with pytest.raises(BadInput, match="no peer"):
            a.swap(x, 3)
        with pytest.raises(BadInput, match="no peer"):
            a.pair((0, 1))
        with pytest.raises(BadInput, match="no candidates"):
            a.pair(())
        work = a.pair((1,))
        with pytest.raises(OffbeatError, match="not done"):
            work.result()
        with pytest.raises(BadInput, match="already"):
            a.pair((2,))
        both(a, b)
    with listen(HOST) as listener, pytest.raises(BadInput, match="too short"):
        Peers(0, {}, listener, key=b"short")


def test_callbacks_come_once_before_and_after_the_end() -> None:
    with world(2) as (a, b):
        called: list[int] = []
        work = a.swap(torch.ones(3), 1)
        work.on_done(lambda: called.append(1))
        finish(work, b.swap(torch.ones(3), 0))
    assert called == [1]
    work.on_done(lambda: called.append(2))
    assert called == [1, 2]


def swap_with_all(me: Peers, size: int, start: threading.Barrier, passed: list[int]) -> None:
    start.wait()
    works = [me.swap(torch.full((9,), me.rank), other) for other in range(size) if other != me.rank]
    for work, got in zip(works, finish(*works), strict=True):
        assert got.tolist() == [work.peer] * 9
        passed.append(work.peer)


def test_both_dial_at_once_and_one_connection_remains() -> None:
    for _ in range(15):
        with world(4) as peers:
            start, passed = threading.Barrier(4), list[int]()
            threads = [threading.Thread(target=swap_with_all, args=(me, 4, start, passed)) for me in peers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(passed) == 12
            assert all(len(me.alive()) == 4 for me in peers)


# -- pair -------------------------------------------------------------------------------------------------------------


class Simulated:
    """Endpoints on a simulated network: each channel keeps its order, everything else happens in any order."""

    def __init__(self, size: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.channels: dict[tuple[int, int], deque[tuple[Kind, int]]] = {}
        self.ends = [
            Matching(rank, self._sender(rank), patience_seconds=1.0, timeout_seconds=30.0) for rank in range(size)
        ]
        self.works: list[Pending[int] | None] = [None] * size
        self.candidates: list[Ranks] = [()] * size
        self.passive: list[bool] = [False] * size  # asks only long after the end of the test
        self.met: Counter[tuple[int, int]] = Counter()
        self.stopped = 0
        self.sent: Counter[Kind] = Counter()

    def _sender(self, rank: int) -> Callable[[int, Kind, int], None]:
        def send(peer: int, kind: Kind, number: int) -> None:
            self.sent[kind] += 1
            self.channels.setdefault((rank, peer), deque()).append((kind, number))

        return send

    def begin(self, rank: int) -> None:
        others = [other for other in range(len(self.ends)) if other != rank]
        candidates = tuple(self.random.sample(others, self.random.randint(1, len(others))))
        self.begin_with(rank, candidates, after_seconds=self.random.choice([0.0, 0.5, 1000.0]))

    def begin_with(self, rank: int, candidates: Ranks, after_seconds: float) -> None:
        self.candidates[rank], self.passive[rank] = candidates, after_seconds > 100
        work = self.works[rank] = Pending("search")
        self.ends[rank].begin(work, candidates, after_seconds, self.now)

    def deliver(self) -> bool:
        ready = [channel for channel, queue in self.channels.items() if queue]
        if ready:
            source, target = self.random.choice(ready)
            self.ends[target].hear(source, *self.channels[source, target].popleft(), self.now)
        return bool(ready)

    def collect(self) -> None:
        for rank, work in enumerate(self.works):
            if work is not None and work.done:
                self.works[rank] = None
                try:
                    self.met[rank, work.result()] += 1
                except Stopped:
                    self.stopped += 1

    def tick(self) -> None:
        for end in self.ends:
            if end.deadline is not None and end.deadline <= self.now:
                assert end.tick(self.now) is None

    def settle(self) -> None:
        """Deliver everything and let every timer run out."""
        for _ in range(50):
            while self.deliver():
                pass
            self.now += 0.5
            self.tick()
        self.collect()


@pytest.mark.parametrize("slow", [False, True])
def test_no_two_that_look_for_each_other_are_left_waiting(slow: bool) -> None:
    """1,500 random histories a case; `slow` lets time pass beside deliveries, so questions are retracted, too."""
    met = stopped = 0
    for seed in range(1500):
        sim = Simulated(size=2 + seed % 6, seed=seed)
        for _ in range(60):
            rank = sim.random.randrange(len(sim.ends))
            event = sim.random.random()
            if event < 0.25 and sim.works[rank] is None:
                sim.begin(rank)
            elif event < 0.3 and (work := sim.works[rank]) is not None:
                sim.ends[rank].stop(work, sim.now)
            elif event < 0.4 and slow:
                sim.now += sim.random.choice([0.1, 0.6])
                sim.tick()
            else:
                sim.deliver()
            sim.collect()
        sim.settle()
        for (a, b), times in sim.met.items():
            assert sim.met[b, a] == times, f"seed {seed}: {a} met {b} {times} times, and {b} met {a} {sim.met[b, a]}"
        looking = [rank for rank, work in enumerate(sim.works) if work is not None]
        for a in looking:
            for b in looking:
                mutual = b in sim.candidates[a] and a in sim.candidates[b]
                assert not mutual or (sim.passive[a] and sim.passive[b]), f"seed {seed}: {a} and {b} both wait"
        assert slow or not sim.sent[Kind.RETRACT], f"seed {seed}: only patience ended a circle of waits"
        met += sum(sim.met.values())
        stopped += sim.stopped
    assert met > 1000
    assert stopped > 100


def ring(rank: int, size: int) -> Ranks:
    return ((rank + 1) % size, (rank - 1) % size)


def complete(rank: int, size: int) -> Ranks:
    return tuple(random.sample([other for other in range(size) if other != rank], size - 1))


@pytest.mark.parametrize("size", [3, 5, 8])
def test_all_who_ask_their_right_neighbour_at_once_form_no_circle_of_waits(size: int) -> None:
    for seed in range(100):
        sim = Simulated(size, seed)
        for rank in range(size):
            sim.begin_with(rank, ring(rank, size), after_seconds=0.0)
        sim.settle()
        assert sum(sim.met.values()) >= 2 * (size // 3)
        assert not sim.sent[Kind.RETRACT], "only patience ended a circle of waits"


@pytest.mark.parametrize("graph", [ring, complete])
@pytest.mark.parametrize("size", [8, 7])
def test_every_match_is_mutual_and_everyone_is_served(graph, size: int) -> None:  # type: ignore[no-untyped-def]
    met: Counter[tuple[int, int]] = Counter()
    with world(size) as peers:
        searching = {}
        ending = threading.Event()
        wrong: list[str] = []

        def gossip(me: Peers) -> None:
            while not ending.is_set():
                search = searching[me.rank] = me.pair(graph(me.rank, size), after=random.choice([0.0, 0.001]))
                if ending.is_set():
                    search.stop()
                if not search.wait(10):
                    wrong.append(f"{me.rank}: {search} hangs")
                    return
                try:
                    peer = search.result()
                except Stopped:
                    return
                met[me.rank, peer] += 1
                swap = me.swap(torch.tensor([me.rank, peer, met[me.rank, peer]]), peer)
                if not swap.wait(10) or swap.result().tolist() != [peer, me.rank, met[me.rank, peer]]:
                    wrong.append(f"{me.rank}: {swap}")

        threads = [threading.Thread(target=gossip, args=(me,)) for me in peers]
        for thread in threads:
            thread.start()
        edges = {(rank, other) for rank in range(size) for other in graph(rank, size)}
        late = time.monotonic() + 30
        while not wrong and time.monotonic() < late and any(met[edge] < 10 for edge in edges):
            time.sleep(0.05)
        ending.set()
        for search in list(searching.values()):
            search.stop()
        for thread in threads:
            thread.join()
    assert not wrong
    assert all(met[b, a] == times for (a, b), times in met.items())
    partners = {rank: {b for a, b in met if a == rank} for rank in range(size)}
    assert all(partners[rank] == set(graph(rank, size)) for rank in range(size)), partners


def test_stop_races_with_the_question() -> None:
    outcomes: Counter[bool] = Counter()
    with world(2) as (a, b):
        for k in range(300):
            here = a.pair((1,))
            if k % 3 == 0:
                here.stop()
                time.sleep(random.random() * 0.002)
            there = b.pair((0,), after=(k % 4) * 0.001)
            if k % 2:
                time.sleep(random.random() * 0.0005)
            here.stop()
            assert here.wait(5)
            try:
                assert here.result() == 1
                met = True
            except Stopped:
                met = False
                there.stop()
            assert there.wait(5)
            if met:
                assert there.result() == 0
            else:
                with pytest.raises(Stopped):
                    there.result()
            outcomes[met] += 1
            here.stop()  # done: nothing happens
    assert outcomes[True] > 10
    assert outcomes[False] > 10


def test_after_only_delays_our_own_questions() -> None:
    with world(2) as (a, b):
        here, there = a.pair((1,), after=60.0), b.pair((0,))
        assert finish(here, there) == [1, 0]
        here, there = a.pair((1,), after=60.0), b.pair((0,), after=0.2)
        began = time.monotonic()
        assert finish(here, there) == [1, 0]
        assert time.monotonic() - began > 0.19


def test_nobody_is_paired_with_one_it_did_not_name() -> None:
    with world(3) as (a, b, c):
        works = a.pair((1,)), b.pair((2,)), c.pair((0,))
        assert not any(work.wait(0.2) for work in works)
        works[0].stop()
        with pytest.raises(Stopped):
            finish(works[0])
        assert finish(a.pair((2,)), works[2]) == [2, 0]


# -- the dead, the stopped and the strange -----------------------------------------------------------------------------


SWAPS_TO_WARM_UP = 3  # after so many large ones in turn, the next one is sure to go through shared memory
WARM_UP = torch.ones(SHARED_NBYTES_AT_LEAST, dtype=torch.uint8)


def doomed(
    rank: int, addresses: dict[int, tuple[str, int]], listener: Listener, how: int, forks: bool, warm: bool
) -> None:
    """A process that ends itself in the middle of a swap with rank 0."""
    torch.set_num_threads(1)
    peers = Peers(rank, addresses, listener, key=KEY, **LOCAL)
    for _ in range(SWAPS_TO_WARM_UP if warm else 0):
        finish(peers.swap(WARM_UP, 0))
    work = peers.swap(torch.ones(60_000_000, dtype=torch.uint8), 0)
    while not work.bytes_received > 3_000_000:
        time.sleep(0.0002)
    if forks and os.fork() == 0:  # such as a data loader's worker, which outlives its parent for a while
        time.sleep(5)
        os._exit(0)
    os.kill(os.getpid(), how)


@contextmanager
def world_with_a_doomed(
    how: int, forks: bool = False, warm: bool = False, **options: float
) -> Iterator[tuple[Peers, Peers]]:
    """Ranks 0 and 1 here, and rank 2 in a process of its own."""
    listeners = [listen(HOST) for _ in range(3)]
    addresses = {rank: (HOST, listener.port) for rank, listener in enumerate(listeners)}
    process = get_context("fork").Process(target=doomed, args=(2, addresses, listeners[2], how, forks, warm))
    process.start()
    listeners[2].close()
    try:
        with (
            Peers(0, addresses, listeners[0], key=KEY, **LOCAL, **options) as a,
            Peers(1, addresses, listeners[1], key=KEY, **LOCAL, **options) as b,
        ):
            for _ in range(SWAPS_TO_WARM_UP if warm else 0):
                finish(a.swap(WARM_UP, 2))
                both(a, b, WARM_UP.nbytes)
            yield a, b
    finally:
        process.kill()
        process.join()
        process.close()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_peer_is_lost_at_once_and_the_others_go_on(forks: bool, warm: bool) -> None:
    with world_with_a_doomed(signal.SIGKILL, forks, warm) as (a, b):
        began = time.monotonic()
        works = [a.swap(torch.zeros(60_000_000, dtype=torch.uint8), 2) for _ in range(3)]
        both(a, b, 3_000_000)
        for work in works:
            assert work.wait(4)
            with pytest.raises(LostPeer, match="rank 2"):
                work.result()
        assert time.monotonic() - began < 4
        assert a.alive() == {0, 1}
        assert finish(a.pair((2, 1)), b.pair((0,))) == [1, 0]
        with pytest.raises(LostPeer):
            finish(a.pair((2,)))
        with pytest.raises(LostPeer):
            finish(a.swap(torch.ones(1), 2))
        both(a, b, 1_000_000)


@pytest.mark.parametrize("warm", [False, True])
def test_a_stopped_peer_is_passed_over_and_in_the_end_lost(warm: bool) -> None:
    with world_with_a_doomed(signal.SIGSTOP, warm=warm, timeout_seconds=4.0, patience_seconds=0.3) as (a, b):
        work = a.swap(torch.zeros(60_000_000, dtype=torch.uint8), 2)
        time.sleep(0.5)
        began = time.monotonic()
        for k in range(20):
            here, there = a.pair((2, 1)), b.pair((2, 0) if k % 2 else (0,))
            assert finish(here, there, seconds=1.5) == [1, 0]
            both(a, b, 3_000_000)
        assert time.monotonic() - began < 3, "each may wait for the stopped one once, not in every round"
        assert work.wait(10)
        with pytest.raises(LostPeer, match=r"no progress|timed out"):
            work.result()
        assert a.alive() == {0, 1}


def test_a_peer_that_never_comes_to_the_swap_is_lost() -> None:
    with world(3, timeout_seconds=0.5) as (a, b, c):
        work = a.swap(torch.ones(3), 1)
        both(a, c)
        with pytest.raises(LostPeer, match="no progress"):
            finish(work)
        both(a, c)
        with pytest.raises(LostPeer, match="hung up"):
            finish(b.swap(torch.ones(3), 0))


def test_an_unreachable_peer_costs_the_others_nothing(local: bool) -> None:
    """Rank 2 takes our call and never says a word, rank 3 is not there."""
    with listen(HOST) as gone:
        refused = gone.port
    listeners = listen(HOST), listen(HOST)
    addresses = {rank: (HOST, listener.port) for rank, listener in enumerate(listeners)}
    with (
        listen(HOST) as mute,
        Peers(
            0,
            {**addresses, 2: (HOST, mute.port), 3: (HOST, refused)},
            listeners[0],
            key=KEY,
            timeout_seconds=1.0,
            patience_seconds=0.2,
            local=local,
        ) as a,
        Peers(1, addresses, listeners[1], key=KEY, local=local) as b,
    ):
        silent = a.swap(torch.ones(1), 2)
        assert finish(a.pair((3, 2, 1)), b.pair((0,))) == [1, 0]
        both(a, b)
        for work in (silent, a.swap(torch.ones(1), 3), a.pair((2, 3))):
            assert work.wait(10)
            with pytest.raises(LostPeer):
                work.result()
        assert a.alive() == {0, 1}


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n" * 50,
        os.urandom(5000),
        greet(Reply.HELLO, b"the key of another run", 1, 0),
        greet(Reply.HELLO, KEY, 7, 0),
        greet(Reply.HELLO, KEY, 0, 0),
        greet(Reply.HELLO, KEY, 1, 0)[:-1],
        greet(Reply.WELCOME, KEY, 1, 0),
    ],
)
def test_a_stranger_harms_nobody(words: bytes) -> None:
    listeners = listen(HOST), listen(HOST)
    addresses = {rank: (HOST, listener.port) for rank, listener in enumerate(listeners)}
    with (
        ExitStack() as stack,
        Peers(0, addresses, listeners[0], key=KEY, timeout_seconds=0.5) as a,
        Peers(1, addresses, listeners[1], key=KEY) as b,
    ):
        strangers = [stack.enter_context(socket.create_connection(addresses[0], timeout=5)) for _ in range(100)]
        for stranger in strangers:
            stranger.sendall(words)
        both(a, b)
        for stranger in strangers:
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # turned away, at the latest when its time is up
        both(a, b)
        assert a.alive() == {0, 1}


def test_a_peer_that_talks_nonsense_is_lost() -> None:
    listener = listen(HOST)
    with (
        Peers(0, {1: (HOST, 9), 2: (HOST, 9)}, listener, key=KEY) as a,
        socket.create_connection((HOST, listener.port)) as peer,
    ):
        peer.sendall(greet(Reply.HELLO, KEY, 1, 0) + b"\xff" * 16)
        while 1 in a.alive():
            time.sleep(0.005)
        assert a.alive() == {0, 2}


def test_close_fails_what_is_under_way_and_can_be_repeated() -> None:
    with world(3) as (a, b, c):
        both(a, b)
        swap, search = a.swap(torch.ones(1_000_000), 1), a.pair((2,))
        theirs = c.pair((0,), after=60.0), b.swap(torch.ones(5), 2)
        finish(search)
        search = a.pair((2,))
        began = time.monotonic()
        a.close()
        a.close()
        assert time.monotonic() - began < 1
        for work in (swap, search):
            assert work.done
            with pytest.raises(Closed):
                work.result()
        with pytest.raises(Closed):
            a.swap(torch.ones(1), 1)
        with pytest.raises(LostPeer):
            finish(b.swap(torch.ones(1), 0))
        assert finish(theirs[0]) == [0]
        finish(c.swap(torch.ones(5), 1), theirs[1])


def test_a_last_swap_arrives_though_the_sender_closes_at_once() -> None:
    for _ in range(10):
        with world(2) as (a, b):
            x = torch.randn(2_000_000)
            here, there = a.swap(x, 1), b.swap(x, 0)
            here.on_done(a.close)
            for _ in range(60):  # unread offers at a's end must not cut off what a has sent
                b.swap(x[:1], 0)
            assert here.wait(10)
            a.close()
            assert torch.equal(finish(there)[0], x)


def test_without_its_unix_socket_a_peer_is_met_over_tcp() -> None:
    listeners = listen(HOST), listen(HOST)
    for listener in listeners:
        for near in listener.sockets[1:]:
            near.close()
        del listener.sockets[1:]
    addresses = {rank: (HOST, listener.port) for rank, listener in enumerate(listeners)}
    with Peers(0, addresses, listeners[0], key=KEY) as a, Peers(1, addresses, listeners[1], key=KEY) as b:
        both(a, b)


# -- through shared memory ---------------------------------------------------------------------------------------------

on_one_host = pytest.mark.parametrize("local", [True], indirect=True, ids=["unix"])


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each piece that was put into a ring by this process."""
    sizes: list[int] = []
    put = Filler.put

    def spy(ring: Filler, piece: memoryview) -> None:
        sizes.append(piece.nbytes)
        put(ring, piece)

    monkeypatch.setattr(Filler, "put", spy)
    return sizes


def warm_up(*peers: Peers) -> None:
    for k, a in enumerate(peers):
        for b in peers[k + 1 :]:
            for _ in range(SWAPS_TO_WARM_UP):
                both(a, b, WARM_UP.nbytes)


@on_one_host
@pytest.mark.parametrize("in_place", [(False, False), (True, False), (True, True)])
def test_sizes_around_every_threshold_arrive_whole(in_place: tuple[bool, bool], filled: list[int]) -> None:
    edges = SHARED_NBYTES_AT_LEAST, SLOT_NBYTES, 2 * SLOT_NBYTES, RING_NBYTES, 2 * RING_NBYTES
    with world(2) as (a, b):
        warm_up(a, b)
        for nbytes in [0, 1, *(edge + more for edge in edges for more in (-1, 0, 1)), 30_000_001]:
            filled.clear()
            x, y = (torch.randint(256, (nbytes,), dtype=torch.uint8) for _ in range(2))
            x_before, y_before = x.clone(), y.clone()
            works = a.swap(x, 1, x if in_place[0] else None), b.swap(y, 0, y if in_place[1] else None)
            got_a, got_b = finish(*works)
            assert torch.equal(got_a, y_before)
            assert torch.equal(got_b, x_before)
            assert sum(filled) == (2 * nbytes if nbytes >= SHARED_NBYTES_AT_LEAST else 0)
            assert [work.bytes_sent for work in works] == [nbytes] * 2


@on_one_host
def test_both_ways_keep_their_order_side_by_side(filled: list[int]) -> None:
    """Many swaps at once, in place or not, from before there is a ring until long after."""
    sizes = [(k * 977_777) % 5_000_000 if k % 3 else k for k in range(40)]
    with world(2) as (a, b):
        for _ in range(2):
            here = [torch.full((n,), k, dtype=torch.uint8) for k, n in enumerate(sizes)]
            there = [torch.full((n,), 100 + k, dtype=torch.uint8) for k, n in enumerate(sizes)]
            works = [a.swap(x, 1, x if k % 2 else None) for k, x in enumerate(here)]
            works += [b.swap(y, 0, y if k % 5 else None) for k, y in enumerate(there)]
            for k, got in enumerate(finish(*works)):
                assert bool((got == (100 + k if k < 40 else k - 40)).all())
    assert filled


@on_one_host
def test_several_peers_share_memory_with_one_at_the_same_time(filled: list[int]) -> None:
    with world(4) as peers:
        warm_up(*peers)
        filled.clear()
        swaps = []
        for a in peers:
            for b in peers[: a.rank]:
                nbytes = 2_000_000 * (a.rank + 2 * b.rank) + a.rank
                x, y = (torch.randint(256, (nbytes,), dtype=torch.uint8) for _ in range(2))
                swaps += [(a.swap(x, b.rank), y), (b.swap(y, a.rank), x)]
        for work, expected in swaps:
            assert torch.equal(finish(work)[0], expected)
        assert sum(filled) == sum(expected.nbytes for _, expected in swaps)


@on_one_host
def test_a_last_shared_swap_arrives_though_the_sender_closes_at_once(filled: list[int]) -> None:
    for _ in range(5):
        with world(2) as (a, b):
            warm_up(a, b)
            filled.clear()
            x = torch.randn(2_000_000)
            here, there = a.swap(x, 1), b.swap(x, 0)
            here.on_done(a.close)
            assert here.wait(10)
            a.close()
            assert torch.equal(finish(there)[0], x)
            assert sum(filled) == 2 * x.nbytes


@on_one_host
@pytest.mark.parametrize("missing", ["everywhere", "out of memory"])
def test_without_shared_memory_the_socket_carries_all(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space")

    if missing == "everywhere":
        monkeypatch.setattr(shared, "AVAILABLE", False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", full)
    with world(2) as (a, b):
        for _ in range(4):
            both(a, b, 3_000_000)


def test_to_step_aside_leaves_the_thread_as_free_as_it_was() -> None:
    allowed = os.sched_getaffinity(0)
    cores.step_aside()
    assert os.sched_getaffinity(0) == allowed
    assert cores.here() - 1 in allowed


class Liar:
    """Rank 1 on a bare Unix socket, to say to rank 0 what no peer would."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(5)
        self.socket.connect(local_name(port))
        self.socket.sendall(greet(Reply.HELLO, KEY, 1, 0))
        assert len(self.socket.recv(GREETING_NBYTES, socket.MSG_WAITALL)) == GREETING_NBYTES

    def say(self, *frames: Frame, descriptor: int | None = None) -> None:
        fds = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        self.socket.sendmsg([b"".join(map(pack, frames))], fds)

    def hear(self) -> Frame:
        return unpack(bytearray(self.socket.recv(FRAME_NBYTES, socket.MSG_WAITALL)))

    def share(self, me: Peers, nbytes: int) -> list[Pending[torch.Tensor]]:
        """Lay honest rings, and agree on a swap of this size to be shared; the works of rank 0."""
        works = [me.swap(torch.zeros(SHARED_NBYTES_AT_LEAST, dtype=torch.uint8), 1)]
        assert [self.hear().kind, self.hear().kind] == [Kind.OFFER, Kind.RING]
        ring = Filler()
        self.say(Frame(Kind.READY))
        self.say(Frame(Kind.RING), descriptor=ring.descriptor)
        assert self.hear().kind is Kind.READY
        ring.close()
        works.append(me.swap(torch.zeros(nbytes, dtype=torch.uint8), 1))
        assert self.hear() == Frame(Kind.OFFER, 1, DTYPES.index(torch.uint8), nbytes)
        offers = [Frame(Kind.OFFER, k, 0, (SHARED_NBYTES_AT_LEAST, nbytes)[k]) for k in (0, 1)]
        self.say(offers[0], Frame(Kind.BODY, nbytes=SHARED_NBYTES_AT_LEAST))
        self.socket.sendall(bytes(SHARED_NBYTES_AT_LEAST))
        assert self.hear().kind is Kind.BODY
        self.socket.recv(SHARED_NBYTES_AT_LEAST, socket.MSG_WAITALL)
        finish(works[0])
        self.say(offers[1])
        return works


@contextmanager
def world_with_a_liar(**options: float) -> Iterator[tuple[Peers, Liar]]:
    listener = listen(HOST)
    with Peers(0, {1: (HOST, 9), 2: (HOST, 9)}, listener, key=KEY, **options) as a:
        liar = Liar(listener.port)
        with liar.socket:
            yield a, liar


@on_one_host
@pytest.mark.parametrize("kind", [Kind.PIECE, Kind.FREED, Kind.READY])
def test_who_speaks_of_memory_that_is_not_shared_is_lost(kind: Kind) -> None:
    with world_with_a_liar() as (a, liar):
        liar.say(Frame(kind, number=2**32 - 1, nbytes=2**63))
        assert liar.socket.recv(1) == b""
        assert a.alive() == {0, 2}


@on_one_host
@pytest.mark.parametrize(
    "lies",
    [
        [Kind.PIECE] * 8,  # one more than the body has
        [Kind.FREED] * 8,  # one more than can ever be filled, however soon each is filled again
        [Kind.READY],
        [Kind.RING] * 2,
        [Kind.BODY],
    ],
)
@pytest.mark.parametrize("pause_seconds", [0.0, 0.02], ids=["at once", "one by one"])
def test_who_lies_about_the_ring_is_lost(lies: list[Kind], pause_seconds: float) -> None:
    with world_with_a_liar() as (a, liar):
        nbytes = 6 * SLOT_NBYTES + 1
        _, work = liar.share(a, nbytes)
        ring = Filler()
        for kind in lies:
            with suppress(OSError):  # lost already
                liar.say(Frame(kind, nbytes=nbytes), descriptor=ring.descriptor)
            time.sleep(pause_seconds)
        ring.close()
        assert work.wait(5)
        with pytest.raises(LostPeer, match="rank 1"):
            work.result()
        assert a.alive() == {0, 2}


@on_one_host
def test_slots_filled_again_before_they_were_freed_are_refused() -> None:
    """In place, rank 0 may not empty a slot before it has sent as much, and its own ring stays full."""
    with world_with_a_liar() as (a, liar):
        liar.share(a, 20 * SLOT_NBYTES)
        x = torch.zeros(20 * SLOT_NBYTES, dtype=torch.uint8)
        work = a.swap(x, 1, x)
        liar.say(Frame(Kind.OFFER, 1, 0, x.nbytes), *[Frame(Kind.PIECE)] * 40)
        assert work.wait(5)
        with pytest.raises(LostPeer, match="not its to fill"):
            work.result()


@on_one_host
def test_a_peer_that_never_empties_its_slots_is_lost() -> None:
    with world_with_a_liar(timeout_seconds=1.0) as (a, liar):
        _, work = liar.share(a, 20 * SLOT_NBYTES)
        liar.say(*[Frame(Kind.PIECE)] * 20)
        assert work.wait(5)
        with pytest.raises(LostPeer, match="no progress"):
            work.result()


@on_one_host
def test_a_descriptor_of_no_use_is_not_answered_and_not_kept() -> None:
    unsealed, short = os.memfd_create("unsealed"), os.memfd_create("short", os.MFD_ALLOW_SEALING)
    ends = os.pipe()
    try:
        os.ftruncate(unsealed, RING_NBYTES)
        os.ftruncate(short, RING_NBYTES - 1)
        fcntl.fcntl(short, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with world_with_a_liar() as (a, liar):
            before = descriptors()
            for fd in (unsealed, short, *ends, None):
                liar.say(Frame(Kind.RING), descriptor=fd)
            liar.say(Frame(Kind.ASK, 5), descriptor=unsealed)
            assert liar.hear() == Frame(Kind.NO, 5)
            assert descriptors() == before
            assert a.alive() == {0, 1, 2}
    finally:
        for fd in (unsealed, short, *ends):
            os.close(fd)
