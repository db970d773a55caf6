"""Sweeps: lists on the command line, curves that disturb nothing, runs that are done once, and how a sweep ends."""

import csv
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from test_bad_input import check_sentence
from test_cli import GONE_SECONDS, Run, running
from torch import nn

from offbeat import cli
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.lists import combinations, split_specs, split_stragglers, without_lists
from offbeat.report.metrics import read_metrics
from offbeat.report.sweep_progress import SweepProgress
from offbeat.report.sweep_table import rows_table, write_csv
from offbeat.sim.cluster import Cluster
from offbeat.sim.curve import Curve
from offbeat.sim.run import run
from offbeat.sim.simulate import prepare, simulate
from offbeat.strategies import make_strategy
from offbeat.sweep import Finished, Setting, rows_of, sweep
from offbeat.sweep.one import run_one
from offbeat.sweep.pool import News
from offbeat.sweep.rows import label, varying
from offbeat.sweep.run import unique
from offbeat.train.job import Job
from offbeat.train.tasks import load_task

SHORT = Setting(task="synthetic", steps=6, workers=2, evaluate_every=2)


def flags(**given: Any) -> dict[str, Any]:
    """What click makes of a command line, with these changed."""
    context = cli.simulate.make_context("simulate", [])
    return {**context.params, **given}


# --- lists ---


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("ddp", ("ddp",)),
        ("ddp,gossip", ("ddp", "gossip")),
        ("lasgd:every=8,delay=2", ("lasgd:every=8,delay=2",)),
        ("lasgd:every=8,", ("lasgd:every=8",)),
        ("ddp,lasgd:every=8,delay=2,gossip", ("ddp", "lasgd:every=8,delay=2", "gossip")),
        ("gossip:rate=2,lasgd:every=8, delay=2", ("gossip:rate=2", "lasgd:every=8,delay=2")),
        ("every=8", ("every=8",)),
    ],
)
def test_strategies_are_split_where_a_new_one_begins(text: str, specs: tuple[str, ...]) -> None:
    assert split_specs(text) == specs


def test_stragglers_are_a_list_or_the_ranks_of_one_run() -> None:
    assert split_stragglers(()) == ()
    assert split_stragglers(("none,0:2+1:3",)) == ("none", "0:2+1:3")
    assert split_stragglers(("0:2", "1:3")) == ("0:2+1:3",)
    with pytest.raises(BadInput, match="both a list and several flags"):
        split_stragglers(("0:2,none", "1:3"))
    assert Setting(straggler="0:2+1:1e+3").cluster.stragglers == {0: 2.0, 1: 1000.0}


def test_single_values_make_a_single_run() -> None:
    assert without_lists(flags()) == {
        name: value[0] if isinstance(value, tuple) and value else value
        for name, value in flags().items()
        if name not in ("processes", "evaluate_every", "target_accuracy")
    }
    assert without_lists(flags(straggler=("0:2", "1:3"))) is not None
    for many in ({"workers": (2, 4)}, {"rate": "1,2"}, {"straggler": ("none,0:2",)}, {"target_accuracy": 0.9}):
        assert without_lists(flags(**many)) is None


def test_options_go_to_the_strategies_that_take_them() -> None:
    given = flags(strategy="ddp,gossip,lasgd:delay=2", rate="1,2", every="8", workers=(2, 4), seed=(0, 1))
    runs = combinations(given)
    assert list(dict.fromkeys(each["strategy"] for each in runs)) == [
        "ddp", "gossip:rate=1", "gossip:rate=2", "lasgd:delay=2,every=8",
    ]  # fmt: skip
    assert [(each["workers"], each["seed"]) for each in runs[:4]] == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert len(runs) == 4 * 2 * 2


def test_the_same_run_written_differently_is_one() -> None:
    same = [
        Setting(strategy="lasgd", link="1gbit", workers=4),
        Setting(strategy=f"lasgd:every={make_strategy('lasgd').every}", link="1000mbit"),  # type: ignore[attr-defined]
        Setting(nodes=2, target_accuracy=0.5),
        Setting(straggler="1:1"),
    ]
    other = [Setting(nodes=4), Setting(seed=1), Setting(strategy="ddp"), Setting(evaluate_every=3)]
    assert unique([*same, *other]) == [same[0], *other]


def test_a_task_of_the_users_that_was_changed_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("task = None")
    before = Setting(task="own.py:task").identity
    assert Setting(task="own.py:task").identity == before
    Path("own.py").write_text("task = 1")
    assert Setting(task="own.py:task").identity != before


# --- curves ---


def noisy_model() -> nn.Module:
    """Draws numbers while it trains, and has buffers that training changes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 10))


@pytest.mark.parametrize("model", [None, noisy_model])
@pytest.mark.parametrize("strategy", ["ddp", "lasgd:every=2,delay=1", "gossip"])
def test_a_curve_does_not_disturb_the_run(strategy: str, model: Any) -> None:
    job = Job(strategy=make_strategy(strategy), task="synthetic", steps=9, workers=3, seed=5)
    task = load_task("synthetic", seed=5)
    task = task if model is None else replace(task, model=model)
    cluster = Cluster(layout=Layout.even(3, 3), stragglers={1: 1.7}, jitter=0.1)
    ends, lengths = [], []
    for every in (None, 1):
        with torch.random.fork_rng(devices=[]):
            ready = prepare(job, task, 3, timing_only=False, model_bytes=None)
            curve = Curve(task, ready.learners, ready.steps, ready.shards, seed=5, every=every)
            watch = None if every is None else curve.watch
            done = run(job.strategy, cluster, ready.learners, ready.steps, seed=5, watch=watch)
        lengths.append(done.seconds)
        ends.append([flat.clone() for replica in ready.learners.replicas for flat in replica.flats])
    assert len(curve.points) == 9
    assert lengths[0] == lengths[1]
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_run_of_a_sweep_is_that_of_simulate() -> None:
    setting = replace(SHORT, strategy="gossip", jitter=0.1, straggler="1:2", seed=3, steps=7)
    finished, result = run_one(setting), simulate(setting.job, setting.cluster)
    for name in ("accuracy", "loss", "seconds", "steps_per_second", "computing_share", "bytes_sent"):
        assert getattr(finished, name) == getattr(result, name)
    assert [point.step for point in finished.curve] == [2, 4, 6, 7]
    assert [point.samples for point in finished.curve] == [32 * 2 * step for step in (2, 4, 6, 7)]
    seconds = [point.seconds for point in finished.curve]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= finished.seconds
    last = finished.curve[-1]
    assert finished.consensus_distance == last.consensus_distance
    assert last.consensus_distance is not None
    assert last.consensus_distance > 0
    assert last.accuracy == pytest.approx(finished.accuracy, abs=0.01)  # the final average keeps the mean
    assert last.loss is not None
    assert 0.5 < last.computing_share + last.waiting_share <= 1  # a wait under way is not counted yet


def test_by_default_a_curve_has_about_thirty_points() -> None:
    assert 20 <= len(run_one(replace(SHORT, steps=50, evaluate_every=None)).curve) <= 40


def test_the_time_to_a_target_is_that_of_the_first_point_there() -> None:
    finished = run_one(replace(SHORT, steps=30, evaluate_every=3))
    accuracies = [point.accuracy or 0.0 for point in finished.curve]
    assert accuracies[0] < accuracies[-1]
    first = next(point for point in finished.curve if (point.accuracy or 0.0) >= accuracies[-1])
    for target, seconds in ((accuracies[-1], first.seconds), (None, None), (1.0, None)):
        assert replace(finished, setting=replace(SHORT, target_accuracy=target)).seconds_to_target == seconds


def test_where_only_the_clock_runs_nothing_is_evaluated() -> None:
    timed = replace(SHORT, timing_only=True, model_bytes=1000)
    finished = run_one(timed)
    assert (finished.accuracy, finished.loss, finished.consensus_distance) == (None, None, None)
    assert [(point.accuracy, point.loss, point.samples) for point in finished.curve] == [(None, None, None)] * 3
    assert rows_table(rows_of([finished])).row_count == 1


# --- many runs ---


def test_what_is_done_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [replace(SHORT, strategy=name, seed=seed) for name in ("ddp", "gossip") for seed in (0, 1)]
    first = sweep(settings[:3], processes=1, out=tmp_path, progress=False)
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"kind": "run", "identity": "to')  # torn by a crash
    ran: list[Setting] = []

    def note(setting: Setting, say: Any) -> Finished:
        ran.append(setting)
        return run_one(setting, say)

    monkeypatch.setattr("offbeat.sweep.pool.run_one", note)
    target = [replace(setting, target_accuracy=0.01) for setting in settings]
    again = sweep([*target, target[0]], processes=1, out=tmp_path, progress=False)
    assert ran == [target[3]]
    assert [replace(run, setting=run.setting) for run in again[:3]] == [
        replace(run, setting=asked) for run, asked in zip(first, target, strict=False)
    ]
    assert again[4] == again[0]
    assert all(run.seconds_to_target == run.curve[0].seconds for run in again)
    assert len(read_metrics(tmp_path / "runs.jsonl")) == 4


def test_a_run_that_diverges_is_kept_too(tmp_path: Path) -> None:
    wild = replace(SHORT, learning_rate=1e3, steps=20)
    first, again = (sweep([wild], processes=1, out=tmp_path, progress=False)[0] for _ in range(2))
    assert str(first) == str(again)
    assert "nan" in str(first)
    write_csv(tmp_path / "table.csv", rows_of([first]))


def test_links_that_are_not_given_have_words() -> None:
    base = run_one(SHORT)
    given = replace(SHORT, local_link="1gbit", local_latency=1e-3)
    rows = rows_of([base, replace(base, setting=given)])
    assert [label(row, varying(rows)) for row in rows] == [
        "lasgd, the usual link inside nodes, the usual latency inside nodes",
        "lasgd, local 1gbit, local latency 0.001 s",
    ]


def test_seeds_are_one_row(tmp_path: Path) -> None:
    base = run_one(SHORT)
    runs = [
        replace(base, setting=replace(SHORT, strategy=name, seed=seed), accuracy=0.5 + 0.1 * seed)
        for name in ("ddp", "gossip")
        for seed in (0, 1, 2)
    ]
    rows = rows_of([*runs, runs[0]])
    assert [len(row.runs) for row in rows] == [3, 3]
    assert rows[0].mean(lambda each: each.accuracy) == pytest.approx(0.6)
    assert rows[0].spread(lambda each: each.accuracy) == pytest.approx(0.1)
    assert [label(row, varying(rows)) for row in rows] == ["ddp", "gossip"]
    write_csv(tmp_path / "table.csv", rows)
    with (tmp_path / "table.csv").open() as file:
        first = next(csv.DictReader(file))
    assert first["strategy"] == "ddp"
    assert first["seeds"] == "3"
    assert float(first["accuracy"]) == pytest.approx(0.6)
    assert float(first["accuracy_std"]) == pytest.approx(0.1)


def test_progress_says_what_runs_and_how_long_it_will_take(tmp_path: Path) -> None:
    now = 0.0
    with (tmp_path / "said").open("w") as file:
        shown = SweepProgress([1.0, 3.0], kept=2, console=Console(file=file), clock=lambda: now)
        with shown:
            shown.update("one", 0.0, 1.0)
            now = 10.0
            shown.update("one", 1.0, 1.0)
            shown.update("two", 0.0, 3.0)
            assert shown.line() == "sweep: 1 of 2 runs done, 0:10 elapsed, about 0:30 left; now two (0 %)"
    assert (tmp_path / "said").read_text().startswith("2 runs of this sweep are done already and not repeated")


@pytest.mark.timeout(90)
def test_every_run_is_counted_once(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose last step and whose end are told one after the other."""

    def run_all(settings: list[Setting], _processes: int, tell: Callable[[News], None]) -> None:
        for setting in settings:
            tell(News(setting, 1.0))
            tell(News(setting, 1.0, run_one(setting, lambda _: None)))

    monkeypatch.setattr("offbeat.sweep.run.run_all", run_all)
    monkeypatch.setattr("offbeat.report.sweep_progress.EVERY_SECONDS", 0.0)
    sweep([replace(SHORT, seed=seed) for seed in range(2)])
    counts = [line.split()[1] for line in capfd.readouterr().err.splitlines() if line.startswith("sweep:")]
    assert counts == ["0", "1", "1", "2"]


def test_a_sweep_from_the_command_line(tmp_path: Path) -> None:
    arguments = [
        "simulate", "--task", "digits", "--steps", "8", "--strategy", "ddp,lasgd:every=2,delay=1,gossip",
        "--rate", "1,2", "--workers", "2", "--straggler", "none,0:2+1:3", "--seed", "0,1", "--target-accuracy", "0.1",
        "--evaluate-every", "4", "--processes", "2", "--out", "deep/sweep", "--json", "-",
    ]  # fmt: skip
    with running(*arguments, folder=tmp_path) as process:
        assert process.ends() == 0, process.stderr
        runs = json.loads(process.stdout)["runs"]
        said = process.stderr
    assert "16 of 16 runs done" in said
    assert "mean ± standard deviation over 2 seeds" in said
    assert len(runs) == 4 * 2 * 2
    out = tmp_path / "deep" / "sweep"
    pictures = {f"{name}.png" for name in (
        "loss_by_seconds", "loss_by_samples", "accuracy_by_seconds", "accuracy_by_samples", "consensus_by_seconds",
        "shares",
    )}  # fmt: skip
    assert {path.name for path in out.iterdir()} == {"runs.jsonl", "table.csv", *pictures}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {row["seeds"] for row in rows} == {"2"}
    assert {(row["strategy"], row["straggler"]) for row in rows} >= {("gossip:rate=2", "0:2+1:3"), ("ddp", "none")}
    one = next(each for each in runs if each["setting"]["strategy"] == "gossip:rate=2")
    assert one["seconds_to_target"] > 0
    assert len(one["curve"]) == 2
    setting = Setting(**{**one["setting"], "data": None})
    assert run_one(setting).as_dict() | {"real_seconds": 0} == one | {"real_seconds": 0}  # the same bits here as there


# --- bad input ---


@pytest.fixture
def _same_signals() -> Iterator[None]:
    """The command line takes the signals over; give them back."""
    before = {number: signal.getsignal(number) for number in cli.ENDING_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_same_signals")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--strategy ddp,lasdg", r"no strategy 'lasdg': did you mean 'lasgd'\?"),
        ("--strategy ddp,none --every 4,8", r"--every 4,8 does not fit any of ddp, none: .*lasgd"),
        ("--strategy ddp,lasgd:every=4 --every 8", r"--every 8 and --strategy lasgd:every=4 both set every"),
        ("--strategy ddp,gossip --rate 1,0", r"rate=0.* at least 1e-06"),
        ("--strategy gossip --topology ring,rng", r"did you mean 'ring'\?"),
        ("--workers 2,two", r"--workers.*'two' does not fit: give a whole number"),
        ("--workers 2,0", r"--workers 0 .* at least 1"),
        ("--workers 2,100000", r"samples leave some of 100000 workers without any"),
        ("--workers 2,4 --nodes 3", r"3 nodes are more than 2 workers"),
        ("--learning-rate 0.1,fast", r"'fast' does not fit: give a number"),
        ("--link 1gbit,abc", r"'abc' is not a rate"),
        ("--seed 0,-1", r"--seed -1 .* at least 0"),
        ("--straggler none,9:2", r"9 is not a rank"),
        ("--straggler none,0", r"RANK:FACTOR"),
        ("--straggler none,0:2 --straggler 1:2", r"both a list and several flags"),
        ("--jitter 0,1e9", r"at most 100"),
        ("--processes 0", r"--processes 0 .* at least 1"),
        ("--evaluate-every 0", r"--evaluate-every 0 .* at least 1"),
        ("--target-accuracy 85", r"--target-accuracy 85.* at most 1"),
        ("--target-accuracy 0.5 --timing-only", r"out of reach with --timing-only"),
        ("--seed 0,1 --epochs 3 --steps 3", r"--epochs 3 and --steps 3"),
        ("--seed 0,1 --step-seconds soon", r"'measured'"),
        ("--seed 0,1 --model-bytes 5", r"goes with --timing-only"),
        ("--seed 0,1 --task digit", r"did you mean 'digits'\?"),
        ("--seed 0,1 --model gpt", r"gpt does not fit task digits"),
        ("--seed 0,1 --out file", r"file is a file"),
        ("--seed 0,1 --out file/below", r"--out file/below cannot be written to"),
        ("--seed 0,1 --json nowhere/x.json", r"--json nowhere/x.json cannot be written"),
        ("--strategy ddp,daso:warmup_epochs=50", "is more than the"),
        ("--strategy ddp,gossip:topology=hypercube --workers 6", "hypercube"),
        ("--strategy ddp,lasgd:fragments=99999999", "fragments=99999999 does not fit: x has"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_runs(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["offbeat", "simulate", *arguments.split()])
    monkeypatch.setattr("offbeat.sweep.run.run_all", lambda *_: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    check_sentence(err, words)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_another_version_wrote_is_told() -> None:
    with pytest.raises(BadInput, match="written by another version"):
        Finished.from_dict(SHORT, {"accuracy": 0.5})


# --- how a sweep ends early ---

SEEDS = ",".join(map(str, range(1000)))
LONG = ["simulate", "--task", "synthetic", "--steps", "30", "--seed", SEEDS, "--processes", "2", "--out", "out"]


def servants(process: Run) -> list[int]:
    """The processes that simulate, once both are there."""
    while True:
        assert process.process.poll() is None, process.stderr
        found = [pid for pid in process.left() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if len(found) == 2:
            return found
        time.sleep(0.01)


@pytest.mark.timeout(60)
def test_ctrl_c_ends_every_process_and_keeps_what_is_done(tmp_path: Path) -> None:
    with running(*LONG, folder=tmp_path) as process:
        process.until_metrics(tmp_path / "out" / "runs.jsonl", records=2)
        os.killpg(process.process.pid, signal.SIGINT)
        assert process.ends(GONE_SECONDS) == 128 + signal.SIGINT
        assert "offbeat: ended by SIGINT; what was written so far is kept" in process.stderr
        assert "Traceback" not in process.stderr
    assert len(read_metrics(tmp_path / "out" / "runs.jsonl")) >= 2


@pytest.mark.timeout(60)
def test_ctrl_c_while_the_processes_start(tmp_path: Path) -> None:
    with running(*LONG, "--quiet", folder=tmp_path) as process:
        servants(process)
        os.killpg(process.process.pid, signal.SIGINT)
        assert process.ends(GONE_SECONDS) == 128 + signal.SIGINT
        check_sentence(process.stderr, "ended by SIGINT")


@pytest.mark.timeout(60)
def test_a_killed_process_ends_the_sweep_with_a_sentence(tmp_path: Path) -> None:
    with running(*LONG, "--quiet", folder=tmp_path) as process:
        os.kill(servants(process)[0], signal.SIGKILL)
        assert process.ends(30) == 1
        check_sentence(process.stderr, "was ended by SIGKILL: if memory is short, use fewer --processes")
