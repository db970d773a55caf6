"""simulate --device: steps as long as a profile predicts, gradients ready when it says."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run_here

from offbeat.cost.collectives import Hop
from offbeat.cost.device_profile import load_profile
from offbeat.cost.fit import Fitted, Piece
from offbeat.cost.for_simulation import predicted_step
from offbeat.cost.pace import Machines, Work, pace, played_out
from offbeat.cost.predict import predict
from offbeat.cost.step import StepTime
from offbeat.cost.subject import find_subject
from offbeat.cost.wires import Wires
from offbeat.errors import BadInput
from offbeat.layout import Layout
from offbeat.sim.cluster import INSIDE_A_NODE
from offbeat.sim.network import Link
from offbeat.strategies import make_strategy
from offbeat.sweep import Setting
from offbeat.train.job import Job

SHORT = shlex.split("--workers 4 --nodes 4 --steps 5 --timing-only --strategy ddp --quiet --json result.json")


def simulated(folder: Path, *flags: str) -> dict[str, object]:
    run_here(["simulate", *SHORT, *flags], folder)
    read: dict[str, object] = json.loads((folder / "result.json").read_text())
    return read


def test_a_step_takes_what_the_profile_says(tmp_path: Path) -> None:
    seconds, shape = predicted_step(Job(strategy=make_strategy("ddp"), task="synthetic"), "cpu2")
    assert 0 < seconds < 1
    assert 0 < shape.optimizer_share < 1
    result = simulated(tmp_path, "--task", "synthetic", "--device", "cpu2", "--link", "1000gbit", "--latency", "0")
    assert result["compute"] == f"predicted, {seconds:.3g} s a step"
    assert result["steps_per_second"] == pytest.approx(1 / seconds, rel=0.05)


def test_a_faster_device_is_faster_and_a_larger_batch_slower(tmp_path: Path) -> None:
    def speed(*flags: str) -> float:
        value = simulated(tmp_path, "--task", "synthetic", "--link", "1000gbit", *flags)["steps_per_second"]
        assert isinstance(value, float)
        return value

    assert speed("--device", "cpu2", "--batch", "512") < speed("--device", "cpu2", "--batch", "16")
    assert speed("--device", "cpu2", "--batch", "512") < speed("--device", "h100", "--batch", "512")


def test_sweeps_take_it_too(tmp_path: Path) -> None:
    flags = [flag if flag != "ddp" else "ddp,local_sgd" for flag in SHORT]
    run_here(["simulate", *flags, "--task", "synthetic", "--device", "cpu2", "--processes", "1"], tmp_path)
    runs = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert [run["setting"]["device"] for run in runs] == ["cpu2", "cpu2"]
    one, other = (Setting(task="synthetic", device=device) for device in ("cpu2", "h100"))
    assert one.cluster.step_seconds != other.cluster.step_seconds
    assert one.identity != other.identity


def test_links_are_those_of_the_profile_unless_given() -> None:
    local = load_profile("h100").local
    assert Setting(task="synthetic", device="h100").cluster.local == local
    slower = Setting(task="synthetic", device="h100", local_link="1gbit")
    assert slower.cluster.local == replace(local, bytes_per_second=1.25e8)
    assert Setting(task="synthetic", device="h100", local_latency=1.0).cluster.local == replace(local, seconds=1.0)
    assert Setting(task="synthetic").cluster.local == INSIDE_A_NODE
    assert (
        Setting().identity == Setting(local_link="80gbit", local_latency=5e-6).identity != Setting(latency=1.0).identity
    )


def test_a_measured_link_is_the_one_of_the_profile(tmp_path: Path) -> None:
    hop = Hop(3e-5, 1e-8)
    profile = replace(load_profile("cpu2"), all_reduce=Fitted("ring", (Piece(0, hop),), 0.01))
    profile.save(tmp_path / "mine.json")
    link = Setting(task="synthetic", device=str(tmp_path / "mine.json"), link="measured").cluster.link
    assert (link.bytes_per_second, link.seconds) == pytest.approx((1e8, 3e-5))
    assert not Setting(task="synthetic", device=str(tmp_path / "mine.json"), link="measured").cluster.swaps
    with pytest.raises(BadInput, match=r"--link measured: the profile of .* has no measured all-reduce"):
        Setting(task="synthetic", device="cpu2", link="measured")
    with pytest.raises(BadInput, match="'measured' is not a rate"):
        Setting(task="synthetic", link="measured")


def test_measured_swaps_are_those_of_the_profile(tmp_path: Path) -> None:
    pieces = Piece(0, Hop(1e-3, 1e-6)), Piece(1 << 20, Hop(1e-2, 1e-7))
    reduced = Fitted("ring", (Piece(0, Hop(3e-5, 1e-8)),), 0.01)
    profile = replace(load_profile("cpu2"), all_reduce=reduced, swap=Fitted("swap", pieces, 0.02))
    path = tmp_path / "mine.json"
    profile.save(path)
    setting = Setting(task="synthetic", device=str(path), link="measured")
    (small, first), (large, second) = setting.cluster.swaps
    assert (small, large) == (0, 1 << 20)
    assert (first.bytes_per_second, first.seconds) == pytest.approx((1e6, 1e-3))
    assert (second.bytes_per_second, second.seconds) == pytest.approx((1e7, 1e-2))
    assert not Setting(task="synthetic", device=str(path), link="1gbit").cluster.swaps


def test_plans_charge_measured_swaps() -> None:
    link = Link(bytes_per_second=1e9, seconds=1e-5)
    time = StepTime(forward_seconds=0.003, backward_seconds=0.006, optimizer_seconds=0.001, ready=((1 << 20, 0.009),))
    work, layout = Work(time=time, model_bytes=1 << 20), Layout.even(4, 4)
    reduced = Fitted("ring", (Piece(0, Hop(1e-5, 1e-9)),), 0.0)

    def exchanges(swap: Fitted | None) -> float:
        wires = Wires(link=link, local=link, fitted=reduced, swap=swap)
        return pace(make_strategy("gossip"), work, Machines(layout=layout, wires=wires)).averages_per_step

    same, slow = (Fitted("swap", (Piece(0, Hop(1e-5, each)),), 0.0) for each in (1e-9, 1e-7))
    assert exchanges(None) == exchanges(same) > 2 * exchanges(slow) > 0, "0.1 s each, and a step takes 0.01 s"


def test_given_bytes_travel_at_the_usual_times() -> None:
    assert Setting(task="synthetic", device="cpu2", timing_only=True, model_bytes=10**8).cluster.shape is None
    assert Setting(task="synthetic", device="cpu2").cluster.shape is not None


def test_what_is_simulated_is_what_is_planned() -> None:
    """The prediction of a task, through the plan's closed form and through the virtual world."""
    subject, profile = find_subject("resnet8", platform="cuda"), load_profile("a100")
    prediction = predict(subject.at(64), profile)
    work = Work(time=prediction.time, model_bytes=prediction.trace.memory.weights)
    link = Link(bytes_per_second=1e9, seconds=1e-5)
    machines = Machines(layout=Layout.even(8, 4), wires=Wires(link=link, local=link))
    formula, played = (each(make_strategy("ddp"), work, machines) for each in (pace, played_out))
    assert formula.by != played.by
    assert played.step_seconds == pytest.approx(formula.step_seconds, rel=1e-6)


def test_two_answers_to_how_long_a_step_takes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--device cpu2 and --step-seconds 0\.2 both say how long a step takes"):
        simulated(tmp_path, "--device", "cpu2", "--step-seconds", "0.2")
    with pytest.raises(BadInput, match="there is no device 'cpu'"):
        simulated(tmp_path, "--device", "cpu")
