"""One worker of a lap: what it does in a step, how long that takes, and how it ends."""

import io
import os
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NoReturn

import pytest
import torch

from offbeat.compare import worker
from offbeat.compare.config import Config
from offbeat.compare.contest import Contest, run_contest
from offbeat.compare.snapshots import flat_of
from offbeat.compare.worker import EVENTS, last_events, least_seconds, sleep_until, take_own_cores, warm_up
from offbeat.leave import leave
from offbeat.trace import Trace
from offbeat.train.schedule import rate_factor
from offbeat.train.tasks import load_task


def test_events_after_the_last_step_leave_room_for_the_steps() -> None:
    trace = Trace(0)
    trace.add("compute", "step", 0.0, 1.0)
    for k in range(EVENTS):
        trace.add("communicate", "swap", 1.0 + k, 1.0)
    assert [event.kind for event in last_events(trace.events)] == ["compute"]


def test_warming_up_leaves_no_trace() -> None:
    task = load_task("digits", model="resnet8", seed=0)
    model = task.model()
    inputs, targets = task.train.batch(torch.arange(4))
    before = flat_of(model)
    warm_up(lambda module, _step: task.loss(module(inputs), targets), model, steps=2)
    assert torch.equal(flat_of(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("step_seconds", "slower", "least", "measured"),
    [
        (None, {}, 0.0, 0),
        (None, {"1": 3.0}, 0.6, 1),
        (None, {"0": 3.0}, 0.0, 1),  # beside a slow one, while whose pace is measured it computes as well
        (0.1, {}, 0.1, 0),
        (0.1, {"1": 3.0}, 0.3, 0),
        (0.0, {"1": 3.0}, 0.0, 0),
    ],
)
def test_how_long_a_step_takes_at_least(
    step_seconds: float | None, slower: dict[str, float], least: float, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rank 1, whose own steps take 0.2 seconds where nobody is waited for."""
    calls: list[str] = []
    monkeypatch.setattr("torch.distributed.barrier", lambda: calls.append("all begin"))
    config = Config(
        contestant="none", folder="", task="digits", node_of=(0, 1), steps=1, step_seconds=step_seconds, slower=slower
    )

    def own_seconds() -> float:
        calls.append("measured")
        return 0.2

    assert least_seconds(config, 1, own_seconds) == pytest.approx(least)
    assert calls == ["all begin", "measured"] * measured


def test_a_step_that_has_taken_its_time_already_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: 100.5)
    monkeypatch.setattr("time.sleep", slept.append)
    sleep_until(100.7)
    sleep_until(100.0)
    assert slept == [pytest.approx(0.2), 0.0]


WAITS = """
import time
from contextlib import contextmanager

@contextmanager
def train(model, optimizer, setup):
    def wait_and_compute(inputs):
        time.sleep(0.8)
        return model(inputs)
    yield wait_and_compute, optimizer
"""


@pytest.mark.timeout(120)
def test_a_slow_worker_is_slow_in_computing_not_in_waiting_for_the_wire(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    contest = Contest(
        strategies=(f"{tmp_path}/waits.py:train",), links=(None,), workers=(2,), steps=3, slower=((0, 4.0),)
    )
    _none, waits = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert waits.lap is not None
    for report in waits.lap.reports:
        assert 0.8 <= median(between(report.step_ends)) < 2.4, "four times a wait of 0.8 s would be 3.2 s"


def between(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


WITNESS = """
from contextlib import contextmanager
@contextmanager
def train(model, optimizer, setup):
    rates, seen = [], []
    handle = model.register_forward_pre_hook(lambda _module, args: seen.append(float((args[0] == 0).float().mean())))
    hook = optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    yield model, optimizer
    handle.remove()
    hook.remove()
    print(*rates, file=open(f"FOLDER/rates-{setup.rank}", "w"))
    print(*seen, file=open(f"FOLDER/zeros-{setup.rank}", "w"))
"""


@pytest.mark.timeout(120)
def test_a_schedule_and_augmented_images_reach_the_loop(tmp_path: Path) -> None:
    (tmp_path / "witness.py").write_text(WITNESS.replace("FOLDER", str(tmp_path)))
    contest = Contest(
        strategies=(f"{tmp_path}/witness.py:train",), links=(None,), workers=(1,), steps=10, model="cnn",
        learning_rate=0.5, augment=True, schedule="one-cycle",
    )  # fmt: skip
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert [outcome.failure for outcome in outcomes] == [None, None]
    rates, zeros = (
        [float(word) for word in (tmp_path / f"{name}-0").read_text().split()] for name in ("rates", "zeros")
    )
    assert rates == pytest.approx([0.5 * rate_factor("one-cycle", step, 10) for step in range(1, 11)])
    assert max(zeros) > 0.1, "what comes in from outside is 0; normalised pixels are not"


@pytest.mark.parametrize(("cores", "workers", "own"), [(8, 4, {2, 3}), (9, 4, {2, 3}), (3, 4, None)])
def test_a_worker_has_cores_of_its_own_where_there_are_enough(
    cores: int, workers: int, own: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, chosen: taken.append(set(chosen)))
    take_own_cores(1, workers)
    assert taken == ([] if own is None else [own])


class Gone(BaseException):
    """In place of the end of this process."""


def gone(status: int) -> NoReturn:
    raise Gone(status)


class Full(io.StringIO):
    """As a full disk is."""

    def write(self, _text: str) -> int:
        raise OSError("No space left on device")

    def flush(self) -> None:
        raise OSError("No space left on device")


@pytest.fixture
def brief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a worker that is about to run `main`, with `os._exit` in a word."""
    config = Config(contestant="none", folder=str(tmp_path), task="digits", node_of=(0,), steps=1)
    config.write(tmp_path / "config.json")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("sys.argv", ["worker.py", str(tmp_path / "config.json")])
    monkeypatch.setattr("os._exit", gone)
    return tmp_path


ENDS = [
    (SystemExit(), 0, ""),
    (SystemExit(0), 0, ""),
    (SystemExit(7), 7, ""),
    (SystemExit(256), 1, ""),
    (SystemExit(-1), 255, ""),
    (SystemExit("had enough"), 1, "had enough\n"),
    (KeyError("lost"), 1, "KeyError: 'lost'\n"),
    (KeyboardInterrupt(), 1, "KeyboardInterrupt\n"),
]


@pytest.mark.parametrize(("end", "status", "said"), ENDS)
def test_a_worker_that_fails_says_why_and_goes(
    end: BaseException,
    status: int,
    said: str,
    brief: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def work(_config: Config, _rank: int) -> NoReturn:
        raise end

    monkeypatch.setattr(worker, "work", work)
    with pytest.raises(Gone) as left:
        worker.main()
    assert left.value.args == (status,)
    assert capfd.readouterr().err.endswith(said)
    assert (brief / "0.failed").exists()
    assert not (brief / "0.json").exists()


@pytest.mark.parametrize("end", [SystemExit("had enough"), KeyError("lost")])
def test_a_worker_that_cannot_say_why_it_fails_goes_all_the_same(
    end: BaseException, brief: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(_config: Config, _rank: int) -> NoReturn:
        monkeypatch.setattr(sys, "stderr", Full())
        raise end

    monkeypatch.setattr(worker, "work", work)
    with pytest.raises(Gone) as left:
        worker.main()
    assert left.value.args == (1,)
    assert (brief / "0.failed").exists()


def test_a_stream_that_cannot_be_flushed_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os._exit", gone)
    for stream in (None, Full()):
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(Gone, match="3"):
            leave(3)
