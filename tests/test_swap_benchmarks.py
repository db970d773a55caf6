"""The benchmarks of swaps: what they move is checked, and the slower side counts."""

import importlib
from types import ModuleType

import pytest
import torch
from commands import ROOT

from offbeat.emulate import missing


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def swap() -> ModuleType:
    return importlib.import_module("swap")


def test_what_travels_is_another_in_every_round_turn_and_rank(swap: ModuleType) -> None:
    sent = [swap.payload(3000, rank, repeat, turn) for rank in (0, 1) for repeat in range(8) for turn in range(5)]
    assert all(not bool((a == b).any()) for i, a in enumerate(sent) for b in sent[:i])
    assert all(bool((x.diff() == 1).all()) for x in sent), "and at every place, as exact numbers"
    most = swap.payload(70_000, 1, 7, 7)
    assert torch.equal(most, most.round())
    assert most.max() < 1 << 24


@pytest.mark.timeout(120)
def test_all_methods_move_what_they_should_on_one_host(swap: ModuleType) -> None:
    seconds = swap.measure(40_000, 2)
    assert {len(times) for times in seconds.values()} == {2}
    said = swap.summary(seconds, 40_000)
    assert said["gigabytes_per_second_each_way"].keys() == seconds.keys()
    assert len(seconds) == 5


@pytest.mark.timeout(120)
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_swap_between_two_nodes_is_held_against_bare_tcp() -> None:
    wire = importlib.import_module("wire")
    figures = wire.measure("100mbit", 0.05, 2)
    assert {len(rates) for rates in figures["rates"].values()} == {2}
    assert 1 < figures["wire_bytes_per_payload_byte"] < 1.5, "headers, and nothing twice"
