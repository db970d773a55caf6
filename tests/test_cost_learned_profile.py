"""A calibration: what it visits, what it learns from and what it is judged by, from end to end."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_here

from offbeat.cost import TracedStep
from offbeat.cost.afresh import visits_afresh
from offbeat.cost.calibrate_steps import Found
from offbeat.cost.device_profile import DeviceProfile, load_profile
from offbeat.cost.failed import Failed
from offbeat.cost.kernel_model import LEAST_ERROR
from offbeat.cost.learned_profile import (
    Calibration,
    judged_kernels,
    kernels_file,
    learned_profile,
    never_learned_from,
)
from offbeat.cost.measured_collectives import measured_all_reduces
from offbeat.cost.predict import predict
from offbeat.cost.profile import Profile, Timing
from offbeat.cost.roofline import MATRIX_KINDS, op_seconds
from offbeat.cost.subject import Case, Subject
from offbeat.cost.trace import PLATFORMS, Platform
from offbeat.cost.visits import Visit
from offbeat.cost.zoo import JUDGED_AT, held_out, learned_from
from offbeat.errors import BadInput


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration learns longer: what is found here is simpler than a device."""
    monkeypatch.setattr("offbeat.cost.residual.STEPS", 400)


@pytest.fixture
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of held-out models at all batches are the same for every calibration here; to trace them takes seconds."""
    monkeypatch.setattr(
        "offbeat.cost.learned_profile.never_learned_from", lambda how: held_out_steps(how.platform, how.batches)
    )


@cache
def held_out_steps(platform: Platform, batches: tuple[int, ...]) -> dict[str, TracedStep]:
    return never_learned_from(
        Calibration(platform=platform, device=torch.device("cpu"), path=Path(), minutes=1, batches=batches)
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_held_out_models_share_no_layer_with_those_of_the_calibration(platform: Platform) -> None:
    def layers(step: TracedStep) -> set[str]:
        """Convolutions and products, as they are called for."""
        return {op.kernel.call for op in step.ops if op.kind in MATRIX_KINDS}

    theirs = [*held_out(platform)]
    assert len(theirs) >= 8
    judged = set().union(*(layers(each.at(2)) for each in theirs))
    for each in learned_from(platform):
        assert not layers(each.at(2)) & judged, each.name


def test_no_kernel_is_learned_from_that_a_held_out_model_has_at_any_batch_or_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it is judged by are visited at other batches than those of a calibration, too."""

    def one(platform: Platform, autocast: torch.dtype | None = None) -> list[Subject]:
        return [each for each in held_out(platform, autocast) if each.name == "resnet8"]

    monkeypatch.setattr("offbeat.cost.learned_profile.held_out", one)
    how = Calibration(platform="cpu", device=torch.device("cpu"), path=tmp_path / "p.json", minutes=1, batches=(2, 3))
    unseen = {kernel.call for step in never_learned_from(how).values() for kernel in step.kernels}
    for autocast in (None, torch.bfloat16):
        for each in one("cpu", autocast):
            for batch in (3, *JUDGED_AT["cpu"]):
                assert {kernel.call for kernel in each.at(batch).kernels} <= unseen


def test_precisions_have_random_cases_of_their_own(tmp_path: Path) -> None:
    how = Calibration(platform="cpu", device=torch.device("cpu"), path=tmp_path / "p.json", minutes=1, bf16=True)
    cases = [*itertools.islice(how.random_cases(), 12)]  # of models and layers, in float32 and bfloat16
    assert [subject.autocast for subject, _ in cases] == [None, torch.bfloat16] * 6
    kinds = [subject.name.split()[1] for subject, _ in cases]
    assert kinds == [*["model"] * 4, *["layers"] * 2] * 2, "a CPU makes two small ones for each of many layers"
    assert len({subject.name for subject, _ in cases}) == len(cases)


VISITS = 16  # half of them of models of the zoo, half of random ones


@pytest.mark.usefixtures("_traced_once")
@pytest.mark.timeout(200)
def test_a_calibration_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few visits, however long they take: that it is whole, can be planned with, and goes on where it was."""
    path, seen = tmp_path / "here.json", set[str]()

    def calibrated(visits: int) -> DeviceProfile:
        def few(cases: Iterable[Case], until: float, **how: Any) -> Iterator[Found]:
            return visits_afresh(itertools.islice(cases, visits), until, **how, patience_seconds=1.0)

        monkeypatch.setattr("offbeat.cost.learned_profile.visits_afresh", few)
        how = Calibration(platform="cpu", device=torch.device("cpu"), path=path, minutes=10, batches=(2,))
        return learned_profile(how, None, lambda what, _done, _all: seen.add(what))

    calibrated(VISITS).save(path)
    assert seen == {"learning", "real steps"}
    kept = Profile.load(kernels_file(path))
    assert any("random model" in name for name in kept.steps)
    profile = load_profile(str(path))
    assert profile.label == "calibrated"
    assert profile.kernels is not None
    assert {"mlp", "trees", "gaussian", "both", "roofline", "kept", "steps"} <= set(profile.kernels.held_out)
    judged = profile.kernels.held_out["steps"]["models"].values()
    low, high = profile.kernels.band
    assert all(low <= 1 / (1 + error) <= high for error in judged), "real times by predicted ones"
    assert low <= 1 / (1 + LEAST_ERROR) < 1 + LEAST_ERROR <= high
    assert profile.setup["torch"] == torch.__version__
    printed = run_here(
        ["plan", "--device", str(path), "--model", "mlp", "--nodes", "2", "--workers-per-node", "1", "--link", "1gbit",
         "--strategies", "ddp"], tmp_path,
    )  # fmt: skip
    assert "calibrated; a step takes" in printed
    calibrated(1)
    again = Profile.load(kernels_file(path))
    assert len(again.steps) == len(kept.steps) + 1
    assert {name: again.steps[name] for name in kept.steps} == kept.steps, "not visited again"
    assert again.reference_seconds == kept.reference_seconds


def roofline_visits(cases: Iterable[Case], _until: float) -> Iterator[Found]:
    """Of a device that takes for everything what a roofline says, and that has no bfloat16."""
    device = replace(load_profile("cpu1").device, launch_seconds=1e-5)
    for subject, batch in cases:
        if subject.autocast is not None:
            yield (subject, batch), Failed("RuntimeError: no bfloat16 here")
            continue
        step = subject.at(batch)
        ops = tuple(op_seconds(op.kernel, device) for op in step.ops)
        yield (subject, batch), Visit(sum(ops), (sum(ops), 0.0, 0.0), tuple(step.kernels), ops)


@pytest.mark.usefixtures("_traced_once")
def test_a_precision_that_fails_on_a_device_is_left_out_and_estimated_by_roofline(tmp_path: Path) -> None:
    path = tmp_path / "here.json"

    def some(cases: Iterable[Case], until: float) -> Iterator[Found]:
        return roofline_visits(itertools.islice(cases, 2 * VISITS), until)

    how = Calibration(
        platform="cpu", device=torch.device("cpu"), path=path, minutes=10, bf16=True, batches=(2,), visiting=some
    )
    learned_profile(how, None, lambda *_: None).save(path)
    profile = load_profile(str(path))
    assert set(profile.failed.values()) == {"RuntimeError: no bfloat16 here"}
    assert {name.rpartition(", ")[2] for name in profile.failed} == {"bf16"}
    subject, narrow = next(held_out("cpu")), next(held_out("cpu", torch.bfloat16))
    assert "matmul" in predict(narrow.at(2), profile).estimated
    assert "matmul" not in predict(subject.at(2), profile).estimated


@pytest.mark.timeout(60)
def test_all_reduces_among_local_workers() -> None:
    points = measured_all_reduces(2, torch.device("cpu"), sizes=(1 << 10, 1 << 20))
    assert [(point.ranks, point.nbytes) for point in points] == [(2, 1 << 10), (2, 1 << 20)]
    assert all(0 < point.seconds < 10 for point in points)
    with pytest.raises(BadInput, match="an all-reduce takes at least 2"):
        measured_all_reduces(1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        ("--device tpu", "no device to calibrate 'tpu': .*choose one of cpu, cuda"),
        ("--minutes 11", "--minutes 11.0 does not fit: it must be above 0 and at most 10"),
        ("--out nowhere/x.json", "profile nowhere/x.json cannot be written there"),
        ("--workers 1 --out x.json", "--workers 1 does not fit: an all-reduce takes at least 2"),
    ],
)
def test_bad_input(tmp_path: Path, flags: str, pattern: str) -> None:
    with pytest.raises(BadInput, match=pattern):
        run_here(["calibrate", *flags.split()], tmp_path)


def test_kernels_are_judged_in_the_precision_of_their_step() -> None:
    """As left by an earlier call with autocast, from which one without goes on."""
    subject, narrow = next(held_out("cpu")), next(held_out("cpu", torch.bfloat16))
    timings = {kernel: Timing(1.0, 1) for each in (subject, narrow) for kernel in each.at(2).kernels}
    assert set(judged_kernels(timings, {"own": subject.at(2)})) == set(subject.at(2).kernels) < set(timings)


@pytest.mark.parametrize(("mean", "warned"), [(0.05, False), (0.4, True)])
def test_a_finished_calibration_leaves_nothing_beside_it_and_says_when_it_is_poor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mean: float, warned: bool
) -> None:
    from offbeat.cost import calibrate_command

    path = tmp_path / "here.json"

    def made(how: Calibration, *_: object) -> DeviceProfile:
        kernels_file(how.path).write_text("measured so far")
        judged = {"mean": mean, "worst": mean, "models": {"x": mean}}
        shipped = load_profile("cpu1")
        assert shipped.kernels is not None
        held_out = {**shipped.kernels.held_out, "steps": judged, "left_out": ["x, batch 2"]}
        kernels = replace(shipped.kernels, held_out=held_out)
        return replace(shipped, kernels=kernels, failed={"y, batch 2": "ValueError: no", "z, batch 2": "MemoryError"})

    monkeypatch.setattr(calibrate_command, "learned_profile", made)
    calibrate_command.calibrate(
        device="cpu", name=None, out=path, minutes=1.0, workers=None, bf16=None, seed=0, quiet=False
    )
    printed = capsys.readouterr().out
    assert path.exists()
    assert not kernels_file(path).exists()
    assert ", kept" in printed
    assert ("that is much: calibrate again" in printed) == warned
    assert "left out, as they issue other operations than their trace: x, batch 2" in printed
    assert "left out, as it failed here: y, batch 2 (ValueError: no), and 1 other; estimated " in printed
