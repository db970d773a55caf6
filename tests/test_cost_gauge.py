import time

import pytest

from offbeat.cost import gauge as under_test
from offbeat.cost.gauge import LOOKS, NEAR, Gauge


class Clock:
    """Steps take as long as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
        self.now, self._seconds = 0.0, seconds
        monkeypatch.setattr(under_test, "time", self)

    def step(self) -> None:
        self.now += self._seconds[0] if len(self._seconds) == 1 else self._seconds.pop(0)

    def perf_counter(self) -> float:
        return self.now


def pairs(*looks: float) -> list[float]:
    """Of each look, the steps that fill the caches and those that are timed."""
    return [seconds for look in looks for seconds in (9.0, look)]


def test_a_look_is_quiet_near_the_least_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [0.5, *[1.0] * 5, *[1.4] * (LOOKS - 6)]  # one was luck
    clock = Clock(monkeypatch, pairs(*seen))
    gauge = Gauge(clock.step)
    assert [gauge.look() for _ in seen] == pytest.approx(seen)
    assert gauge.is_quiet(1.0)
    assert gauge.is_quiet(NEAR)
    assert not gauge.is_quiet(1.0001 * NEAR)


def test_it_looks_often_before_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [1.0])
    assert Gauge(clock.step).is_quiet(1.05)
    assert clock.now == 2 * LOOKS


def test_to_call_it_is_to_make_its_steps() -> None:
    made = []
    Gauge(lambda: made.append(time.monotonic()))()
    assert len(made) == 1
