"""Laps that fail: whose failure is told, and that the race goes on."""

import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from offbeat import cli
from offbeat.compare.contest import Contest, run_contest
from offbeat.compare.failures import LapFailed, any_story, check_workers, noting_failure
from offbeat.compare.record import as_record

RIVAL = """
import time
from contextlib import contextmanager
import torch
import torch.distributed as dist

@contextmanager
def train(model, optimizer, setup):
    yield model, optimizer

@contextmanager
def leaves(model, optimizer, setup):
    if setup.rank == 1:
        print("had enough")
        raise SystemExit(0)
    time.sleep(100)
    yield

@contextmanager
def betrays(model, optimizer, setup):
    # The others hear of it at once, and rank 1 is gone long after them.
    def meet_and_compute(inputs):
        if setup.rank == 1:
            raise ValueError("only here")
        dist.all_reduce(torch.ones(1))
        return model(inputs)
    try:
        yield meet_and_compute, optimizer
    finally:
        if setup.rank == 1:
            dist.destroy_process_group()
            time.sleep(1.5)
"""
WAITS = """
import time
from contextlib import contextmanager

@contextmanager
def train(model, optimizer, setup):
    time.sleep(100)
    yield model, optimizer
"""


def lose(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise LapFailed("no such luck")


def lap_of(folder: Path, statuses: Sequence[int | None], stories: Sequence[str]) -> list[Any]:
    """Workers that have ended so, or run, and have said that."""
    for rank, story in enumerate(stories):
        (folder / f"{rank}.log").write_text(story)
    return [SimpleNamespace(poll=lambda status=status: status) for status in statuses]


def fail(folder: Path, rank: int) -> None:
    with pytest.raises(ValueError, match="so"), noting_failure(folder, rank):
        raise ValueError("so")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_who_failed_first_is_told_whatever_its_rank(tmp_path: Path, order: tuple[int, ...]) -> None:
    for rank in order:
        fail(tmp_path, rank)
    with pytest.raises(LapFailed, match=rf"^worker {order[0]} ended with status 1: story {order[0]}$"):
        check_workers(lap_of(tmp_path, [1, 1, 1], ["story 0", "story 1", "story 2"]), tmp_path)


def test_a_worker_that_is_ended_by_a_signal_comes_before_those_that_miss_it(tmp_path: Path) -> None:
    fail(tmp_path, 0)
    with pytest.raises(LapFailed, match=r"^worker 1 ended with status -9: it said nothing$"):
        check_workers(lap_of(tmp_path, [1, -9], ["connection closed", ""]), tmp_path)


def test_a_library_that_aborts_is_the_reason_only_where_nobody_gave_one(tmp_path: Path) -> None:
    statuses, stories = [1, -signal.SIGABRT], ["no such file", "terminate called: connection closed by peer"]
    with pytest.raises(LapFailed, match=r"^worker 1 ended with status -6: terminate called"):
        check_workers(lap_of(tmp_path, [None, statuses[1]], stories), tmp_path)
    fail(tmp_path, 0)
    with pytest.raises(LapFailed, match=r"^worker 0 ended with status 1: no such file; worker 1 aborted: terminate"):
        check_workers(lap_of(tmp_path, statuses, stories), tmp_path)


def test_who_fails_and_does_not_end_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.compare.failures.GRACE_SECONDS", 0.05)
    fail(tmp_path, 1)
    fail(tmp_path, 0)
    with pytest.raises(LapFailed, match=r"^worker 1 failed and was not gone after 0\.05 s: it said nothing$"):
        check_workers(lap_of(tmp_path, [1, None], ["connection closed", ""]), tmp_path)


def test_who_trains_or_has_reported_has_not_failed(tmp_path: Path) -> None:
    (tmp_path / "1.json").touch()
    check_workers(lap_of(tmp_path, [None, 0], ["", ""]), tmp_path)


def test_the_moment_of_a_failure_is_that_of_the_innermost(tmp_path: Path) -> None:
    """What is closed on the way out may take long, fail as well, and tell the others."""
    before = time.monotonic()
    fail(tmp_path, 3)
    after = time.monotonic()
    fail(tmp_path, 3)
    assert before <= float((tmp_path / "3.failed").read_text()) <= after


def test_a_lap_that_failed_keeps_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.compare.contest.run_lap", lose)
    contest = Contest(strategies=("ddp",), links=(None,), workers=(2,), steps=1, repeats=2, seed=7)
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    runs = [as_record(outcome) for outcome in outcomes]
    assert [(run["failure"], run["seed"]) for run in runs] == [("no such luck", 7)] * 2 + [("no such luck", 8)] * 2


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("leaves", "worker 1 ended with status 0 before its report: had enough"),
        ("betrays", "worker 1 ended with status 1: .*ValueError: only here"),
    ],
)
def test_a_lap_that_fails_is_listed_and_the_race_goes_on(tmp_path: Path, name: str, failure: str) -> None:
    (tmp_path / "rival.py").write_text(RIVAL)
    fails, stays = f"{tmp_path}/rival.py:{name}", f"{tmp_path}/rival.py:train"
    contest = Contest(strategies=(fails, stays), links=(None,), workers=(2,), steps=5)
    none, failed, stayed = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert (none.failure, stayed.failure) == (None, None)
    assert re.fullmatch(failure, str(failed.failure))


@pytest.mark.timeout(120)
def test_a_race_in_which_nobody_can_run_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("offbeat.compare.contest.run_lap", lose)
    monkeypatch.setattr(
        "sys.argv", ["offbeat", *["compare", "--loopback", "--workers", "2", "--strategies", "lasgd", "--quiet"]]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "nobody could run: no such luck" in capfd.readouterr().err


@pytest.mark.timeout(120)
def test_the_baseline_alone_is_no_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there\n")
    words = ["compare", "--loopback", "--workers", "2", "--steps", "2", "--quiet", "--strategies"]
    monkeypatch.setattr("sys.argv", ["offbeat", *words, f"{tmp_path}/broken.py:train"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert re.search("nobody could run: .*a_package_that_is_not_there", capfd.readouterr().err)


@pytest.mark.timeout(120)
def test_a_lap_over_its_limit_is_listed_and_the_race_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    command = f"compare --loopback --workers 1 --steps 60 --limit-seconds 12 --json - --quiet --strategies {tmp_path}"
    monkeypatch.setattr("sys.argv", ["offbeat", *f"{command}/waits.py:train,local_sgd".split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    none, waits, local_sgd = json.loads(capfd.readouterr().out)["runs"]
    assert none["failure"] is None
    assert local_sgd["failure"] is None
    assert waits["failure"].startswith("it was not done after 12 s (--limit-seconds): ")


def test_of_a_lap_over_its_limit_the_story_is_that_of_one_who_said_something(tmp_path: Path) -> None:
    assert any_story(tmp_path) == "it said nothing"
    for rank, said in enumerate(("", "one\ntwo\nthree\nfour\n", "five")):
        (tmp_path / f"{rank}.log").write_text(said)
    assert any_story(tmp_path) == "worker 1: two / three / four"
