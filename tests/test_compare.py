"""compare: the same loop around every contestant, on loopback and, as root, on shaped links."""

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import pytest
import torch
from test_bad_input import check_sentence

from offbeat import cli
from offbeat.compare.contest import Contest, Entry, run_contest
from offbeat.compare.lap import Lap, LapFailed, any_story
from offbeat.compare.measures import bytes_per_sample, measure, wire_utilisation
from offbeat.compare.record import as_record
from offbeat.compare.snapshots import Point, flat_of
from offbeat.compare.worker import (
    EVENTS,
    Config,
    Report,
    last_events,
    least_seconds,
    sleep_until,
    take_own_cores,
    warm_up,
)
from offbeat.emulate import missing
from offbeat.errors import BadInput
from offbeat.trace import Trace
from offbeat.train.schedule import rate_factor
from offbeat.train.shards import Shard
from offbeat.train.tasks import load_task

RIVAL = """
import time
from contextlib import contextmanager
from torch.nn.parallel import DistributedDataParallel

@contextmanager
def train(model, optimizer, setup):
    yield DistributedDataParallel(model), optimizer

@contextmanager
def broken(model, optimizer, setup):
    raise RuntimeError("no such luck")
    yield

@contextmanager
def leaves(model, optimizer, setup):
    if setup.rank == 1:
        print("had enough")
        raise SystemExit(0)
    time.sleep(100)
    yield
"""


def report(rank: int, began: float, seconds: float, steps: int) -> Report:
    return Report(
        rank=rank, began_at=began, step_ends=[began + seconds * (k + 1) for k in range(steps)], losses=[1.0] * steps,
        ended_at=began + seconds * steps + 1.0, cpu_seconds=seconds * steps / 4, waiting_share=0.1,
    )  # fmt: skip


def lap(sent: list[tuple[float, list[int]]] | None = None, points: list[Point] | None = None) -> Lap:
    config = Config(contestant="none", folder="", task="digits", node_of=(0, 1), steps=20)
    return Lap(config, [report(0, 100.0, 0.1, 20), report(1, 100.0, 0.2, 20)], sent or [], points or [])


def test_throughput_is_the_mean_of_the_workers_without_the_first_steps() -> None:
    found = measure(lap(), samples_per_step=4, target_accuracy=None, link=())
    assert found.steps_per_second == pytest.approx((10 + 5) / 2)
    assert found.seconds == pytest.approx(5.0)
    assert found.cpu_share == pytest.approx(0.25)
    assert (found.wire_utilisation, found.bytes_per_sample, found.accuracy) == (None, None, None)


def test_wire_utilisation_counts_only_while_all_train() -> None:
    # All are warm from 100.4 to 102.0; 1000 bytes/s of 2 x 1000 leave the nodes then, and a burst before and after.
    sent = [(99.0, [0, 0]), (100.5, [9000, 0]), (101.0, [9500, 0]), (101.9, [10400, 0]), (104.0, [99999, 0])]
    assert wire_utilisation(lap(sent), [1000.0, 1000.0]) == pytest.approx(0.5)


def test_bytes_per_sample_counts_only_while_all_train() -> None:
    # Between the looks at 100.5 and 101.9 the workers make 14 and 7 steps of 4 samples, and 1400 bytes leave the nodes.
    sent = [(99.0, [0, 0]), (100.5, [9000, 0]), (101.0, [9500, 0]), (101.9, [10400, 0]), (104.0, [99999, 0])]
    assert bytes_per_sample(lap(sent), 4) == pytest.approx(1400 / (4 * 21))
    idle = [(at, [sum(nbytes) // 9000 * 9000, 0]) for at, nbytes in sent]
    assert bytes_per_sample(lap(idle), 4) == 0, "what has left before and after, of a worker without communication"
    assert bytes_per_sample(lap(sent[:2]), 4) is None


def test_a_lap_says_when_its_mean_reached_the_target() -> None:
    points = [Point(float(k), 5, accuracy, 1.0) for k, accuracy in enumerate([0.5, 0.8, 0.8])]
    assert measure(lap(points=points), samples_per_step=4, target_accuracy=0.65, link=()).seconds_to_target == 0.5


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


def test_an_entry_says_who_where_and_when() -> None:
    assert str(Entry("ddp", None, 4, 0, 0)) == "ddp on 4 workers, loopback, repeat 0"


def test_a_contest_is_interleaved_and_has_the_baseline_in_each_repeat() -> None:
    contest = Contest(strategies=("lasgd", "ddp"), links=("1mbit", "2mbit"), repeats=2)
    entries = list(contest.entries())
    assert [entry.strategy for entry in entries] == ["none", "lasgd", "ddp"] * 4
    assert [entry.repeat for entry in entries] == [0] * 6 + [1] * 6


def test_a_lap_that_failed_keeps_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.compare.contest.run_lap", lose)
    contest = Contest(strategies=("ddp",), links=(None,), workers=(2,), steps=1, repeats=2, seed=7)
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    runs = [as_record(outcome) for outcome in outcomes]
    assert [(run["failure"], run["seed"]) for run in runs] == [("no such luck", 7)] * 2 + [("no such luck", 8)] * 2


@pytest.mark.timeout(120)
def test_contestants_on_loopback(tmp_path: Path) -> None:
    (tmp_path / "rival.py").write_text(RIVAL)
    rival, broken = f"{tmp_path}/rival.py:train", f"{tmp_path}/rival.py:broken"
    contest = Contest(
        strategies=("lasgd", "gossip", rival, broken), links=(None,), workers=(2,), steps=40, step_seconds=0.01,
        snapshots=4, target_accuracy=0.5,
    )  # fmt: skip
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    found = {outcome.entry.strategy: outcome for outcome in outcomes}
    assert found["none"].throughput_share == 1.0
    for name in ("lasgd", "gossip", rival):
        outcome = found[name]
        assert outcome.failure is None
        assert outcome.measures is not None
        assert outcome.measures.accuracy is not None
        assert outcome.measures.accuracy > 0.7
        assert outcome.measures.seconds_to_target is not None
        assert outcome.throughput_share is not None
    assert found["lasgd"].measures.waiting_share is not None  # type: ignore[union-attr]
    assert found[rival].measures.waiting_share is None  # type: ignore[union-attr]
    failure = found[broken].failure
    assert failure is not None
    assert "no such luck" in failure, "a rival that cannot run is listed with the reason"


@pytest.mark.timeout(90)
def test_a_worker_that_leaves_in_good_order_without_a_report_is_listed_and_the_race_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rival.py").write_text(RIVAL)
    leaves, stays = f"{tmp_path}/rival.py:leaves", f"{tmp_path}/rival.py:train"
    contest = Contest(strategies=(leaves, stays), links=(None,), workers=(2,), steps=5)
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert [outcome.failure for outcome in outcomes] == [
        None, "worker 1 ended with status 0 before its report: had enough", None
    ]  # fmt: skip


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
    command = f"compare --loopback --workers 1 --steps 600 --limit-seconds 20 --json - --quiet --strategies {tmp_path}"
    monkeypatch.setattr("sys.argv", ["offbeat", *f"{command}/waits.py:train,local_sgd".split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    none, waits, local_sgd = json.loads(capfd.readouterr().out)["runs"]
    assert none["failure"] is None
    assert local_sgd["failure"] is None
    assert waits["failure"].startswith("it was not done after 20 s (--limit-seconds): ")


def test_of_a_lap_over_its_limit_the_story_is_that_of_one_who_said_something(tmp_path: Path) -> None:
    assert any_story(tmp_path) == "it said nothing"
    for rank, said in enumerate(("", "one\ntwo\nthree\nfour\n", "five")):
        (tmp_path / f"{rank}.log").write_text(said)
    assert any_story(tmp_path) == "worker 1: two / three / four"


def test_bytes_are_by_the_samples_that_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 workers have 22 of the digits each, which is less than a batch."""
    seen: list[int] = []

    def measured(_lap: Lap, *, samples_per_step: int, **_more: Any) -> NoReturn:
        seen.append(samples_per_step)
        raise LapFailed("that is enough")

    monkeypatch.setattr("offbeat.compare.contest.run_lap", lambda *_args, **_named: None)
    monkeypatch.setattr("offbeat.compare.contest.measure", measured)
    contest = Contest(strategies=("ddp",), links=(None,), workers=(64,), steps=1, batch=32)
    run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    shard = Shard(samples=len(load_task("digits", seed=0).train), rank=0, workers=64, batch=32, seed=0)
    assert set(seen) == {len(shard.indices(0))}
    assert len(shard.indices(0)) < 32


def lose(*_args: Any, **_kwargs: Any) -> Lap:
    raise LapFailed("no such luck")


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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schedule": "linear"}, "there is no schedule 'linear'"),
        ({"augment": True, "task": "synthetic"}, "are no images .*: leave out --augment"),
        ({"device": "tpu"}, "there is no device 'tpu'"),
        ({"device": "cuda"}, "--device cuda does not fit: torch finds no CUDA device here, so leave it out"),
        ({"workers": (64,), "strategies": ("lasgd:wire_dtype=int8",)}, "at most 63 workers, and there are 64: use bf"),
    ],
)
def test_what_no_lap_could_do_is_refused_before_the_first(
    more: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=message):
        run_contest(
            Contest(**{"strategies": ("lasgd",), "links": (None,), "workers": (2,), "steps": 2, **more}),
            watch=lambda _entry, _seconds: None,
            ended=lambda _outcome: None,
        )


@pytest.mark.timeout(120)
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_command_on_shaped_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = "compare --strategies lasgd --workers 2 --link 20mbit --steps 40 --step-seconds 0.02 --json - --quiet"
    monkeypatch.setattr("sys.argv", ["offbeat", *command.split(), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    record = json.loads(capfd.readouterr().out)
    assert [run["strategy"] for run in record["runs"]] == ["none", "lasgd"]
    none, lasgd = record["runs"]
    assert none["wire_utilisation"] < 0.05
    assert none["bytes_per_sample"] < 0.02 * lasgd["bytes_per_sample"]
    assert 0.1 < lasgd["wire_utilisation"] <= 1.1
    assert {"throughput_share", "seconds_to_target", "accuracy"} <= set(lasgd)
    assert record["compute"] == "emulated, 0.02 s a step"
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["runs"] == record["runs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--strategies lasgdd", r"did you mean 'lasgd'"),
        ("--strategies nowhere.py:train", r"nowhere.py is not there"),
        ("--link fast", r"'fast' is not a rate"),
        ("--workers 2 --nodes 3", r"3 nodes are more than 2 workers"),
        ("--repeats 0", r"--repeats 0 .* at least 1"),
        ("--steps 5 --epochs 2", r"contradict each other"),
        ("--step-seconds -1", r"--step-seconds -1.0 does not fit"),
        ("--target-accuracy 90", r"--target-accuracy 90.* at most 1"),
        ("--straggler 9:2", r"--straggler 9:2 does not fit"),
        ("--limit-seconds 0", r"--limit-seconds 0 does not fit: it must be above 0"),
        ("--limit-seconds nan", r"--limit-seconds nan does not fit"),
        ("--limit-seconds 1e6", r"--limit-seconds 1e\+06 does not fit: .* at most 604800, a week"),
        ("--json nowhere/x.json --loopback", r"--json nowhere/x.json cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["offbeat", "compare", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    check_sentence(err, words)


@pytest.mark.parametrize(("cores", "workers", "own"), [(8, 4, {2, 3}), (9, 4, {2, 3}), (3, 4, None)])
def test_a_worker_has_cores_of_its_own_where_there_are_enough(
    cores: int, workers: int, own: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, chosen: taken.append(set(chosen)))
    take_own_cores(1, workers)
    assert taken == ([] if own is None else [own])
