"""Collectives: the formulas, that they are what the virtual network charges, and that a fit finds them again."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.cost.collectives import Cost, Hop, fastest, hierarchical, ring, swap, tree
from offbeat.cost.fit import Fitted, Piece, Point, fit
from offbeat.cost.wires import Wires
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.sim.clock import Clock
from offbeat.sim.network import Link, Network

HOP = Hop(1e-5, 1e-9)
FAST = Hop(1e-6, 1e-11)


def test_formulas_as_written() -> None:
    assert ring(8e6, 4, HOP) == pytest.approx((6e-5, 2 * 3 / 4 * 8e6 * 1e-9))
    assert tree(8e6, 5, HOP) == pytest.approx((2 * 3 * 1e-5, 2 * 8e6 * 1e-9))
    assert swap(8e6, HOP) == pytest.approx((1e-5, 8e-3))
    latency = 2 * 7 * 1e-6 + 2 * 3 * 1e-5
    transfer = 2 * 7 / 8 * 8e6 * 1e-11 + 2 * 3 / 4 * 1e6 * 1e-9
    assert hierarchical(8e6, 8, 4, FAST, HOP) == pytest.approx((latency, transfer))


def test_one_rank_has_nothing_to_reduce_and_one_node_is_a_ring() -> None:
    assert ring(8e6, 1, HOP) == tree(8e6, 1, HOP) == hierarchical(8e6, 1, 1, FAST, HOP) == Cost(0.0, 0.0)
    assert hierarchical(8e6, 8, 1, FAST, HOP) == ring(8e6, 8, FAST)
    assert hierarchical(8e6, 1, 4, FAST, HOP) == ring(8e6, 4, HOP)


def test_many_ranks_take_the_tree_for_little_and_the_ring_for_much_among_few() -> None:
    assert fastest(1e3, 1024, HOP) == tree(1e3, 1024, HOP)
    assert fastest(1e9, 4, HOP) == ring(1e9, 4, HOP)


@settings(deadline=None, max_examples=40)
@given(
    workers=st.integers(1, 40),
    per_node=st.integers(1, 8),
    nbytes=st.integers(1, 10**9),
    local_rate=st.sampled_from([1e8, 1e10]),
)
def test_wires_cost_what_the_virtual_network_charges(
    workers: int, per_node: int, nbytes: int, local_rate: float
) -> None:
    layout = Layout.even(workers, -(-workers // per_node))
    link, local = Link(bytes_per_second=1e9, seconds=1e-5), Link(bytes_per_second=local_rate, seconds=2e-6)
    network = Network(layout, Clock(), link=link, local=local)
    cost = Wires(link=link, local=local).all_reduce(nbytes, layout.ranks, layout)
    assert cost.seconds == pytest.approx(network.all_reduce_seconds(layout.ranks, nbytes), rel=1e-12)


def test_the_slower_links_hold_the_group_back() -> None:
    layout, link = Layout.even(8, 2), Link(bytes_per_second=1e9, seconds=1e-5)
    fast, slow = Link(bytes_per_second=1e10, seconds=1e-6), Link(bytes_per_second=1e8, seconds=1e-6)
    assert Wires(link=link, local=fast).where(layout.ranks, layout) == "inter-node"
    assert Wires(link=link, local=slow).where(layout.ranks, layout) == "intra-node"
    assert Wires(link=link, local=slow).where((0, 4), layout) == "inter-node", "no two of them share a node"
    assert Wires(link=link, local=fast).where(layout.on(0), layout) == "intra-node"


def test_hierarchical_wires_share_the_link_of_a_node() -> None:
    link, local = Link(bytes_per_second=1e9, seconds=1e-5), Link(bytes_per_second=1e11, seconds=1e-6)
    wires = Wires(link=link, local=local, all_reduce_by="hierarchical")
    layout = Layout.even(32, 4)
    inside, share = Hop(1e-6, 1e-11), Hop(1e-5, 8e-9)
    assert wires.all_reduce(8e6, layout.ranks, layout) == hierarchical(8e6, 8, 4, inside, share)
    uneven = Layout.even(5, 2)
    assert wires.all_reduce(8e6, uneven.ranks, uneven) == fastest(8e6, 5, Hop(1e-5, 1e-9)), "nodes must be alike"
    ring_only = Wires(link=link, local=local, all_reduce_by="ring")
    assert ring_only.all_reduce(8, layout.ranks, layout) == ring(8, 32, Hop(1e-5, 1e-9))
    with pytest.raises(BadInput, match="no way to all-reduce 'rings': did you mean 'ring'"):
        Wires(link=link, local=local, all_reduce_by="rings")


def points(noise: float) -> list[Point]:
    """A ring with another hop from 1 MiB on."""
    draws = random.Random(0)
    found = []
    for ranks in (2, 4, 8):
        for power in range(10, 27):
            hop = Hop(20e-6, 2e-9) if power < 20 else Hop(200e-6, 0.5e-9)
            seconds = ring(1 << power, ranks, hop).seconds * (1 + draws.uniform(-noise, noise))
            found.append(Point(ranks, 1 << power, seconds))
    return found


def test_fit_finds_the_pieces_again() -> None:
    fitted = fit(points(0.0))
    assert fitted.algorithm == "ring"
    assert [piece.nbytes for piece in fitted.pieces] == [1 << 10, 1 << 20]
    assert fitted.pieces[1].hop.seconds == pytest.approx(200e-6)
    assert fitted.pieces[1].hop.seconds_per_byte == pytest.approx(0.5e-9)
    assert fitted.error < 1e-9
    assert Fitted.from_dict(fitted.as_dict()) == fitted


def test_fit_of_noisy_points_is_as_good_as_the_noise() -> None:
    fitted = fit(points(0.08))
    assert 0.01 < fitted.error < 0.06
    exact = points(0.0)
    wrong = max(abs(fitted.cost(point.nbytes, point.ranks).seconds / point.seconds - 1) for point in exact)
    assert wrong < 0.08, "small and large messages count alike: errors are relative"


def test_a_disturbed_point_does_not_bend_the_line() -> None:
    exact = [Point(ranks, n, ring(n, ranks, HOP).seconds) for ranks in (2, 4, 8) for n in (10**4, 10**5, 10**6, 10**7)]
    disturbed = [
        point._replace(seconds=1.6 * point.seconds) if at in (1, 7) else point for at, point in enumerate(exact)
    ]
    fitted = fit(disturbed, ["ring"])
    wrong = max(abs(fitted.cost(point.nbytes, point.ranks).seconds / point.seconds - 1) for point in exact)
    assert wrong < 0.01


def test_fit_knows_the_tree() -> None:
    measured = [Point(ranks, n, tree(n, ranks, HOP).seconds) for ranks in (2, 8, 64) for n in (1000, 10**5, 10**7)]
    assert fit(measured).algorithm == "tree"


def test_sizes_outside_the_points_take_the_nearest_piece() -> None:
    fitted = Fitted("ring", (Piece(1000, HOP), Piece(10**6, FAST)), 0.0)
    assert fitted.cost(1, 2) == ring(1, 2, HOP)
    assert fitted.cost(10**9, 2) == ring(10**9, 2, FAST)


@pytest.mark.parametrize("bad", [[], [Point(2, 8, 1.0)], [Point(1, 8, 1.0), Point(1, 9, 1.0)], [Point(2, 8, 0.0)] * 2])
def test_too_little_to_fit_is_refused(bad: list[Point]) -> None:
    with pytest.raises(BadInput, match="do not tell a latency from a rate"):
        fit(bad)
