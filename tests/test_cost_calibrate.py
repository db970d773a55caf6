"""What a calibration measures: that it can be written down and read back, and is of this machine."""

import json
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch

from offbeat.cost import Kernel
from offbeat.cost import calibrate_command as command
from offbeat.cost.counts import bytes_of, flops_of
from offbeat.cost.device_profile import load_profile
from offbeat.cost.profile import VERSION, Profile
from offbeat.cost.profile_at import device_name, profile_at
from offbeat.cost.random_models import random_models
from offbeat.cost.written import from_json, to_json
from offbeat.errors import BadInput


@cache
def kernels_of_random_models(autocast: torch.dtype | None, count: int = 18) -> list[Kernel]:
    models = islice(random_models(seed=0, platform="cpu", autocast=autocast), count)
    return list(dict.fromkeys(op.kernel for subject, batch in models for op in subject.at(batch).ops))


def test_random_models_reach_every_kind_that_models_have() -> None:
    kernels = kernels_of_random_models(None, 60)
    assert {kernel.kind for kernel in kernels} >= {
        "matmul", "convolution", "attention", "batch_norm", "row_norm", "softmax", "pool", "gather", "scatter",
        "random", "copy", "reduction", "elementwise",
    }  # fmt: skip
    groups = {kernel.argument("groups") for kernel in kernels if kernel.kind == "convolution"}
    assert {1, 8} < groups


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_kernels_survive_json(autocast: torch.dtype | None) -> None:
    for kernel in kernels_of_random_models(autocast):
        again = from_json(json.loads(json.dumps(to_json(kernel))))
        assert again == kernel
        assert (again.arguments, again.inputs, again.written) == (kernel.arguments, kernel.inputs, kernel.written)
        assert (flops_of(again), bytes_of(again)) == (flops_of(kernel), bytes_of(kernel))


def test_profile_of_another_setup_is_not_added_to(tmp_path: Path) -> None:
    path, device = tmp_path / "cpu.json", torch.device("cpu")
    own = profile_at(path, device)
    own.save(path)
    assert profile_at(path, device) == own
    Profile("another machine", own.setup).save(path)
    with pytest.raises(BadInput, match=r"was measured on another machine .*: choose another file, or delete that one"):
        profile_at(path, device)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", f'{{"version": {VERSION}, "device": "x", "steps": {{}}, "kernels": [{{}}]}}']
)
def test_files_that_are_no_profile_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"is no profile of a device .*: write one with offbeat calibrate"):
        Profile.load(path)


def test_profile_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"version": 0}')
    with pytest.raises(BadInput, match=rf"is of version 0, not {VERSION}: delete it, and calibrate again"):
        Profile.load(path)


def test_a_profile_of_another_device_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet, old = (tmp_path / name for name in ("h100.json", "old.json"))
    load_profile("h100").save(sheet)
    before = sheet.read_bytes()
    old.write_text('{"version": 0}')
    with pytest.raises(BadInput, match=r"^h100\.json is the profile of NVIDIA H100"):
        calibrate(sheet)
    assert sheet.read_bytes() == before
    own, threads = device_name(torch.device("cpu")), torch.get_num_threads()
    cpu = replace(load_profile("cpu1"), device=replace(load_profile("cpu1").device, name=own))
    replace(cpu, setup={**cpu.setup, "threads": threads + 1}).save(sheet)
    with pytest.raises(BadInput, match=rf"^h100\.json is the profile of .*, {threads + 1} threads"):
        calibrate(sheet)
    replace(cpu, setup={**cpu.setup, "threads": threads}).save(sheet)
    monkeypatch.setattr("offbeat.cost.calibrate_command.learned_profile", lambda *_: load_profile("cpu1"))
    for path in (old, sheet, tmp_path / "new.json"):
        calibrate(path)
        assert load_profile(str(path)).device.name == load_profile("cpu1").device.name


def calibrate(path: Path) -> None:
    command.calibrate(
        device="cpu", name=None, out=path, minutes=1.0, workers=None, bf16=False, seed=0, quiet=True
    )  # fmt: skip
