"""compare: the same loop around every contestant, on loopback and, as root, on shaped links."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from offbeat import cli
from offbeat.compare.config import Config
from offbeat.compare.contest import Contest, Entry, run_contest
from offbeat.compare.failures import LapFailed
from offbeat.compare.lap import Lap
from offbeat.compare.measures import bytes_per_sample, measure, wire_utilisation
from offbeat.compare.snapshots import Point
from offbeat.compare.worker import Report
from offbeat.emulate import missing
from offbeat.errors import BadInput
from offbeat.train.shards import Shard
from offbeat.train.tasks import load_task

RIVAL = """
from contextlib import contextmanager
from torch.nn.parallel import DistributedDataParallel

@contextmanager
def train(model, optimizer, setup):
    yield DistributedDataParallel(model), optimizer

@contextmanager
def broken(model, optimizer, setup):
    raise RuntimeError("no such luck")
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


def test_an_entry_says_who_where_and_when() -> None:
    assert str(Entry("ddp", None, 4, 0, 0)) == "ddp on 4 workers, loopback, repeat 0"


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
