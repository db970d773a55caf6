"""The order of turns, without a wire: parcels and averages are made of nothing."""

from collections.abc import Generator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offbeat.roster import FEW_RIDES, RIDES, Roster


@dataclass(eq=False)
class Parcel:
    name: str
    in_flight: bool = False
    found_idle: bool = False
    sent_at: int = 0


@dataclass
class Comm:
    """Every number comes back as it was sent, or with what another rank adds to the mean."""

    others_are_dry: bool = False
    others_have_finished: bool = False  # as many as there are others
    layout: Any = field(default_factory=lambda: SimpleNamespace(ranks=(0, 1)))
    step: int = 0
    said: list[float] = field(default_factory=list)

    def average(self, number: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        assert number.ndim == 0, "what is no control message counts as a parcel on the wire"
        self.said.append(number.item())
        mean = number / 2 if self.others_have_finished else number
        return mean + (self.others_are_dry and len(self.said) % 4 == 1)

    @property
    def asked(self) -> list[float]:
        """Each time: whether too many rides were dry."""
        return self.said[::4]


def finished(steps: Generator[Any, Any, Any], waited: list[Any]) -> Any:
    """Its value; what it waited for is noted, and was there at once."""
    try:
        work = next(steps)
        while True:
            waited.append(work)
            work = steps.send(work)
    except StopIteration as stop:
        return stop.value


def rounds(roster: Roster, comm: Comm, count: int, *, dry: int = 0, late: int = 0) -> str:
    """So many sends, one in every step, that come back so many steps late; the first so many rides of the small tensors
    are awaited, with the wire idle when they begin."""
    order = ""
    for _ in range(count):
        comm.step += 1
        parcel: Any = roster.next
        if parcel.name == "s":
            if dry > 0:
                parcel.in_flight = True
                roster.wait(by_request=False)
            parcel.in_flight, parcel.found_idle = False, dry > 0
            dry -= 1
        waited: list[Any] = []
        assert finished(roster.take(comm, comm.step), waited) is parcel  # type: ignore[arg-type]
        assert len(waited) in (0, 4)
        parcel.sent_at = comm.step
        roster.arrived(parcel, comm.step + late)
        order += parcel.name
    return order


ASKED_ONCE = FEW_RIDES + 1  # this ride asks, the next obeys
ASKED_TWICE = ASKED_ONCE + RIDES


def made(parts: int, spacing: int) -> Roster:
    return Roster([Parcel(chr(ord("0") + part)) for part in range(parts)], Parcel("s"), spacing)  # type: ignore[misc, arg-type]


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
    rounds(roster, comm, 3 * (ASKED_TWICE + 1), dry=dry)
    assert comm.asked == [0.0, float(dry > 1)]
    order = rounds(roster, comm, 20)
    assert [len(run) for run in order.split("s")[:3]] == [then] * 3


@pytest.mark.parametrize(("late", "then"), [(1, 2), (3, 2), (4, 19), (9, 19)])
def test_they_come_seldom_where_they_are_late(late: int, then: int) -> None:
    """A ride in every third step becomes one in twenty."""
    roster, comm = made(30, 2), Comm()
    assert rounds(roster, comm, 3 * (ASKED_ONCE + 1), late=late) == "01s23s45s67s"
    order = rounds(roster, comm, 150, late=late)
    assert {len(run) for run in order.split("s")[5:-1]} == {then}


def test_between_late_and_on_time_all_stays_as_it_is() -> None:
    """Or they would come often and seldom in turns, where the one makes them late and the other does not."""
    roster, comm = made(30, 2), Comm()
    rounds(roster, comm, 100, late=4)
    order = rounds(roster, comm, 300, late=3)
    assert {len(run) for run in order.split("s")[1:-1]} == {19}


def test_those_that_have_finished_are_not_asked_how_late_they_are() -> None:
    roster, comm = made(30, 2), Comm(others_have_finished=True)
    order = rounds(roster, comm, 200, late=4)
    assert len(order.split("s")[-2]) == 19


def test_dry_rides_long_ago_are_forgotten() -> None:
    roster, comm = made(30, 2), Comm()
    for _ in range(10):
        rounds(roster, comm, 21 * RIDES, dry=1, late=4)
    order = rounds(roster, comm, 600, late=1)
    assert len(order.split("s")[-2]) == 2, "as often as at first"


def test_they_come_often_again_when_they_are_on_time_again() -> None:
    roster, comm = made(30, 2), Comm()
    rounds(roster, comm, 100, late=5)
    order = rounds(roster, comm, 300, late=1)
    assert len(order.split("s")[1]) == 19
    assert len(order.split("s")[-2]) == 2


def test_late_ones_come_at_least_once_in_a_turn() -> None:
    roster, comm = made(6, 2), Comm()
    order = rounds(roster, comm, 80, late=5)
    assert {len(run) for run in order.split("s")[4:-1]} == {6}


def test_another_ranks_dry_wire_counts_as_well() -> None:
    roster = made(9, 2)
    rounds(roster, Comm(others_are_dry=True), 3 * (ASKED_ONCE + 1))
    assert rounds(roster, Comm(), 5) == "8012s"


def test_they_come_at_least_once_in_a_turn_and_then_nothing_is_asked_any_more() -> None:
    roster, comm = made(6, 4), Comm(others_are_dry=True)
    rounds(roster, comm, 5 * 4 + 100)
    assert len(comm.asked) == 1
    order = rounds(roster, comm, 21)
    assert all(len(run) == 6 for run in order.split("s")[1:-1])


@pytest.mark.parametrize("by_request", [False, True])
def test_a_wait_by_request_is_not_the_wires_fault(by_request: bool) -> None:
    roster, comm = made(9, 2), Comm()
    for _ in range(ASKED_TWICE):
        rounds(roster, comm, 2)
        small: Any = roster.next
        small.in_flight = small.found_idle = True
        roster.wait(by_request=by_request)
        small.in_flight = False
        finished(roster.take(comm, 0), [])  # type: ignore[arg-type]
        roster.arrived(small, 0)
    assert comm.asked == [0.0, float(not by_request)]


def test_in_the_end_nothing_is_under_way() -> None:
    roster, comm = made(9, 2), Comm()
    rounds(roster, comm, 3 * ASKED_ONCE)
    assert comm.asked
    for flags in (4, 0):
        waited: list[Any] = []
        finished(roster.settle(), waited)
        assert len(waited) == flags
