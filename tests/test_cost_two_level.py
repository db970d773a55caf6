"""Hierarchical all-reduces and swaps: measured among processes of this machine, fitted, kept and planned with."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_here

from offbeat.cost import measured_collectives as measuring
from offbeat.cost.collectives import Hop, hierarchical
from offbeat.cost.device_profile import DeviceProfile, load_profile
from offbeat.cost.fit import Fitted, Piece
from offbeat.cost.measured_collectives import (
    SWAP,
    Collectives,
    collectives_of_launcher,
    measured_collectives,
    splits,
)
from offbeat.cost.two_level import TwoLevel, TwoLevelPoint, fit_two_level
from offbeat.cost.wires import Wires
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.sim.network import Link

CPU = torch.device("cpu")
SIZES = (1 << 12, 1 << 16)
INSIDE, NODE = Hop(1e-6, 1e-11), Hop(1e-5, 1e-9)  # of a rank inside its node; of a node's link
LINK = Link(bytes_per_second=1e9, seconds=1e-5)
REDUCED = Fitted("ring", (Piece(0, Hop(1.0, 1.0)),), 0.01)


def two_level(inside: Hop = INSIDE, between: Hop = NODE, error: float = 0.0) -> TwoLevel:
    return TwoLevel(Fitted("ring", (Piece(0, inside),), 0.0), Fitted("ring", (Piece(0, between),), 0.0), error)


def formula(nbytes: int, per_node: int, nodes: int) -> float:
    """As written: one rank's way out is its share of the link of its node."""
    share = Hop(NODE.seconds, per_node * NODE.seconds_per_byte)
    return hierarchical(nbytes, per_node, nodes, INSIDE, share).seconds


def points(slower: float = 1.0) -> list[TwoLevelPoint]:
    found = []
    for per_node, nodes in ((2, 4), (4, 2)):
        for nbytes in (10**4, 10**5, 10**6, 10**7):
            inside, between = formula(nbytes, per_node, 1), formula(nbytes, per_node, nodes)
            found.append(TwoLevelPoint(per_node, nodes, nbytes, inside, between - inside, slower * between))
    return found


def test_a_fit_of_the_phases_is_the_formula_for_other_nodes_too() -> None:
    fitted = fit_two_level(points())
    assert fitted.error < 1e-9
    for per_node, nodes in ((2, 4), (8, 16)):
        for nbytes in (10**5, 10**8):
            assert fitted.cost(nbytes, per_node, nodes).seconds == pytest.approx(formula(nbytes, per_node, nodes))


def test_a_fit_is_judged_by_the_whole() -> None:
    assert fit_two_level(points(1.25)).error == pytest.approx(0.2)


def test_nodes_are_groups_of_as_many_workers() -> None:
    assert [(layout.workers, layout.nodes) for layout in splits(8)] == [(8, 2), (8, 4)]
    assert not splits(2)
    assert not splits(5)


def test_wires_charge_it_where_it_is_asked_for_and_there_are_two_levels() -> None:
    wires = Wires(link=LINK, local=LINK, fitted=REDUCED, two_level=two_level(error=0.1), all_reduce_by="hierarchical")
    even, alone, spread = Layout.even(8, 2), Layout.even(8, 1), Layout.even(8, 8)
    assert wires.all_reduce(10**6, even.ranks, even).seconds == pytest.approx(formula(10**6, 4, 2))
    assert replace(wires, slower=2.0).all_reduce(10**6, even.ranks, even).seconds == pytest.approx(
        2 * formula(10**6, 4, 2)
    )
    for layout in (alone, spread, Layout.even(5, 2)):
        assert wires.all_reduce(10, layout.ranks, layout) == REDUCED.cost(10, layout.workers)
    assert replace(wires, all_reduce_by="fastest").all_reduce(10, even.ranks, even) == REDUCED.cost(10, 8)
    assert wires.band == (1 / 1.2, 1.2)
    assert replace(wires, all_reduce_by="fastest").band == (1 / 1.02, 1.02)


def test_what_was_not_measured_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadInput, match=r"hierarchical: the profile has no measured one: .* calibrate --workers 4"):
        Wires(link=LINK, local=LINK, fitted=REDUCED, all_reduce_by="hierarchical")
    with pytest.raises(BadInput, match="--all-reduce tree: those of --link measured are as the library makes them"):
        Wires(link=LINK, local=LINK, fitted=REDUCED, all_reduce_by="tree")


def test_a_profile_keeps_them_and_one_without_is_read(tmp_path: Path) -> None:
    shipped = load_profile("cpu1")
    assert (shipped.hierarchical, shipped.swap, dict(shipped.failed)) == (None, None, {})
    swap = Fitted("swap", (Piece(0, INSIDE), Piece(10, NODE)), 0.1)
    profile = replace(shipped, all_reduce=REDUCED, hierarchical=two_level(), swap=swap, failed={"x": "no"})
    profile.save(tmp_path / "mine.json")
    read = load_profile(str(tmp_path / "mine.json"))
    assert (read.hierarchical, read.swap, dict(read.failed)) == (profile.hierarchical, swap, {"x": "no"})
    before = {
        name: value for name, value in profile.as_dict().items() if name not in ("hierarchical", "swap", "failed")
    }
    assert DeviceProfile.from_dict(json.loads(json.dumps(before))).all_reduce == REDUCED


def test_a_plan_takes_it_from_the_profile(tmp_path: Path) -> None:
    profile = replace(load_profile("cpu1"), all_reduce=REDUCED, hierarchical=two_level(NODE, Hop(1.0, 1e-6)))
    profile.save(tmp_path / "mine.json")

    def steps(*flags: str) -> list[float]:
        run_here(
            ["plan", "--device", str(tmp_path / "mine.json"), "--model", "mlp", "--nodes", "2", "--workers-per-node",
             "2", "--batch", "2", "--link", "measured", "--strategies", "local_sgd:every=1", "--quiet", "--json",
             "p.json", *flags],
            tmp_path,
        )  # fmt: skip
        return [row["exposed_seconds"] for row in json.loads((tmp_path / "p.json").read_text())["rows"]]

    flat, levels = steps(), steps("--all-reduce", "hierarchical")
    assert levels[:2] == flat[:2], "one node"
    assert 2 < levels[2] < 20 < flat[2]


@pytest.mark.timeout(90)
def test_all_are_measured_among_local_workers() -> None:
    seen = set[str]()
    found = measured_collectives(4, CPU, sizes=SIZES, progress=lambda what, _done, _wanted: seen.add(what))
    assert not found.failed
    assert seen == {"all-reduces", "two levels", "swaps"}
    check(found)


def check(found: Collectives) -> None:
    assert found.all_reduce is not None
    assert found.hierarchical is not None
    assert found.swap is not None
    assert found.swap.algorithm == "swap"
    for nbytes in SIZES:
        costs = found.all_reduce.cost(nbytes, 4), found.hierarchical.cost(nbytes, 2, 2), found.swap.cost(nbytes, 2)
        assert all(0 < cost.seconds < 10 for cost in costs)


@pytest.mark.timeout(90)
def test_one_that_fails_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "time_swaps", no_sockets)
    found = measured_collectives(2, CPU, sizes=SIZES)
    assert list(found.failed) == [SWAP]
    assert "OSError: no sockets here" in found.failed[SWAP]
    assert found.swap is None
    assert found.hierarchical is None, "two workers are no two nodes of two"
    assert found.all_reduce is not None


def no_sockets(*_: object, **__: object) -> list[Any]:
    raise OSError("no sockets here")


@pytest.mark.timeout(90)
def test_under_a_launcher_they_are_those_of_its_workers() -> None:
    rows = measuring._among(4, "cpu", of_two_nodes)
    assert rows == [["all-reduce", "hierarchical", "swap"]]


def of_two_nodes(device: torch.device) -> Sequence[Any]:
    """On every rank."""
    found = collectives_of_launcher(Layout.even(4, 2), device, sizes=SIZES)
    assert not found.failed, found.failed
    check(found)
    return [["all-reduce", "hierarchical", "swap"]]
