import random
from collections.abc import Callable
from functools import partial
from math import ceil, inf, log2
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.sim import network as network_module
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE
from offbeat.sim.network import TOLERANCE, Link, Network, Transfer, Wire
from offbeat.sim.rates import parse_rate

LINK = Link(bytes_per_second=100.0, seconds=0.5)
LOCAL = Link(bytes_per_second=1000.0, seconds=0.01)
close = partial(pytest.approx, rel=1e-9, abs=1e-12)


def world(workers: int, nodes: int, link: Link | list[Link] = LINK, local: Link = LOCAL) -> Network:
    return Network(Layout.even(workers, nodes), Clock(), link=link, local=local)


class Times(dict[str, float]):
    """When each `then` ran, by name."""

    def __init__(self, network: Network) -> None:
        self.clock = network.clock

    def of(self, name: str) -> Callable[[], None]:
        def then() -> None:
            assert name not in self
            self[name] = self.clock.now

        return then


# One transfer.


def test_one_transfer_takes_bytes_over_rate_plus_latency() -> None:
    net = world(2, 2)
    times = Times(net)
    net.transfer(net.hop(0, 1), 200, times.of("a"), latency=0.5)
    assert times == {}
    net.clock.run()
    assert times == {"a": 2.5}


def test_the_wires_are_free_when_the_bytes_are_through_not_when_they_have_arrived() -> None:
    net = world(2, 2)
    times = Times(net)
    net.transfer(net.hop(0, 1), 100, times.of("a"), latency=0.5)
    net.clock.at(1.0, lambda: net.transfer(net.hop(0, 1), 100, times.of("b")))
    net.clock.run()
    assert times == {"a": 1.5, "b": 2.0}


def test_a_wire_that_is_crossed_twice_counts_twice() -> None:
    net = world(2, 2)
    times = Times(net)
    net.transfer([net.up[0], net.up[0]], 100, times.of("twice"))
    net.clock.run()
    assert times == {"twice": 2.0}

    net = world(2, 2)
    times = Times(net)
    net.transfer([net.up[0], net.up[0]], 100, times.of("twice"))  # 100 / 3 each: 2 + 1 shares
    net.transfer([net.up[0]], 100, times.of("once"))
    net.clock.run()
    assert times == {"twice": close(3.0), "once": close(3.0)}


@pytest.mark.parametrize(("nbytes", "path"), [(0, True), (100, False)])
def test_nothing_to_send_takes_latency_only_but_passes_through_the_clock(nbytes: int, path: bool) -> None:
    net = world(2, 2)
    times = Times(net)
    net.transfer(net.hop(0, 1) if path else (), nbytes, times.of("a"), latency=0.25)
    assert times == {}
    net.clock.run()
    assert times == {"a": 0.25}
    assert net.up[0].transfers == {}


def test_a_cancelled_transfer_makes_room_and_never_completes() -> None:
    net = world(3, 3)
    times = Times(net)
    doomed = net.transfer(net.hop(0, 1), 1000, times.of("doomed"))
    net.transfer(net.hop(0, 2), 100, times.of("kept"))
    net.clock.at(1.0, lambda: net.cancel(doomed))  # kept: 50 bytes in the first second, 50 more at full rate
    net.clock.run()
    assert times == {"kept": 1.5}
    net.cancel(doomed)
    late = net.transfer(net.hop(0, 1), 100, times.of("late"), latency=1.0)
    net.clock.after(1.5, lambda: net.cancel(late))  # the bytes are through, the last has not arrived
    net.clock.run()
    assert times == {"kept": 1.5}


# Sharing.


def test_two_share_a_link_and_the_second_speeds_up_when_the_first_ends() -> None:
    net = world(3, 3)
    times = Times(net)
    net.transfer(net.hop(0, 1), 100, times.of("short"))
    net.transfer(net.hop(0, 2), 300, times.of("long"))
    net.clock.run()
    # 50 each until 2 s; then 200 bytes are left of the long one, at 100
    assert times == {"short": close(2.0), "long": close(4.0)}


def test_a_late_comer_slows_the_first_down() -> None:
    net = world(3, 3)
    times = Times(net)
    net.transfer(net.hop(0, 1), 200, times.of("first"))
    net.clock.at(1.0, lambda: net.transfer(net.hop(0, 2), 50, times.of("second")))
    net.clock.run()
    # first: 100 bytes by 1 s, 50 more while they share until 2 s, the last 50 in half a second
    assert times == {"first": close(2.5), "second": close(2.0)}


def test_a_slow_receiver_leaves_the_rest_to_the_other() -> None:
    slow = Link(bytes_per_second=20.0, seconds=0.0)
    net = world(3, 3, link=[LINK, LINK, slow])
    times = Times(net)
    to_b = net.transfer(net.hop(0, 1), 160, times.of("A to B"))
    to_c = net.transfer(net.hop(0, 2), 60, times.of("A to C"))
    net.clock.step()
    assert (to_b.rate, to_c.rate) == (close(80.0), close(20.0))
    net.clock.run()
    assert times == {"A to B": close(2.0), "A to C": close(3.0)}


def test_a_change_travels_along_a_chain_of_links() -> None:
    # a: 0 to 1; b: 2 to 1; c: 2 to 3. Node 1 takes in 30 at most, so a = b = 15 and c = 85; without a, b = 30, c = 70.
    net = world(4, 4, link=[LINK, Link(bytes_per_second=30.0, seconds=0.0), LINK, LINK])
    times = Times(net)
    a = net.transfer(net.hop(0, 1), 15, times.of("a"))
    b = net.transfer(net.hop(2, 1), 1e3, times.of("b"))
    c = net.transfer(net.hop(2, 3), 1e3, times.of("c"))
    net.clock.step()
    assert [a.rate, b.rate, c.rate] == close([15, 15, 85])
    while "a" not in times or net.clock.upcoming == net.clock.now:
        net.clock.step()
    assert [b.rate, c.rate] == close([30, 70])
    net.clock.run()
    assert times == {"a": close(1.0), "b": close(1 + 985 / 30), "c": close(1 + 915 / 70)}


def test_full_duplex_opposite_directions_do_not_disturb_each_other() -> None:
    net = world(2, 2)
    times = Times(net)
    net.transfer(net.hop(0, 1), 100, times.of("there"))
    net.transfer(net.hop(1, 0), 300, times.of("back"))
    net.clock.run()
    assert times == {"there": 1.0, "back": 3.0}


def test_traffic_inside_a_node_does_not_touch_its_network_link() -> None:
    net = world(4, 2)
    times = Times(net)
    net.swap(0, 1, 1000, times.of("inside"))
    net.swap(1, 2, 100, times.of("between"))
    assert net.up[0].transfers.keys().isdisjoint(net.port_up[0].transfers)
    net.clock.run()
    assert times == {"inside": close(1.01), "between": close(1.5)}


def test_two_ranks_of_a_node_share_its_link() -> None:
    net = world(4, 2)
    times = Times(net)
    net.swap(0, 2, 100, times.of("a"))
    net.swap(1, 3, 100, times.of("b"))
    net.clock.run()
    assert times == {"a": close(2.5), "b": close(2.5)}


# What a strategy asks for.


def test_swap_goes_both_ways_at_once_with_the_slower_link_and_the_greater_latency() -> None:
    net = world(2, 2, link=[LINK, Link(bytes_per_second=50.0, seconds=2.0)])
    times = Times(net)
    net.swap(0, 1, 100, times.of("swap"))
    net.clock.run()
    assert times == {"swap": 4.0}
    assert net.swap_seconds(0, 1, 100) == 4.0


def measured(workers: int, nodes: int) -> Network:
    """Swaps of 10 bytes and more: 2 s and 20 bytes per second; of fewer: 1 s and 5 bytes per second."""
    pieces = (1, Link(bytes_per_second=5.0, seconds=1.0)), (10, Link(bytes_per_second=20.0, seconds=2.0))
    return Network(Layout.even(workers, nodes), Clock(), link=LINK, local=LOCAL, swaps=pieces)


@pytest.mark.parametrize(("nbytes", "seconds"), [(0, 1.0), (5, 2.0), (10, 2.5), (100, 7.0)])
@pytest.mark.parametrize("nodes", [1, 2])
def test_swaps_that_were_measured_take_that_wherever_they_are(nbytes: int, seconds: float, nodes: int) -> None:
    net = measured(2, nodes)
    times = Times(net)
    net.swap(0, 1, nbytes, times.of("swap"))
    net.clock.run()
    assert times == {"swap": close(seconds)}
    assert net.swap_seconds(0, 1, nbytes) == close(seconds)


def test_measured_swaps_share_the_link_of_a_node() -> None:
    net = measured(4, 2)
    times = Times(net)
    net.swap(0, 2, 100, times.of("one"))
    net.swap(1, 3, 100, times.of("other"))
    net.clock.run()
    assert times == {"one": close(2 * 5 + 2), "other": close(2 * 5 + 2)}


LAYOUTS = [Layout.even(1), Layout.even(2), Layout.even(4), Layout.even(2, 2), Layout.even(8, 4), Layout.even(16, 5)]
LAYOUTS += [Layout((0, 1, 0, 2, 1, 0))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.workers}x{layout.nodes}")
@pytest.mark.parametrize("nbytes", [0, 1, 100, 10_000, 1e7])
def test_all_reduce_takes_the_faster_of_ring_and_tree(layout: Layout, nbytes: float) -> None:
    net = Network(layout, Clock(), link=LINK, local=LOCAL)
    times = Times(net)
    net.all_reduce(layout.ranks, nbytes, times.of("all-reduce"))
    assert times == {}
    net.clock.run()
    p, link = layout.workers, LOCAL if layout.nodes == 1 else LINK
    ring = 2 * (p - 1) * link.seconds + 2 * (p - 1) / p * nbytes / link.bytes_per_second
    tree = 2 * ceil(log2(p)) * link.seconds + (2 * nbytes / link.bytes_per_second if p > 1 else 0.0)
    assert times == {"all-reduce": close(min(ring, tree))}
    assert net.all_reduce_seconds(layout.ranks, nbytes) == close(min(ring, tree))


def test_both_regimes_of_all_reduce() -> None:
    net = world(16, 16)
    # ring: 30 hops of 0.5 s; tree: 8 hops. They meet where 11 s = (2 - 30 / 16) nbytes / 100
    assert net.all_reduce_seconds(net.layout.ranks, 8_000) == close(4 + 160)
    assert net.all_reduce_seconds(net.layout.ranks, 80_000) == close(15 + 1500)
    assert net.all_reduce_seconds(net.layout.ranks, 8_800) == close(4 + 176) == close(15 + 165)


def test_a_ring_crosses_the_link_of_a_node_once_out_and_once_in() -> None:
    net = world(6, 2)
    ring = net.all_reduce((5, 0, 3, 1, 4, 2), 1e6, lambda: None)
    names = sorted(wire.name for wire, times in ring.wires for _ in range(times))
    between = ["node 0 down", "node 0 up", "node 1 down", "node 1 up"]
    inside = [f"rank {rank} up" for rank in (0, 1, 3, 4)] + [f"rank {rank} down" for rank in (1, 2, 4, 5)]
    assert names == sorted(between + inside)


def test_a_ring_is_as_fast_as_its_slowest_hop() -> None:
    net = world(3, 3, link=[LINK, Link(bytes_per_second=10.0, seconds=0.1), LINK])
    times = Times(net)
    net.all_reduce((0, 1, 2), 3000, times.of("all"))
    net.all_reduce((0, 2), 0, times.of("pair"))
    net.clock.run()
    assert times == {"all": close(4 * 0.5 + 2 * 2000 / 10 / 1), "pair": close(2 * 0.5)}


def test_a_swap_and_an_all_reduce_contend() -> None:
    net = world(4, 4)
    times = Times(net)
    net.all_reduce(net.layout.ranks, 2000, times.of("all-reduce"))  # ring: 3000 bytes a hop, 6 hops of latency
    net.clock.at(10.0, lambda: net.swap(1, 3, 500, times.of("swap")))
    net.clock.run()
    # alone until 10 s (1000 bytes), at 50 for 10 s while the swap's 500 bytes pass, then the last 1500 alone
    assert times == {"swap": close(20.5), "all-reduce": close(35 + 3.0)}


@pytest.mark.parametrize("source", [0, 2, 5])
def test_broadcast_takes_the_faster_of_chain_and_tree(source: int) -> None:
    net = world(6, 3)
    ranks = net.layout.ranks
    for nbytes in (1, 10_000):
        times, start = Times(net), net.clock.now
        net.broadcast(source, ranks, nbytes, times.of("broadcast"))
        net.clock.run()
        chain = 2 * LINK.seconds + 3 * LOCAL.seconds + nbytes / 100
        tree = 3 * (LINK.seconds + nbytes / 100)
        assert times["broadcast"] - start == close(min(chain, tree)) == net.broadcast_seconds(source, ranks, nbytes)
    net = world(64, 64)
    assert net.broadcast_seconds(source, net.layout.ranks, 10) == close(6 * (0.5 + 0.1))
    assert net.broadcast_seconds(source, net.layout.ranks, 1e6) == close(63 * 0.5 + 1e4)
    assert net.broadcast_seconds(source, (source,), 1e6) == 0.0


@pytest.mark.parametrize(
    "ask",
    [
        lambda net: net.swap(1, 1, 10, print),
        lambda net: net.swap(0, 4, 10, print),
        lambda net: net.swap(-1, 0, 10, print),
        lambda net: net.swap(0, 1, -1, print),
        lambda net: net.swap(0, 1, float("nan"), print),
        lambda net: net.all_reduce((), 10, print),
        lambda net: net.all_reduce((0, 0), 10, print),
        lambda net: net.all_reduce((0, 9), 10, print),
        lambda net: net.broadcast(3, (0, 1), 10, print),
        lambda net: Network(net.layout, net.clock, link=[LINK], local=LOCAL),
        lambda _: Link(bytes_per_second=0, seconds=0),
        lambda _: Link(bytes_per_second=inf, seconds=0),
        lambda _: Link(bytes_per_second=1, seconds=-1),
        lambda _: Link(bytes_per_second=1, seconds=float("nan")),
    ],
)
def test_bad_input_is_one_sentence_with_a_remedy(ask: Callable[[Network], object]) -> None:
    net = world(4, 2)
    with pytest.raises(BadInput, match=r"^[^\n]+: (give|broadcast) [^\n]+$"):
        ask(net)
    assert net.clock.pending == 0


# Max-min, against a water-filling written out.


def water_filling(capacity: dict[str, float], paths: dict[int, list[str]]) -> dict[int, float]:
    """Raise all rates together; those that cross a wire which is full stay as they are."""
    rates = dict.fromkeys(paths, 0.0)
    rising = set(paths)
    while rising:
        room = {
            wire: (capacity[wire] - sum(rates[t] * path.count(wire) for t, path in paths.items()))
            / sum(path.count(wire) for t, path in paths.items() if t in rising)
            for wire in capacity
            if any(wire in paths[t] for t in rising)
        }
        more = min(room.values())
        for t in rising:
            rates[t] += more
        full = {wire for wire, left in room.items() if left <= more * (1 + 1e-9) + 1e-12}
        rising = {t for t in rising if full.isdisjoint(paths[t])}
    return rates


def fluid(capacity: dict[str, float], jobs: list[tuple[float, float, list[str]]]) -> list[float]:
    """When each (start, nbytes, path) is through: all rates anew at every start and end."""
    left, done, now = {}, [0.0] * len(jobs), 0.0
    waiting = sorted(range(len(jobs)), key=lambda i: jobs[i][0])
    while waiting or left:
        rates = water_filling(capacity, {i: jobs[i][2] for i in left})
        end = min((now + left[i] / rates[i] for i in left), default=inf)
        start = jobs[waiting[0]][0] if waiting else inf
        until = min(start, end)
        for i in list(left):
            left[i] -= rates[i] * (until - now)
            if left[i] <= 1e-9 * jobs[i][1]:
                done[i] = until
                del left[i]
        now = until
        while waiting and jobs[waiting[0]][0] <= now:
            i = waiting.pop(0)
            left[i] = jobs[i][1]
    return done


speeds = st.integers(1, 10).map(float)
jobs_over_wires = st.integers(2, 5).flatmap(
    lambda nodes: st.tuples(
        st.lists(speeds, min_size=nodes, max_size=nodes),
        st.lists(
            st.tuples(
                st.integers(0, 12).map(lambda quarter: quarter / 4),  # start; ties are likely
                st.integers(1, 40).map(float),  # nbytes
                st.lists(st.tuples(st.booleans(), st.integers(0, nodes - 1)), min_size=1, max_size=6),
            ),
            min_size=1,
            max_size=12,
        ),
    )
)


@settings(max_examples=300, deadline=None)
@given(jobs_over_wires)
def test_random_transfers_are_max_min_fair_at_every_time_and_all_bytes_arrive(
    case: tuple[list[float], list[tuple[float, float, list[tuple[bool, int]]]]],
) -> None:
    capacities, jobs = case
    net = world(len(capacities), len(capacities), [Link(bytes_per_second=c, seconds=0.0) for c in capacities])
    wires = [*net.up, *net.down]
    capacity = {wire.name: wire.capacity for wire in wires}
    paths = [[(net.up if up else net.down)[node] for up, node in path] for _, _, path in jobs]
    times = Times(net)
    running: dict[int, Transfer] = {}
    delivered = [0.0] * len(jobs)

    def start(i: int) -> None:
        running[i] = net.transfer(paths[i], jobs[i][1], times.of(str(i)))

    for i, (at, _, _) in enumerate(jobs):
        net.clock.at(at, partial(start, i))
    while net.clock.step():
        now, until = net.clock.now, net.clock.upcoming
        if until == now:
            continue  # the instant is not over
        active = {i: t for i, t in running.items() if str(i) not in times}
        best = water_filling(capacity, {i: [wire.name for wire in paths[i]] for i in active})
        assert {i: t.rate for i, t in active.items()} == close(best)
        for wire in wires:
            load = sum(t.rate * paths[i].count(wire) for i, t in active.items())
            assert load <= wire.capacity * (1 + 1e-9)
            assert wire.load == close(load)
        if until < inf:
            for i, t in active.items():
                delivered[i] += t.rate * (until - now)
    assert delivered == pytest.approx([nbytes for _, nbytes, _ in jobs], rel=1e-9)
    named = [(at, nbytes, [wire.name for wire in paths[i]]) for i, (at, nbytes, _) in enumerate(jobs)]
    assert [times[str(i)] for i in range(len(jobs))] == pytest.approx(fluid(capacity, named), rel=1e-8)
    assert all(not wire.transfers and wire.load == 0 for wire in wires)


# Many at once.


def gossip(workers: int, nodes: int, swaps: int, *, seed: int = 0) -> tuple[list[float], float]:
    """Swaps between random ranks that start at given times: how long each takes, and the greatest load seen."""
    net = Network(Layout.even(workers, nodes), Clock(), link=ETHERNET, local=INSIDE_A_NODE)
    clock, rng, took, start, load = net.clock, random.Random(seed), [0.0] * swaps, 0.0, 0.0
    nbytes = 1e6
    per_second = 0.8 * nodes * net.up[0].capacity / nbytes / 2  # 80 % of what the links carry

    def begin(i: int, a: int, b: int, size: float) -> None:
        then = clock.now
        net.swap(a, b, size, lambda: took.__setitem__(i, clock.now - then))

    for i in range(swaps):
        start += rng.expovariate(per_second)
        a, b = rng.sample(range(workers), 2)
        clock.at(start, partial(begin, i, a, b, nbytes * rng.uniform(0.5, 1.5)))
    while clock.step():
        if clock.upcoming > clock.now and rng.random() < 0.05:
            load = max(load, *(wire.load / wire.capacity for wire in net.up + net.down))
    return took, load


def test_two_runs_are_identical_to_the_last_bit() -> None:
    assert gossip(64, 8, 400) == gossip(64, 8, 400)


def test_many_that_hang_together_are_rated_within_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, load = gossip(256, 32, 1500)
    assert load < 1 + 3 * TOLERANCE
    monkeypatch.setattr(network_module, "EXACT_TRANSFERS", 10**9)
    exact, load = gossip(256, 32, 1500)
    assert load < 1 + 1e-9
    assert fast != exact  # the approximation was at work
    errors = [a / b - 1 for a, b in zip(fast, exact, strict=True)]
    assert abs(sum(errors) / len(errors)) < TOLERANCE / 5
    assert (sum(e * e for e in errors) / len(errors)) ** 0.5 < TOLERANCE


def test_a_transfer_alone_on_its_wires_needs_no_rating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "_rate", lambda _: pytest.fail("no wire is shared"))
    net = world(64, 64)
    for rank in range(0, 64, 2):
        net.swap(rank, rank + 1, 100 + rank, partial(net.swap, rank, rank + 1, 100, lambda: None))
    net.clock.run()


def test_the_cost_of_a_swap_does_not_grow_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [0]
    set_level = Network._set_level

    def counted(net: Network, wire: Wire, tolerance: float) -> None:
        levels[0] += 1
        set_level(net, wire, tolerance)

    monkeypatch.setattr(Network, "_set_level", counted)
    costs = []
    for nodes in (16, 64):
        levels[0] = 0
        gossip(8 * nodes, nodes, 40 * nodes)
        costs.append(levels[0] / (40 * nodes))
    assert costs[1] < 2 * costs[0]


def test_thousands_of_lone_swaps_in_little_time() -> None:
    net = Network(Layout.even(4096, 4096), Clock(), link=ETHERNET, local=INSIDE_A_NODE)
    left = [20_000]

    def again(rank: int) -> None:
        left[0] -= 1
        if left[0] > 0:
            net.swap(rank, rank + 1, 1e6, partial(again, rank))

    for rank in range(0, 4096, 2):
        again(rank)
    start = perf_counter()
    net.clock.run()
    assert perf_counter() - start < 4  # about 0.2 s on an idle core


def test_rings_over_the_same_links_are_cheap_to_rate() -> None:
    layout = Layout.even(2048, 256)
    net = Network(layout, Clock(), link=LINK, local=LOCAL)
    times = Times(net)
    for local_rank in range(8):
        ranks = tuple(layout.on(node)[local_rank] for node in range(256))
        net.all_reduce(ranks, 1e6, times.of(str(local_rank)))
    start = perf_counter()
    net.clock.run()
    assert perf_counter() - start < 4  # about 0.03 s on an idle core
    # eight trees of 2e6 bytes a wire share 100 bytes/s, then 2 x 8 hops of latency
    assert list(times.values()) == close([8 * 2e4 + 8.0] * 8)


# Rates as people write them.


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("800bit", 100.0),
        ("8kbit", 1e3),
        ("100mbit", 12.5e6),
        ("10 Gbit", 1.25e9),
        ("1tbit", 125e9),
        ("12MB/s", 12e6),
        ("3kB/s", 3e3),
        ("1.5GB/s", 1.5e9),
        ("64B/s", 64.0),
        (" 2.5e3 kbit ", 312_500.0),
    ],
)
def test_parse_rate(text: str, bytes_per_second: float) -> None:
    assert parse_rate(text) == close(bytes_per_second)


@pytest.mark.parametrize(
    "text", ["", "1000", "-5mbit", "1e999", "nan", "inf", "12MB", "12Mb/s", "100mbps", "1.2.3mbit", "mbit", "5 x"]
)
def test_parse_rate_names_the_value_and_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"^'.*' is not a rate: give .*100mbit or 12MB/s$"):
        parse_rate(text)
