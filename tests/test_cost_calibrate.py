"""Calibration: what is measured, that it can be read back, and that it goes on where it was interrupted."""

import itertools
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from offbeat.cost import Kernel
from offbeat.cost.calibrate import calibrate
from offbeat.cost.counts import bytes_of, flops_of
from offbeat.cost.layers import random_kernels
from offbeat.cost.profile import Profile
from offbeat.cost.replay import replay
from offbeat.cost.timing import Stopwatch
from offbeat.cost.written import from_json, to_json
from offbeat.errors import BadInput

SMALL = 1 << 12
QUICK = Stopwatch(device=torch.device("cpu"), calls=3, at_most_seconds=0.1)


def some(count: int, seed: int = 0, autocast: torch.dtype | None = None) -> list[Kernel]:
    return list(itertools.islice(random_kernels(seed=seed, most=SMALL, autocast=autocast), count))


def test_random_kernels_follow_the_seed_and_differ() -> None:
    assert [kernel.signature for kernel in some(60)] == [kernel.signature for kernel in some(60)]
    assert len(set(some(60))) == 60
    assert some(60) != some(60, seed=1)


def test_random_layers_reach_every_kind_that_models_have() -> None:
    kinds = {kernel.kind for kernel in some(600)}
    assert kinds >= {
        "matmul", "convolution", "attention", "batch_norm", "row_norm", "softmax", "pool", "gather", "scatter",
        "random", "copy", "reduction", "elementwise",
    }  # fmt: skip
    groups = {kernel.argument("groups") for kernel in some(2000) if kernel.kind == "convolution"}
    assert {1, 8} < groups


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_kernels_survive_json_and_run(autocast: torch.dtype | None) -> None:
    for kernel in some(250, autocast=autocast):
        again = from_json(json.loads(json.dumps(to_json(kernel))))
        assert again == kernel
        assert (again.arguments, again.inputs, again.written) == (kernel.arguments, kernel.inputs, kernel.written)
        assert (flops_of(again), bytes_of(again)) == (flops_of(kernel), bytes_of(kernel))
        replay(again)()


def test_stopwatch_takes_the_median_of_calls_that_go_round() -> None:
    naps = [0.002, 0.002, 0.03]
    called: list[int] = []

    def nap(index: int) -> None:
        called.append(index)
        time.sleep(naps[index])

    timing = replace(QUICK, calls=5, at_most_seconds=10.0).time_calls(
        [lambda index=index: nap(index) for index in range(3)]  # type: ignore[misc]
    )
    assert called == [0, 1, 2, 0, 1, 2, 0, 1]  # three to warm up
    assert timing.calls == 5
    assert 0.002 <= timing.seconds < 0.02


def test_slow_calls_are_repeated_less_often() -> None:
    timing = replace(QUICK, calls=100, at_most_seconds=0.01).time_calls([lambda: time.sleep(0.01)])
    assert timing.calls == 3


def test_calibration_is_balanced_and_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    kernels = some(300)
    seen: list[tuple[int, int]] = []

    def note(done: int, wanted: int, _kernel: Kernel) -> None:
        seen.append((done, wanted))

    first = calibrate(kernels[:150], path, per_kind=2, stopwatch=QUICK, progress=note)
    assert max(Counter(kernel.kind for kernel in first.timings).values()) == 2
    assert seen == [(number, len(first.timings)) for number in range(1, len(first.timings) + 1)]
    second = calibrate(kernels, path, per_kind=2, stopwatch=QUICK)
    assert len(second.timings) > len(first.timings)
    assert {kernel: second.timings[kernel] for kernel in first.timings} == first.timings, "not measured again"
    assert Profile.load(path) == second
    assert all(timing.seconds > 0 and timing.calls == 3 for timing in second.timings.values())


def test_calibration_ends_in_time_and_kinds_take_turns(tmp_path: Path) -> None:
    kernels = some(300)
    assert not calibrate(kernels, tmp_path / "none.json", at_most_seconds=-1.0, stopwatch=QUICK).timings
    order: list[str] = []
    calibrate(
        kernels, tmp_path / "cpu.json", per_kind=2, stopwatch=QUICK,
        progress=lambda _done, _wanted, kernel: order.append(kernel.kind),
    )  # fmt: skip
    kinds = len(set(order))
    assert len(set(order[:kinds])) == kinds, "one of each before any second"


def test_profile_of_another_setup_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    profile = calibrate(some(3), path, stopwatch=QUICK)
    Profile("another machine", profile.setup, profile.timings).save(path)
    with pytest.raises(BadInput, match=r"was measured on another machine .*: choose another file, or delete that one"):
        calibrate(some(3), path, stopwatch=QUICK)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 2, "device": "x", "steps": {}, "kernels": [{}]}'])
def test_files_that_are_no_profile_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"is no profile of a device .*: write one with offbeat calibrate"):
        Profile.load(path)


def test_profile_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"version": 0}')
    with pytest.raises(BadInput, match="is of version 0, not 2: delete it, and calibrate again"):
        Profile.load(path)
