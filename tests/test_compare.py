"""compare: the same loop around every contestant, on loopback and, as root, on shaped links."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from test_bad_input import check_sentence
from torch import Tensor, nn
from torch.optim import SGD

from offbeat import cli
from offbeat.compare.contest import Contest, Entry, run_contest
from offbeat.compare.contestant import Setup, find_contestant
from offbeat.compare.cpu import Process, cpu_seconds, descendants_seconds, processes
from offbeat.compare.lap import Lap, LapFailed
from offbeat.compare.measures import bytes_per_sample, measure, seconds_to, wire_utilisation
from offbeat.compare.snapshots import Album, Point, curve, flat_of, load_flat
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
from offbeat.layout import Layout
from offbeat.trace import Trace
from offbeat.train.schedule import rate_factor
from offbeat.train.task import Task
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


def test_time_to_a_target_lies_between_points_and_luck_does_not_count() -> None:
    points = [Point(float(k), 5, accuracy, 1.0) for k, accuracy in enumerate([0.5, 0.8, 0.7, 0.8, 0.9])]
    assert seconds_to(points, 0.75) == pytest.approx(2.5), "at 1.0 the next point does not have it"
    assert seconds_to(points, 0.65) == pytest.approx(0.5)
    assert seconds_to(points, 0.5) == 0.0
    assert seconds_to(points, 0.85) == pytest.approx(3.5), "nothing comes after the last"
    assert seconds_to(points, 0.95) is None
    assert seconds_to([Point(1.0, 5, None, 1.0)], 0.5) is None
    assert measure(lap(points=points), samples_per_step=4, target_accuracy=0.65, link=()).seconds_to_target == 0.5


def test_events_after_the_last_step_leave_room_for_the_steps() -> None:
    trace = Trace(0)
    trace.add("compute", "step", 0.0, 1.0)
    for k in range(EVENTS):
        trace.add("communicate", "swap", 1.0 + k, 1.0)
    assert [event.kind for event in last_events(trace.events)] == ["compute"]


def keep(folder: Path, ranks: dict[int, list[tuple[float, int, float]]]) -> tuple[Task, Tensor]:
    """Snapshots of workers at such seconds and steps, the weights shifted by so much; the task, and the weights."""
    task = load_task("digits", seed=0)
    model = task.model()
    good = flat_of(model)
    for rank, album in ranks.items():
        kept = Album(folder, rank, len(ranks))
        for seconds, step, shift in album:
            load_flat(model, good + shift)
            kept.take(model, seconds=seconds, step=step)
        assert not list(folder.glob(f"{rank:05d}*")), "nothing is written on the clock"
        kept.write()
    return task, good


def test_the_curve_is_that_of_the_mean_of_the_snapshots_nearest_in_time(tmp_path: Path) -> None:
    """The second rank is a moment later at every step; at step 8 their shifts cancel, in the end there are none."""
    task, good = keep(
        tmp_path,
        {0: [(1.0, 8, 0.5), (2.0, 16, 9.0), (3.0, 24, 0.0)], 1: [(1.1, 8, -0.5), (2.1, 16, -9.0), (3.1, 24, 0.0)]},
    )
    scratch = task.model()
    points = curve(tmp_path, task, scratch, 2)
    assert [point.steps for point in points] == [8, 16, 24], "never one step's weights with another's"
    assert [point.seconds for point in points] == pytest.approx([1.05, 2.05, 3.1]), "not before they were there"
    torch.testing.assert_close(flat_of(scratch), good, rtol=0, atol=1e-6)
    losses = [point.loss for point in points]
    assert losses == pytest.approx([losses[2]] * 3, rel=0.05)


def test_a_slow_worker_gives_to_the_curve_what_it_had_nearest(tmp_path: Path) -> None:
    fast = [(1.0, 8, 0.0), (2.0, 16, 0.0), (3.0, 24, 0.0), (3.1, 24, 0.0)]
    slow = [(2.2, 8, 0.0), (4.4, 16, 0.0), (6.6, 24, 0.0), (6.7, 24, 0.0)]
    (tmp_path / "behind").mkdir()
    task, _ = keep(tmp_path / "behind", {0: fast, 1: slow})
    points = curve(tmp_path / "behind", task, task.model(), 2)
    assert [(point.seconds, point.steps) for point in points] == [
        (pytest.approx(1.6), 8), (pytest.approx(2.1), 12), (pytest.approx(2.6), 16), (pytest.approx(6.7), 24),
    ]  # fmt: skip
    (tmp_path / "ahead").mkdir()
    keep(tmp_path / "ahead", {0: slow, 1: fast})
    points = curve(tmp_path / "ahead", task, task.model(), 2)
    assert [(point.seconds, point.steps) for point in points] == [
        (pytest.approx(2.1), 12), (pytest.approx(4.4), 20), (pytest.approx(6.6), 24), (pytest.approx(6.7), 24),
    ], "who has ended stays as it is"  # fmt: skip


def test_an_album_that_becomes_too_large_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_task("digits", seed=0).model()
    monkeypatch.setattr("offbeat.compare.snapshots.MOST_HELD_NBYTES", flat_of(model).nbytes)
    album = Album(tmp_path, 0, 1)
    for number, files in ((1, 0), (2, 2), (3, 2)):
        album.take(model, seconds=float(number), step=number)
        assert len(list(tmp_path.iterdir())) == files
    album.write()
    assert len(list(tmp_path.iterdir())) == 3


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


def test_a_contest_is_interleaved_and_has_the_baseline_in_each_repeat() -> None:
    contest = Contest(strategies=("lasgd", "ddp"), links=("1mbit", "2mbit"), repeats=2)
    entries = list(contest.entries())
    assert [entry.strategy for entry in entries] == ["none", "lasgd", "ddp"] * 4
    assert [entry.repeat for entry in entries] == [0] * 6 + [1] * 6


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


PATIENT = """
from contextlib import contextmanager
import torch
import torch.distributed as dist

@contextmanager
def train(model, optimizer, setup):
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    print(setup.timeout_seconds, group.options._timeout.total_seconds(), file=open("FOLDER/seconds", "w"))
    yield model, optimizer
"""


@pytest.mark.timeout(120)
def test_nobody_gives_up_before_the_lap_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patient.py").write_text(PATIENT.replace("FOLDER", str(tmp_path)))
    contest = Contest(
        strategies=(f"{tmp_path}/patient.py:train",), links=(None,), workers=(1,), steps=2, limit_seconds=777.0
    )
    run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert (tmp_path / "seconds").read_text().split() == ["777.0", "777.0"]

    given: dict[str, Any] = {}

    @contextmanager
    def attach(*_args: Any, **named: Any) -> Iterator[Any]:
        given.update(named)
        yield SimpleNamespace(weights=None)

    monkeypatch.setattr("offbeat.compare.contestant.attach", attach)
    model = nn.Linear(1, 1)
    setup = Setup(0, Layout((0,)), 2, 2, 0, 777.0, [], [])
    with find_contestant("lasgd")(model, torch.optim.SGD(model.parameters()), setup):
        assert given["timeout_seconds"] == 777.0


@pytest.mark.timeout(120)
def test_a_lap_over_its_limit_is_listed_and_the_race_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    command = f"compare --loopback --workers 1 --steps 600 --limit-seconds 20 --json - --quiet --strategies {tmp_path}"
    monkeypatch.setattr("sys.argv", ["offbeat", *f"{command}/waits.py:train".split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    none, waits = json.loads(capfd.readouterr().out)["runs"]
    assert none["failure"] is None
    assert waits["failure"].startswith("it was not done after 20 s (--limit-seconds): ")


BURN = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]"


def test_cpu_seconds_are_those_of_all_descendants() -> None:
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_seconds() - before > 0.29, "of one that has ended"
    before = cpu_seconds()
    wait = f"{BURN}; print('burnt', flush=True); input()"
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", start, wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "burnt\n"
        assert cpu_seconds() - before > 0.25, "of a child's child that runs"
        parent.stdin.write("\n")
    assert cpu_seconds() - before > 0.29, "also when both have ended"


def test_descendants_without_proc_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.compare.cpu.PROC", tmp_path / "none")
    assert processes() == {}
    known = {2: Process(1, 0.5), 3: Process(2, 0.25), 4: Process(3, 0.125), 5: Process(0, 8.0)}
    assert descendants_seconds(known, 1) == 0.875


WORKS_IN_A_CHILD = """
import subprocess, sys
from contextlib import contextmanager

@contextmanager
def train(model, optimizer, setup):
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as child:
        try:
            yield model, optimizer
        finally:
            child.kill()
"""


@pytest.mark.timeout(120)
def test_a_rival_that_works_in_a_child_process_does_not_hide_its_cpu_seconds(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(WORKS_IN_A_CHILD)
    contest = Contest(
        strategies=(f"{tmp_path}/child.py:train",), links=(None,), workers=(1,), steps=10, step_seconds=0.1
    )
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    none, child = (outcome.measures for outcome in outcomes)
    assert none is not None
    assert child is not None
    assert child.cpu_share > none.cpu_share + 0.3


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


def test_a_rival_without_that_function_is_told(tmp_path: Path) -> None:
    (tmp_path / "rival.py").write_text(RIVAL)
    with pytest.raises(BadInput, match="has no function nothing: choose among"):
        find_contestant(f"{tmp_path}/rival.py:nothing")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "import no_such_package",
            r"ModuleNotFoundError: No module named 'no_such_package'\): install what it imports",
        ),
        ("raise RuntimeError('no\\nluck')", r"RuntimeError: no luck\): correct that file"),
        ("raise SystemExit(3)", r"SystemExit: 3\): correct that file"),
    ],
)
def test_a_rival_that_cannot_be_loaded_is_listed_and_the_others_race(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "missing.py").write_text(f"{line}\n{RIVAL}")
    missing = f"{tmp_path}/missing.py:train:every=3"
    contest = Contest(strategies=(missing, "ddp"), links=(None,), workers=(1,), steps=3)
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    found = {outcome.entry.strategy: outcome.failure for outcome in outcomes}
    assert found["none"] is None
    assert found["ddp"] is None
    assert re.search(rf"missing.py cannot be loaded \({reason}, or leave it out", str(found[missing]))


OWN = """
from contextlib import contextmanager
import torch

def settings(*about, **given):
    raise ValueError("every=0 must be\\nat least 1")

def without_manager(model, optimizer, setup):
    yield model, optimizer

@contextmanager
def of_two(model, optimizer):
    yield model, optimizer

@contextmanager
def plain(model, optimizer, setup):
    yield model, optimizer

@contextmanager
def yields_one(model, optimizer, setup):
    yield model

def returns(model, optimizer, setup):
    return model, optimizer

number = 3
"""


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("plain:every", r"name=value, and 'every' is not"),
        ("plain:=3", r"name=value, and '' is not"),
        ("plain:every=3", r"does not fit: .*plain\(\) got an unexpected keyword argument 'every'"),
        ("settings:every=0", r"does not fit: every=0 must be at least 1$"),
        ("without_manager", r"under @contextmanager"),
        ("of_two", r"a function of \(model, optimizer, setup\)"),
        ("number", r"a function of \(model, optimizer, setup\)"),
    ],
)
def test_a_rival_that_does_not_follow_the_protocol_is_told(tmp_path: Path, rest: str, message: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(BadInput, match=message):
        find_contestant(f"{tmp_path}/own.py:{rest}")


@pytest.mark.parametrize(("name", "what"), [("yields_one", "it yielded Linear"), ("returns", "it returned tuple")])
def test_what_only_running_shows_of_a_rival_is_told_then(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    model, setup = nn.Linear(1, 1), cast(Setup, None)  # which it does not ask for
    with (
        pytest.raises(BadInput, match=what),
        find_contestant(f"{tmp_path}/own.py:{name}")(model, SGD([*model.parameters()]), setup),
    ):
        pass


def test_flat_and_back() -> None:
    one, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    one(torch.randn(8, 4))
    load_flat(other, flat_of(one))
    assert torch.equal(one.running_mean, other.running_mean)  # type: ignore[arg-type]
    assert str(Entry("ddp", None, 4, 0)) == "ddp on 4 workers, loopback, repeat 0"


@pytest.mark.parametrize(("cores", "workers", "own"), [(8, 4, {2, 3}), (9, 4, {2, 3}), (3, 4, None)])
def test_a_worker_has_cores_of_its_own_where_there_are_enough(
    cores: int, workers: int, own: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, chosen: taken.append(set(chosen)))
    take_own_cores(1, workers)
    assert taken == ([] if own is None else [own])
