"""What every Comm must do, as strategies see it. Each case runs on all ranks, in virtual and in real time."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from offbeat.comm import Comm, Steps
from offbeat.errors import BadInput, OffbeatError, Stopped

RANKS = (0, 1, 2, 3)
Case = Callable[[Comm], Steps]


def refused(kind: type[OffbeatError], words: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        call()


def average_gives_the_mean_in_a_fresh_buffer(comm: Comm) -> Steps:
    x = torch.full((5,), float(comm.rank))
    mean = yield comm.average(x, RANKS)
    assert torch.equal(mean, torch.full((5,), 1.5))
    assert torch.equal(x, torch.full((5,), float(comm.rank))), "the caller's tensor was touched"
    mean += comm.rank  # ours alone
    again = yield comm.average(x, RANKS)
    assert torch.equal(again, torch.full((5,), 1.5))


def average_takes_the_value_of_the_moment(comm: Comm) -> Steps:
    x = torch.full((1000,), float(comm.rank))
    work = comm.average(x, RANKS)
    x.fill_(99.0)
    assert torch.equal((yield work), torch.full((1000,), 1.5))


def average_lands_in_out(comm: Comm) -> Steps:
    x, out = torch.full((3,), float(comm.rank)), torch.zeros(3)
    assert (yield comm.average(x, RANKS, out=out)) is out
    assert torch.equal(out, torch.full((3,), 1.5))
    assert (yield comm.average(x, RANKS, out=x)) is x
    assert torch.equal(x, out)


def average_tells_whether_the_wire_waited_for_this_rank(comm: Comm) -> Steps:
    if comm.rank == 3:
        yield comm.sleep(0.05)  # so that the others' first average is under way when they begin the second
    first, second = (comm.average(torch.zeros(4), RANKS) for _ in range(2))
    yield second
    number = comm.average(torch.zeros(()), RANKS)
    assert first.found_idle
    assert not second.found_idle or comm.rank == 3
    assert not number.found_idle, "control messages do not count"
    yield number
    yield first
    third = comm.average(torch.zeros(4), RANKS)
    yield third
    assert third.found_idle, "a number does not keep the wire busy"


def sums_of_whole_numbers_are_exact(comm: Comm) -> Steps:
    x, out = torch.full((5,), 31 - comm.rank, dtype=torch.int8), torch.zeros(5, dtype=torch.int8)
    work = comm.add_up(x, RANKS, out=out)
    x.fill_(99)
    assert (yield work) is out
    assert torch.equal(out, torch.full((5,), 4 * 31 - 6, dtype=torch.int8))
    alone = yield comm.add_up(x, (comm.rank,))
    assert torch.equal(alone, x)
    assert alone is not x
    assert torch.equal((yield comm.add_up(torch.full((3,), 0.5), RANKS)), torch.full((3,), 2.0))


def average_of_one_number(comm: Comm) -> Steps:
    assert (yield comm.average(torch.tensor(float(comm.rank == 2)), RANKS)).item() == 0.25


def averages_are_matched_by_order(comm: Comm) -> Steps:
    works = [comm.average(torch.full((2,), float(comm.rank * 10**k)), RANKS) for k in range(4)]
    for k, work in reversed(list(enumerate(works))):
        assert torch.equal((yield work), torch.full((2,), 1.5 * 10**k))


def work_that_is_done_stays_done(comm: Comm) -> Steps:
    work = comm.average(torch.zeros(1), RANKS)
    yield work
    assert work.done
    assert torch.equal(work.result(), torch.zeros(1))
    assert torch.equal((yield work), torch.zeros(1))


def average_over_this_rank_alone(comm: Comm) -> Steps:
    x = torch.full((2,), float(comm.rank))
    mean = yield comm.average(x, (comm.rank,))
    assert torch.equal(mean, x)
    assert mean is not x


def broadcast_gives_the_source_to_all(comm: Comm) -> Steps:
    x = torch.full((4,), float(comm.rank))
    assert torch.equal((yield comm.broadcast(x, 2, RANKS)), torch.full((4,), 2.0))
    assert torch.equal(x, torch.full((4,), float(comm.rank)))
    yield comm.broadcast(x, 1, RANKS, out=x)
    assert torch.equal(x, torch.full((4,), 1.0))


def swap_exchanges(comm: Comm) -> Steps:
    peer = comm.rank ^ 1
    x, out = torch.full((6,), float(comm.rank)), torch.zeros(6)
    assert (yield comm.swap(x, peer, out=out)) is out
    assert torch.equal(out, torch.full((6,), float(peer)))
    theirs = yield comm.swap(x, peer)
    assert torch.equal(theirs, out)
    assert torch.equal(x, torch.full((6,), float(comm.rank)))


def swaps_are_matched_by_order(comm: Comm) -> Steps:
    peer = comm.rank ^ 2
    works = [comm.swap(torch.full((3,), float(comm.rank + 10 * k)), peer) for k in range(3)]
    for k, work in enumerate(works):
        assert torch.equal((yield work), torch.full((3,), float(peer + 10 * k)))


def shift_sends_one_way_and_receives_from_the_other(comm: Comm) -> Steps:
    for hop in (1, 2, 3):
        to, source = (comm.rank + hop) % 4, (comm.rank - hop) % 4
        x, out = torch.full((6,), float(comm.rank)), torch.zeros(6)
        assert (yield comm.shift(x, to, source, out=out)) is out
        assert torch.equal(out, torch.full((6,), float(source)))
        assert torch.equal((yield comm.shift(x, to, source)), out)
        assert torch.equal(x, torch.full((6,), float(comm.rank)))
        assert (yield comm.shift(x, to, source, out=x)) is x
        assert torch.equal(x, out)


def shifts_are_matched_by_order(comm: Comm) -> Steps:
    to, source = (comm.rank + 1) % 4, (comm.rank - 1) % 4
    works = [comm.shift(torch.full((3,), float(comm.rank + 10 * k)), to, source) for k in range(3)]
    back = comm.shift(torch.full((2,), 100.0 + comm.rank), source, to)
    mean = comm.average(torch.full((2,), float(comm.rank)), RANKS)
    for k, work in reversed(list(enumerate(works))):
        assert torch.equal((yield work), torch.full((3,), float(source + 10 * k)))
    assert torch.equal((yield back), torch.full((2,), 100.0 + to))
    assert torch.equal((yield mean), torch.full((2,), 1.5))


def shift_is_seen_to_be_done(comm: Comm) -> Steps:
    yield comm.average(torch.tensor(0.0), RANKS)
    to, source = (comm.rank + 1) % 4, (comm.rank - 1) % 4
    if comm.rank == 2:
        yield comm.sleep(0.2)
    work = comm.shift(torch.full((2,), float(comm.rank)), to, source)
    if source == 2:
        assert not work.done
        refused(OffbeatError, "shift is not done: wait() for it", work.result)
    while not work.done:  # without waiting for it
        yield comm.sleep(0.01)
    assert torch.equal(work.result(), torch.full((2,), float(source)))
    yield comm.average(torch.tensor(0.0), RANKS)


def shift_needs_others(comm: Comm) -> Steps:
    for to, source in ((comm.rank, (comm.rank + 1) % 4), ((comm.rank + 1) % 4, comm.rank)):
        words = f"rank {comm.rank} is no peer of rank {comm.rank}: choose among"
        refused(BadInput, words, partial(comm.shift, torch.zeros(1), to, source))
    refused(BadInput, f"rank 4 is no peer of rank {comm.rank}: choose", lambda: comm.shift(torch.zeros(1), 4, 4))
    yield from ()


def pair_is_mutual(comm: Comm) -> Steps:
    for _ in range(5):
        peer = yield comm.pair(tuple(rank for rank in RANKS if rank != comm.rank))
        told = yield comm.swap(torch.tensor([float(comm.rank), float(peer)]), peer)
        assert told.tolist() == [peer, comm.rank]
        yield comm.average(torch.tensor(0.0), RANKS)  # all four are paired, so two and two


def pair_keeps_to_the_candidates(comm: Comm) -> Steps:
    partner = 3 - comm.rank
    assert (yield comm.pair((partner,), after=0.02 * comm.rank)) == partner


def sleep_takes_its_time(comm: Comm) -> Steps:
    before = comm.now()
    yield comm.sleep(0.05)
    assert 0.049 <= comm.now() - before < 2.0


def a_process_runs_beside(comm: Comm) -> Steps:
    seen: list[str] = []

    def beside() -> Steps:
        seen.append("began")
        yield comm.sleep(0.02)
        seen.append("ended")

    process = comm.spawn(beside())
    assert seen == [], "it began in the middle of our code"
    yield comm.average(torch.zeros(1), RANKS)
    yield process
    assert seen == ["began", "ended"]
    assert process.done


def stop_interrupts_sleep_and_pair(comm: Comm) -> Steps:
    ends: list[str] = []

    def sleeper() -> Steps:
        try:
            yield comm.sleep(1000.0)
        except Stopped:
            ends.append("sleep")

    def lonely() -> Steps:
        try:
            yield comm.pair(((comm.rank + 1) % 4,), after=1000.0)
        except Stopped:
            ends.append("pair")

    for steps in (sleeper(), lonely()):
        process = comm.spawn(steps)
        yield comm.sleep(0.05)
        process.stop()
        yield process
    assert ends == ["sleep", "pair"]
    yield comm.average(torch.zeros(1), RANKS)


def stop_lets_a_swap_through(comm: Comm) -> Steps:
    got: list[Any] = []
    peer = comm.rank ^ 1

    def swapper() -> Steps:
        theirs = yield comm.swap(torch.full((2,), float(comm.rank)), peer)
        got.append(theirs)
        try:
            yield comm.sleep(1000.0)
        except Stopped:
            got.append("stopped")

    process = comm.spawn(swapper())
    yield comm.sleep(0.02)
    process.stop()
    yield process
    assert torch.equal(got[0], torch.full((2,), float(peer)))
    assert got[1] == "stopped"


def stop_reaches_a_sleep_that_is_over(comm: Comm) -> Steps:
    ends: list[str] = []

    def restless() -> Steps:
        try:
            for _ in range(1000):
                yield comm.sleep(0)
            ends.append("never stopped")
        except Stopped:
            ends.append("stopped")

    def busy() -> Steps:
        nap = comm.sleep(0)
        yield comm.swap(torch.zeros(1), comm.rank ^ 1)
        try:
            yield nap
            ends.append("never stopped")
        except Stopped:
            ends.append("stopped")

    for steps in (restless(), busy()):
        process = comm.spawn(steps)
        process.stop()
        yield process
    assert ends == ["stopped", "stopped"]


def a_stopped_process_need_not_catch_it(comm: Comm) -> Steps:
    def sleeper() -> Steps:
        yield comm.sleep(1000.0)

    process = comm.spawn(sleeper())
    yield comm.sleep(0.02)
    process.stop()
    yield process
    assert process.done
    process.result()


def ranks_must_be_declared(comm: Comm) -> Steps:
    words = "no process group for ranks (0, 1): the strategy must name them in `groups`"
    refused(OffbeatError, words, lambda: comm.average(torch.zeros(1), (0, 1)))
    refused(OffbeatError, words, lambda: comm.broadcast(torch.zeros(1), 0, (0, 1)))
    yield from ()


def pair_needs_candidates(comm: Comm) -> Steps:
    refused(BadInput, "pair() got no candidates: name at least one rank", lambda: comm.pair(()))
    refused(BadInput, f"rank 4 is no peer of rank {comm.rank}: choose among", lambda: comm.pair((4,)))
    refused(BadInput, f"rank {comm.rank} is no peer of", lambda: comm.swap(torch.zeros(1), comm.rank))
    yield from ()


def one_pair_at_a_time(comm: Comm) -> Steps:
    candidate = ((comm.rank + 1) % 4,)

    def lonely() -> Steps:
        search = comm.pair(candidate, after=1000.0)
        words = f"<search for a partner among {candidate}: under way> already: stop() it or wait() for it before"
        refused(BadInput, words, lambda: comm.pair(candidate))
        yield search

    process = comm.spawn(lonely())
    process.stop()
    yield process
    yield comm.average(torch.zeros(1), RANKS)


def swaps_must_be_alike(comm: Comm) -> Steps:
    peer = comm.rank ^ 1
    first = torch.zeros(4 + comm.rank % 2)
    second = torch.zeros(4, dtype=(torch.float32, torch.float64)[comm.rank % 2])
    for x in (first, second):
        words = f"and this rank {x.nbytes} bytes of float.*: both must give the same size and dtype"
        with pytest.raises(BadInput, match=words):
            yield comm.swap(x, peer)
    refused(BadInput, "give an out like x", lambda: comm.swap(torch.zeros(4), peer, out=torch.zeros(5)))
    assert torch.equal((yield comm.swap(torch.full((2,), float(comm.rank)), peer)), torch.full((2,), float(peer)))


def work_under_way_has_no_result(comm: Comm) -> Steps:
    def lonely() -> Steps:
        search = comm.pair(((comm.rank + 1) % 4,), after=1000.0)
        refused(OffbeatError, "is not done: wait() for it", search.result)
        yield search

    process = comm.spawn(lonely())
    refused(OffbeatError, "is not done: wait() for it", process.result)
    refused(OffbeatError, "is not done: wait() for it", comm.sleep(1.0).result)
    process.stop()
    yield process
    yield comm.average(torch.zeros(1), RANKS)


def code_between_yields_is_atomic(comm: Comm) -> Steps:
    """Two processes and the hooks change the same numbers in many small steps; none may see another's half."""
    shared = {"inside": "", "count": 0}

    def hammer(name: str, rounds: int) -> Steps:
        for _ in range(rounds):
            assert shared["inside"] == "", f"{name} runs inside {shared['inside']}"
            shared["inside"] = name
            count = shared["count"]
            for _ in range(300):  # long enough for any scheduler to step in
                count = count + 1 - 1
            shared["count"] = count + 1
            shared["inside"] = ""
            yield comm.sleep(0.0002)

    processes = [comm.spawn(hammer(name, 200)) for name in ("first", "second")]
    yield from hammer("hooks", 200)
    for process in processes:
        yield process
    assert shared["count"] == 600


CASES: list[Case] = [
    average_gives_the_mean_in_a_fresh_buffer,
    average_takes_the_value_of_the_moment,
    average_lands_in_out,
    average_tells_whether_the_wire_waited_for_this_rank,
    sums_of_whole_numbers_are_exact,
    average_of_one_number,
    averages_are_matched_by_order,
    work_that_is_done_stays_done,
    average_over_this_rank_alone,
    broadcast_gives_the_source_to_all,
    swap_exchanges,
    swaps_are_matched_by_order,
    shift_sends_one_way_and_receives_from_the_other,
    shifts_are_matched_by_order,
    shift_is_seen_to_be_done,
    shift_needs_others,
    pair_is_mutual,
    pair_keeps_to_the_candidates,
    sleep_takes_its_time,
    a_process_runs_beside,
    stop_interrupts_sleep_and_pair,
    stop_lets_a_swap_through,
    stop_reaches_a_sleep_that_is_over,
    a_stopped_process_need_not_catch_it,
    ranks_must_be_declared,
    pair_needs_candidates,
    one_pair_at_a_time,
    swaps_must_be_alike,
    work_under_way_has_no_result,
    code_between_yields_is_atomic,
]
