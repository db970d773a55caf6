import math
import random
from time import perf_counter

import pytest

from offbeat.sim.clock import Clock


def test_events_run_in_order_of_time_then_priority_then_counter() -> None:
    clock, seen = Clock(), []
    for time, priority, name in [(2, 0, "d"), (1, 1, "c"), (1, 0, "a"), (1, 0, "b"), (2, -1, "before d")]:
        clock.at(time, lambda name=name: seen.append((clock.now, name)), priority)
    clock.run()
    assert seen == [(1, "a"), (1, "b"), (1, "c"), (2, "before d"), (2, "d")]


def test_an_action_may_schedule_for_the_same_instant_and_that_still_precedes_later_priorities() -> None:
    clock, seen = Clock(), []
    clock.at(1, lambda: seen.append("last"), priority=9)
    clock.at(1, lambda: (seen.append("first"), clock.after(0, lambda: seen.append("second"))))
    clock.run()
    assert seen == ["first", "second", "last"]
    assert clock.now == 1


def test_after_counts_from_now() -> None:
    clock, seen = Clock(), []
    clock.at(1.5, lambda: clock.after(0.25, lambda: seen.append(clock.now)))
    clock.run()
    assert seen == [1.75]


def test_a_cancelled_event_does_not_happen_and_takes_no_time() -> None:
    clock, seen = Clock(), []
    clock.at(1, lambda: seen.append("kept"))
    gone = clock.at(5, lambda: seen.append("gone"))
    assert clock.pending == 2
    clock.cancel(gone)
    clock.cancel(gone)
    assert clock.pending == 1
    clock.run()
    assert seen == ["kept"]
    assert clock.now == 1
    assert clock.pending == 0


def test_cancelling_what_has_happened_changes_nothing() -> None:
    clock = Clock()
    event = clock.at(1, lambda: None)
    clock.run()
    clock.cancel(event)
    assert clock.pending == 0


def test_cancel_from_inside_a_run_even_when_the_heap_is_rebuilt() -> None:
    clock, seen = Clock(), []
    events = [clock.at(1 + i, lambda i=i: seen.append(i)) for i in range(2000)]
    doomed = [event for i, event in enumerate(events) if i % 10]
    clock.at(0, lambda: [clock.cancel(event) for event in doomed])
    clock.run()
    assert seen == list(range(0, 2000, 10))


def test_step_runs_one_event() -> None:
    clock, seen = Clock(), []
    clock.cancel(clock.at(0.5, lambda: seen.append("gone")))
    clock.at(1, lambda: seen.append("a"))
    clock.at(2, lambda: seen.append("b"))
    assert clock.upcoming == 1
    assert clock.step()
    assert (seen, clock.now) == (["a"], 1)
    assert clock.step()
    assert not clock.step()
    assert (seen, clock.now, clock.upcoming) == (["a", "b"], 2, math.inf)


@pytest.mark.parametrize("time", [0.5, -1, math.nan, math.inf])
def test_no_event_in_the_past_nor_at_no_time(time: float) -> None:
    clock = Clock()
    clock.at(1, lambda: None)
    clock.run()
    with pytest.raises(ValueError, match=r"it is 1 s now"):
        clock.at(time, lambda: None)
    with pytest.raises(ValueError, match="cannot happen"):
        clock.after(time - 1, lambda: None)
    assert clock.pending == 0


def test_an_error_in_an_action_surfaces_and_the_rest_can_still_run() -> None:
    clock, seen = Clock(), []
    clock.at(1, lambda: 1 / 0)
    clock.at(2, lambda: seen.append("on"))
    with pytest.raises(ZeroDivisionError):
        clock.run()
    clock.run()
    assert seen == ["on"]


def test_two_hundred_thousand_events_in_a_few_seconds() -> None:
    clock, rng, left = Clock(), random.Random(0), [200_000]

    def tick() -> None:
        left[0] -= 1
        if left[0] > 0:
            clock.after(rng.random(), tick)

    for _ in range(1000):
        clock.after(rng.random(), tick)
    start = perf_counter()
    clock.run()
    assert perf_counter() - start < 4  # about 0.2 s on an idle core
