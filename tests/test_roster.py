"""The order of turns, without a wire: parcels and averages are made of nothing."""

from collections.abc import Generator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offbeat.roster import Roster


@dataclass(eq=False)
class Parcel:
    name: str
    in_flight: bool = False
    found_idle: bool = False


@dataclass
class Comm:
    """Every flag comes back as it was sent, or as another rank had it."""

    others_are_dry: bool = False
    layout: Any = field(default_factory=lambda: SimpleNamespace(ranks=(0, 1)))
    asked: list[float] = field(default_factory=list)

    def average(self, flag: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        self.asked.append(flag.item())
        return flag + self.others_are_dry


def finished(steps: Generator[Any, Any, Any], waited: list[Any]) -> Any:
    """Its value; what it waited for is noted, and was there at once."""
    try:
        work = next(steps)
        while True:
            waited.append(work)
            work = steps.send(work)
    except StopIteration as stop:
        return stop.value


def rounds(roster: Roster, comm: Comm, count: int, *, dry: int = 0) -> str:
    """So many sends, the first so many rides among them awaited, with the wire idle when they begin."""
    order = ""
    for _ in range(count):
        parcel: Any = roster.next
        if parcel.name == "s":
            if dry > 0:
                parcel.in_flight = True
                roster.wait(by_request=False)
            parcel.in_flight, parcel.found_idle = False, dry > 0
            dry -= 1
        waited: list[Any] = []
        assert finished(roster.take(comm), waited) is parcel  # type: ignore[arg-type]
        assert len(waited) <= 1
        roster.arrived(parcel)
        order += parcel.name
    return order


def made(parts: int, spacing: int) -> Roster:
    return Roster([Parcel(str(part)) for part in range(parts)], Parcel("s"), spacing)  # type: ignore[misc, arg-type]


def test_small_tensors_come_after_every_few_parts() -> None:
    roster = made(5, 2)
    assert rounds(roster, Comm(), 15) == "01s23s40s12s34s"
    assert len(roster) == 6


def test_without_small_tensors_parts_take_turns_and_nothing_is_asked() -> None:
    comm = Comm()
    roster = Roster([Parcel("0"), Parcel("1")])  # type: ignore[list-item]
    assert rounds(roster, comm, 5) == "01010"
    assert len(roster) == 2
    assert not comm.asked


@pytest.mark.parametrize(("dry", "then"), [(0, 2), (1, 2), (2, 4), (4, 4)])
def test_they_are_spaced_out_when_too_many_rides_found_the_wire_dry(dry: int, then: int) -> None:
    roster, comm = made(9, 2), Comm()
    rounds(roster, comm, 3 * 6, dry=dry)  # four rides, one that asks, one that obeys
    assert comm.asked == [float(dry > 1)]
    order = rounds(roster, comm, 20)
    assert [len(run) for run in order.split("s")[:3]] == [then] * 3


def test_another_ranks_dry_wire_counts_as_well() -> None:
    roster = made(9, 2)
    rounds(roster, Comm(others_are_dry=True), 3 * 6)
    assert rounds(roster, Comm(), 5) == "3456s"


def test_they_come_at_least_once_in_a_turn_and_then_nothing_is_asked_any_more() -> None:
    roster, comm = made(6, 4), Comm(others_are_dry=True)
    rounds(roster, comm, 5 * 4 + 100)
    assert len(comm.asked) == 1
    order = rounds(roster, comm, 21)
    assert all(len(run) == 6 for run in order.split("s")[1:-1])


@pytest.mark.parametrize("by_request", [False, True])
def test_a_wait_by_request_is_not_the_wires_fault(by_request: bool) -> None:
    roster, comm = made(9, 2), Comm()
    for _ in range(5):
        rounds(roster, comm, 2)
        small: Any = roster.next
        small.in_flight = small.found_idle = True
        roster.wait(by_request=by_request)
        small.in_flight = False
        finished(roster.take(comm), [])  # type: ignore[arg-type]
        roster.arrived(small)
    assert comm.asked == [float(not by_request)]


def test_in_the_end_nothing_is_under_way() -> None:
    roster, comm = made(9, 2), Comm()
    rounds(roster, comm, 3 * 5)
    assert comm.asked
    for flags in (1, 0):
        waited: list[Any] = []
        finished(roster.settle(), waited)
        assert len(waited) == flags
