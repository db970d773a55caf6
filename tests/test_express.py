"""When the small tensors travel, without a wire: averages are made of nothing."""

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offbeat.express import FEW_RIDES, REST, RIDES, Express, express_lane
from offbeat.layout import Layout

LANE = (1, 0)


@dataclass(eq=False)
class Parcel:
    in_flight: bool = False
    sent_at: int = 0
    merges: int = 0

    def send(self, comm: object, ranks: tuple[int, ...], step: int, *, training: bool) -> None:
        assert ranks == LANE
        assert not self.in_flight
        self.in_flight, self.sent_at = True, step

    def receive(self) -> Generator[Any, Any, None]:
        self.in_flight = False
        yield from ()

    def merge(self) -> None:
        self.merges += 1


@dataclass
class Comm:
    """Every number comes back as it was sent, or as if another rank had said nothing."""

    another_has_finished: bool = False
    layout: Any = field(default_factory=lambda: SimpleNamespace(ranks=(0, 1)))
    step: int = 0
    said: list[float] = field(default_factory=list)

    def average(self, number: torch.Tensor, ranks: tuple[int, ...]) -> torch.Tensor:
        assert ranks == LANE
        assert number.ndim == 0, "what is no control message counts as a parcel on the wire"
        self.said.append(number.item())
        return number / 2 if self.another_has_finished else number


def finished(steps: Generator[Any, Any, Any]) -> int:
    """How much it waited for; that was there at once."""
    waited, work = 0, next(steps, None)
    while work is not None:
        waited += 1
        try:
            work = steps.send(work)
        except StopIteration:
            work = None
    return waited


def steps_of_rides(express: Express, comm: Comm, steps: int, *, late: int, parts: int = 1, later: int = 0) -> list[int]:
    """So many steps, in each of which so many large parts are sent and what was sent so many steps ago comes back;
    one ride in two takes `later` steps more."""
    rides: list[int] = []
    parcel: Any = express.parcel
    for _ in range(steps):
        comm.step += 1
        if parcel.in_flight and comm.step - parcel.sent_at >= late + later * (len(rides) % 2):
            finished(express.receive(comm.step))
        for _ in range(parts):
            express.large_sent()
        if express.may_send:
            assert finished(express.send(comm, comm.step, training=True)) in (0, 3)  # type: ignore[arg-type]
            rides.append(comm.step)
    return rides


def made(spacing: int = 1, at_most: int = 100) -> Express:
    express = Express(Parcel(), LANE)  # type: ignore[arg-type]
    express.space(spacing, at_most)
    return express


def apart(rides: list[int]) -> set[int]:
    return {after - before for before, after in pairwise(rides)}


def test_its_lane_has_all_ranks_and_is_another_than_theirs() -> None:
    layout = Layout.even(4, 2)
    assert sorted(express_lane(layout)) == list(layout.ranks)
    assert express_lane(layout) != layout.ranks


def test_what_is_on_time_travels_in_every_step() -> None:
    express, comm = made(), Comm()
    assert steps_of_rides(express, comm, 50, late=1) == list(range(1, 51))
    assert express.parcel.merges == 49  # type: ignore[attr-defined]


def test_a_ride_waits_until_it_is_back_and_until_enough_parts_have_been_sent() -> None:
    assert apart(steps_of_rides(made(), Comm(), 50, late=2)) == {2}
    assert apart(steps_of_rides(made(spacing=4), Comm(), 50, late=1)) == {4}
    assert apart(steps_of_rides(made(spacing=4), Comm(), 50, late=1, parts=2)) == {2}


@pytest.mark.parametrize(("late", "then"), [(1, 1), (2, 2), (3, REST), (9, REST)])
def test_what_is_late_comes_seldom(late: int, then: int) -> None:
    rides = steps_of_rides(made(), Comm(), 300, late=late)
    assert apart(rides[FEW_RIDES + 3 :]) == {then}


def test_between_late_and_on_time_all_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would come often and seldom in turns, where the one makes it late and the other does not."""
    express, comm = made(), Comm()
    steps_of_rides(express, comm, 100, late=4)
    monkeypatch.setattr("offbeat.express.MOST_LATE", 2.75)
    monkeypatch.setattr("offbeat.express.LATE_NO_MORE", 2.25)
    assert REST in (found := apart(steps_of_rides(express, comm, 300, late=2, later=1)))
    assert found <= {REST, REST + 1}


def test_it_comes_often_again_when_it_is_on_time_again() -> None:
    express, comm = made(), Comm()
    steps_of_rides(express, comm, 100, late=5)
    assert apart(steps_of_rides(express, comm, 300, late=1)[2 * FEW_RIDES + 2 :]) == {1}


def test_the_late_come_once_in_a_turn_at_least() -> None:
    rides = steps_of_rides(made(at_most=6), Comm(), 100, late=5)
    assert apart(rides[FEW_RIDES + 3 :]) == {6}


def test_those_that_have_finished_are_not_asked_how_late_they_are() -> None:
    rides = steps_of_rides(made(), Comm(another_has_finished=True), 300, late=4)
    assert apart(rides[FEW_RIDES + 3 :]) == {REST}


def test_what_a_rank_sends_that_trains_no_more_does_not_count() -> None:
    express, comm = made(), Comm()
    for step in range(1, 8):
        finished(express.send(comm, step, training=False))  # type: ignore[arg-type]
        finished(express.receive(step))
    assert comm.said == [0.0, 0.0, 0.0]


def test_another_cut_of_x_changes_how_many_parts_lie_between_and_not_how_seldom_it_comes() -> None:
    express, comm = made(), Comm()
    steps_of_rides(express, comm, 100, late=5)
    express.space(2, 100)
    assert apart(steps_of_rides(express, comm, 200, late=5, parts=2)[-4:]) == {REST}


def test_it_is_asked_now_and_then() -> None:
    comm = Comm()
    steps_of_rides(made(), comm, 1 + FEW_RIDES + 1 + 3 * (RIDES + 1), late=1)
    assert comm.said == [1.0, 1.0, 1.0] * 4, "trains, steps late, parts in a step"


def test_in_the_end_nothing_is_under_way() -> None:
    express, comm = made(), Comm()
    steps_of_rides(express, comm, FEW_RIDES + 1, late=1)
    assert comm.said
    assert [finished(express.settle()) for _ in range(2)] == [3, 0]
