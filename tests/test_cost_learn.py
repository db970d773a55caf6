"""Learning a device: that it finds what there is to find, is the same every time, and says how sure it is."""

import itertools
import json
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from kernels import convolutions_of, drawn_kernels
from torch import nn
from torch.optim import SGD

from offbeat.cost import Device, Kernel, TracedStep, trace
from offbeat.cost.counts import bytes_of
from offbeat.cost.device_profile import DeviceProfile
from offbeat.cost.features import class_of
from offbeat.cost.host import COLD_AT, COLD_FROM, Host, PhaseTiming, StepTiming, _cold, fit_host
from offbeat.cost.kernel_model import LEAST_ERROR, SHORTEST, ClassModel, KernelModel
from offbeat.cost.learn import (
    BOTH,
    FEWEST,
    MOST,
    WAYS,
    Judged,
    _mean_of,
    _some,
    judge,
    kernel_seconds,
    learn_kernels,
    measured_device,
)
from offbeat.cost.op import PHASES
from offbeat.cost.plan import Question, plan
from offbeat.cost.predict import predict
from offbeat.cost.profile import Timing
from offbeat.cost.roofline import op_seconds
from offbeat.cost.subject import find_subject
from offbeat.cost.trace import Platform
from offbeat.cost.verdict import notes
from offbeat.cost.wires import Wires
from offbeat.sim.network import Link

DEVICE = Device(
    name="imagined", flops_per_second={torch.float32: 1e11}, bytes_per_second=1e10, launch_seconds=2e-6,
    memory_bytes=1 << 34,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration learns longer: what is found here is simpler than a device."""
    monkeypatch.setattr("offbeat.cost.residual.STEPS", 400)


@dataclass(frozen=True)
class Always:
    """g is the same everywhere."""

    g: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.full(len(x), self.g)

    def as_dict(self) -> dict[str, Any]:
        return {}


def imagined(kernel: Kernel) -> Timing:
    """Matrix products reach less of the rate the fewer rows they have; all else half of the bandwidth."""
    busy = op_seconds(kernel, DEVICE) - DEVICE.launch_seconds
    factor = 1 + 20 / kernel.inputs[0].shape[0] if kernel.kind == "matmul" else 2.0
    return Timing(DEVICE.launch_seconds + busy * factor, 3)


@lru_cache
def perceptron(width: int, batch: int = 48) -> TracedStep:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))

    return trace(build, torch.zeros(batch, width), None, loss=lambda out, _: out.mean(), optimizer=partial(SGD, lr=0.1))


@lru_cache
def timings() -> dict[Kernel, Timing]:
    drawn = drawn_kernels(28)
    unseen = [op.kernel for width in (100, 300) for op in perceptron(width).ops]
    return {kernel: imagined(kernel) for kernel in (*drawn, *unseen) if bytes_of(kernel)}


@lru_cache
def learned() -> KernelModel:
    return learn_kernels(timings(), DEVICE, {str(width): perceptron(width) for width in (100, 300)})


def test_what_is_learned_beats_the_roofline_on_models_not_seen() -> None:
    said = learned().held_out
    ways = (*WAYS, BOTH)
    assert said["kept"] in ways

    def spread(way: str) -> float:
        return float(np.linalg.norm([*said[way]["models"].values()]))

    assert spread(said["kept"]) == min(map(spread, ways))
    assert said[said["kept"]]["mean"] < 0.05
    assert said["roofline"]["mean"] > 0.2
    assert set(said["mlp"]["models"]) == {"100", "300"}


def test_both_is_the_mean_of_trees_and_a_gaussian_process() -> None:
    trees, gaussian = (
        KernelModel({"matmul/nn": ClassModel((), np.zeros(1), np.ones(1), Always(g), 0.1, 8)}, {}) for g in (1.0, 3.0)
    )
    both = _mean_of(trees, gaussian).classes["matmul/nn"].residual
    assert both(np.zeros((4, 1))).tolist() == [2.0] * 4


def test_one_step_that_is_far_off_is_worse_than_several_that_are_a_little_off() -> None:
    far, little = Judged({"x": 0.2, "y": 0.0}, {}), Judged({"x": 0.11, "y": -0.11}, {})
    assert far.mean < little.mean
    assert far.spread > little.spread


def test_few_of_a_class_are_learned_with_their_kind() -> None:
    """And a profile that knows only the kind takes that."""
    plain = [kernel for width in range(4, 16) for kernel in convolutions_of(nn.Conv2d(width, width, 3), width)]
    own = [kernel for width in (4, 5) for kernel in convolutions_of(nn.Conv2d(width, width, 3, groups=width), width)]
    forward = {kernel for kernel in plain if not kernel.part}
    few = {kernel for kernel in plain if kernel.part == "weight"}
    own_forward = {kernel for kernel in own if not kernel.part and class_of(kernel).endswith("/depthwise")}
    assert 0 < len(own_forward) < FEWEST <= len(forward)
    some = [*forward, *own_forward, *list(few)[: FEWEST - 1]]
    model = learn_kernels({kernel: imagined(kernel) for kernel in some}, DEVICE, {})
    assert set(model.classes) == {"convolution/forward", "convolution"}
    assert model.classes["convolution/forward"].measured == len(forward | own_forward)
    assert model.classes["convolution"].measured == len(some), "too few by themselves, so with all of their kind"
    assert None not in model.corrections([*own_forward, *few])
    whole = learn_kernels({kernel: imagined(kernel) for kernel in [*list(forward)[:5], *list(few)[:5]]}, DEVICE, {})
    assert set(whole.classes) == {"convolution"}
    assert None not in whole.corrections([*forward, *few])


def test_a_kind_stands_in_for_classes_that_were_not_measured() -> None:
    plain = [kernel for width in range(4, 16) for kernel in convolutions_of(nn.Conv2d(width, width, 3), width)]
    measured = [kernel for kernel in plain if kernel.part in ("", "weight")]
    others = [kernel for kernel in plain if kernel.part == "bias"]
    model = learn_kernels({kernel: imagined(kernel) for kernel in measured}, DEVICE, {})
    assert set(model.classes) == {"convolution/forward", "convolution/weight", "convolution"}
    assert len({class_of(kernel) for kernel in others} & set(model.classes)) == 0 < len(others)
    for kernel, said in zip(others, kernel_seconds(model, others, DEVICE), strict=True):
        assert said == pytest.approx(imagined(kernel).seconds, rel=0.3)


def test_a_class_of_many_is_learned_from_some_of_them() -> None:
    kernels = drawn_kernels(12, seed=1)
    many = (kernels * (MOST // len(kernels) + 1))[: MOST + 7]
    some = _some(many, MOST)
    assert (len(some), some[0], some[-1]) == (MOST, many[0], many[-2])
    assert _some(kernels, MOST) == kernels


def test_kernels_of_held_out_models_are_not_learned_from() -> None:
    unseen = {op.kernel.call for width in (100, 300) for op in perceptron(width).ops}
    seen = [kernel for kernel in timings() if kernel.call not in unseen]  # also where it stands elsewhere in a step
    assert learned().held_out["kernels"] == len(seen) < len(timings())


def test_learning_is_the_same_every_time_and_survives_json() -> None:
    again = learn_kernels(timings(), DEVICE, {str(width): perceptron(width) for width in (100, 300)})
    assert json.dumps(again.as_dict()) == json.dumps(learned().as_dict())
    read = KernelModel.from_dict(json.loads(json.dumps(learned().as_dict())), DEVICE)
    kernels = list(timings())[:300]
    was, now = (np.array(model.corrections(kernels), dtype=float) for model in (learned(), read))
    differences = np.abs(was - now)
    assert np.nanquantile(differences, 0.99) < 0.01
    assert np.nanmax(differences) < 0.05, "where a tree's rounded threshold lies between two kernels"


def test_far_from_what_was_measured_the_law_leads() -> None:
    def product(n: int) -> Kernel:
        return next(op.kernel for op in perceptron(n).ops if op.kind == "matmul")

    model = learned()
    near, far = (model.corrections([product(n)])[0] for n in (2000, 20_000))
    assert near is not None
    assert far is not None
    assert abs(near - far) < 0.7, "100 times the work, but no wild guess"


def test_speeds_are_those_that_the_fastest_kernels_reach() -> None:
    device = measured_device("x", timings(), memory_bytes=1, dispatch_seconds=0.0)
    assert device.flops_per_second[torch.float32] == pytest.approx(1e11, rel=0.3)
    assert device.bytes_per_second <= 1.01e10
    assert device.launch_seconds == pytest.approx(2e-6, rel=0.15)


def profile_with(model: KernelModel) -> DeviceProfile:
    return DeviceProfile(
        device=DEVICE, platform="cpu", label="calibrated", band=(0.5, 2.0), kernels=model, setup={"torch": "1.0"},
        local=Link(bytes_per_second=5e9, seconds=2e-5),
    )  # fmt: skip


def test_a_precision_that_was_not_measured_is_estimated_by_roofline() -> None:
    subject = find_subject("mlp", platform="cpu", bf16=True)
    only_float32 = profile_with(learned())
    assert torch.bfloat16 not in DEVICE.flops_per_second
    prediction = predict(subject.at(8), only_float32)
    assert "matmul" in prediction.estimated
    assert not predict(find_subject("mlp", platform="cpu").at(8), only_float32).estimated
    rates = {**DEVICE.flops_per_second, torch.bfloat16: DEVICE.flops_per_second[torch.float32]}
    both = replace(only_float32, device=replace(DEVICE, flops_per_second=rates))
    assert not predict(subject.at(8), both).estimated


def test_the_band_reaches_as_far_as_real_steps_did_each_way() -> None:
    model = KernelModel({}, {"steps": {"models": {"too short": -0.75, "too long": 0.25}}})
    assert model.band == (0.8, 4.0), "predicted a quarter of what it took, and five quarters"
    assert KernelModel({}, {"steps": {"models": {"good": 0.01}}}).band == (1 / (1 + LEAST_ERROR), 1 + LEAST_ERROR)


def test_a_band_that_a_file_makes_endless_is_none() -> None:
    assert KernelModel({}, {"steps": {"models": {"nothing": -1.0}}}).band[1] == 1 / SHORTEST


def test_float64_is_estimated_by_roofline_where_only_float32_was_measured() -> None:
    inputs = torch.zeros(2, 8, dtype=torch.float64)
    step = trace(lambda: nn.Linear(8, 4).double(), inputs, None, loss=lambda out, _: out.mean(),
                 optimizer=partial(SGD, lr=0.1))  # fmt: skip
    assert "matmul" in predict(step, profile_with(learned())).estimated


def test_classes_that_were_not_measured_are_named_with_their_share() -> None:
    without = KernelModel(
        {name: each for name, each in learned().classes.items() if not name.startswith("matmul")}, learned().held_out
    )
    profile = profile_with(without)
    prediction = predict(perceptron(300), profile)
    assert set(prediction.estimated) == {"matmul"}
    assert 0.2 < prediction.estimated["matmul"] < 1
    low, high = prediction.band
    assert profile.band[0] < low < 1 < high < profile.band[1], "of both kinds"
    question = Question(
        subject=find_subject("mlp", platform="cpu"), profile=profile, nodes=1, workers_per_node=1, batch=8,
        wires=Wires(link=profile.local, local=profile.local), strategies=("ddp",),
    )  # fmt: skip
    said = notes(plan(question))
    assert any("estimated by roofline: matmul" in each and "% of the time" in each for each in said), said
    assert any("was calibrated with torch 1.0, and this is" in each for each in said), said


def test_operators_that_were_not_measured_are_named_with_their_share() -> None:
    model = learned()
    products = {name: each for name, each in model.classes.items() if name.startswith("matmul")}
    operators = {operator for each in products.values() for operator in each.operators}
    renamed = {
        name: replace(each, operators=tuple(f"not {operator}" for operator in each.operators))
        for name, each in products.items()
    }
    others = KernelModel({**model.classes, **renamed}, model.held_out)
    usual, unsure = (predict(perceptron(300), profile_with(each)) for each in (model, others))
    assert set(usual.likened) == {"ones_like"}, "the gradient of a mean, which nothing drawn has"
    more = set(unsure.likened) - {"ones_like"}
    assert more
    assert more <= operators
    assert not unsure.estimated, "they are taken for others of their class"
    assert unsure.band[0] < usual.band[0] < usual.band[1] < unsure.band[1]
    question = Question(
        subject=find_subject("mlp", platform="cpu"), profile=profile_with(others), nodes=1, workers_per_node=1, batch=8,
        wires=Wires(link=usual.profile.local, local=usual.profile.local), strategies=("ddp",),
    )  # fmt: skip
    said = notes(plan(question))
    assert any(each.startswith("not measured, so taken for others of their class: ") for each in said), said


def test_judging_knows_a_perfect_model_from_none() -> None:
    exact = replace(DEVICE, launch_seconds=0.0)
    free = {kernel: Timing(max(1e-12, op_seconds(kernel, exact)), 3) for kernel in timings()}
    judged = judge(KernelModel({}, {}), free, exact, {"300": perceptron(300)})
    assert judged.mean < 1e-9
    assert max(judged.by_class.values()) < 1e-9


def host_steps(true: Host) -> list[StepTiming]:
    """Steps of many sizes in which the host took what it says; two of them were disturbed."""
    steps = []
    for number, (device_seconds, ops) in enumerate(
        itertools.product((1e-3, 3e-3, 7e-3, 2e-2), (30, 60, 100, 170, 300))
    ):
        # Warm, and ever colder up to more than cold.
        bulk = COLD_FROM + 7 * number % 4 * (COLD_AT - COLD_FROM) // 2 - 1 if true.cold_phases else 0
        cold = _cold(bulk)
        phases = {
            "forward": {"matmul": ops, "elementwise": 2 * number + 9},
            "backward": {"matmul": (1 + number % 3) * ops, "elementwise": 40 - 3 * number},
            "optimizer": {"foreach": 7 * (number % 4 + 1)},
        }
        found = {}
        for phase, calls in phases.items():
            made, listed = 10_000_000 * (1 + (number + len(calls)) % 4), 50 * number if phase == "optimizer" else 0
            own = sum(n * (true.calls[phase] + true.classes.get(f"{phase} {name}", 0.0)) for name, n in calls.items())
            far = 7_000_000 * (1 + (3 * number + len(phase)) % 5) if true.far_seconds else 0
            seconds = true.phases[phase] + own + made * true.made_seconds + listed * true.listed_seconds
            seconds += far * true.far_seconds.get(phase, 0.0)
            seconds += cold * (true.cold_phases.get(phase, 0.0) + sum(calls.values()) * true.cold_calls.get(phase, 0.0))
            found[phase] = PhaseTiming(seconds, calls, made, listed, far)
        total = device_seconds + sum(each.host_seconds for each in found.values())
        steps.append(StepTiming(total, found, 0.1, bulk))
    disturbed = [replace(step.slower(2.0), seconds=step.seconds) for step in steps[:2]]
    return [*steps, *disturbed]


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_what_the_host_adds_is_found_though_some_steps_were_disturbed(platform: Platform) -> None:
    true = Host(
        {"forward": 3e-5, "backward": 8e-5, "optimizer": 1e-4}, {"forward": 1e-5, "backward": 2e-5, "optimizer": 3e-6},
        {"backward matmul": 6e-6}, 2e-11, 1e-6,
    )  # fmt: skip
    if platform == "cpu":
        far, cold = {"forward": 1e-11, "backward": 0.0, "optimizer": 4e-12}, {"backward": 0.0, "optimizer": 3e-4}
        calls = {"forward": 3e-6, "backward": 1e-6, "optimizer": 0.0}
        true = replace(true, far_seconds=far, cold_phases={"forward": 2e-4, **cold}, cold_calls=calls)
    found = fit_host(host_steps(true), platform)
    for phase, name in (("forward", "matmul"), ("backward", "matmul"), ("backward", "elementwise")):
        said, is_so = (
            host.calls[phase] + host.classes.get(f"{phase} {name}", 0.0) for host in (found, true)
        )  # how it is split between the two is not to be seen
        assert said == pytest.approx(is_so, rel=0.15)
    assert found.made_seconds == pytest.approx(2e-11, rel=0.2)
    assert found.listed_seconds == pytest.approx(1e-6, rel=0.2)
    far = true.far_seconds or dict.fromkeys(PHASES, 0.0)
    assert found.far_seconds == pytest.approx(far, rel=0.2, abs=1e-12)
    for phase, ops in (("forward", 100), ("backward", 200), ("optimizer", 14)):
        said, is_so = (
            host.cold_phases.get(phase, 0.0) + ops * host.cold_calls.get(phase, 0.0) for host in (found, true)
        )
        assert said == pytest.approx(is_so, rel=0.2)
    assert fit_host([], platform) == Host()
    assert Host.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_on_a_cpu_the_host_comes_on_top_and_a_gpu_hides_it() -> None:
    slow = Host({"forward": 1.0}, {"forward": 1e-3, "backward": 2e-3, "optimizer": 0.0})
    step, profile = perceptron(100), profile_with(learned())
    alone = predict(step, replace(profile, host=None)).time.seconds
    beside = predict(step, replace(profile, host=slow)).time.seconds - alone
    assert beside == pytest.approx(1.0 + 1e-3 * len(step.of("forward")) + 2e-3 * len(step.of("backward")))
    assert beside == pytest.approx(sum(slow.seconds_of(step.ops)))
    on_gpu = replace(profile, platform="cuda", host=slow)
    assert predict(step, on_gpu).time.seconds == pytest.approx(beside, rel=0.01), "the device waits for the host"
    quick = replace(on_gpu, host=Host({}, {"forward": 1e-9}))
    assert predict(step, quick).time.seconds == pytest.approx(alone, rel=0.01), "the host is ahead"


def test_the_host_is_cold_only_in_steps_that_move_more_than_a_cache_has() -> None:
    host = Host(cold_phases={"forward": 1.0}, cold_calls={"backward": 0.1})
    small, large = perceptron(100), perceptron(3000, batch=512)
    assert sum(host.seconds_of(small.ops)) == 0.0
    found = sum(host.seconds_of(large.ops))
    assert found == pytest.approx(1.0 + 0.1 * len(large.of("backward")))
    assert 0 < sum(host.seconds_of(perceptron(1700).ops)) < found, "and half-way between"


def test_bytes_that_no_cache_has_take_longer_in_their_phase_and_only_those() -> None:
    step, host = perceptron(3000), Host(far_seconds={"forward": 1e-9})
    read = sum(spec.nbytes for op in step.of("forward") for spec in op.kernel.inputs)
    taken = host.seconds_of(step.ops)
    assert 0.5e-9 * read < sum(taken) < 1e-9 * read
    assert not any(seconds for op, seconds in zip(step.ops, taken, strict=True) if op.phase != "forward")
    assert sum(host.seconds_of(perceptron(10).ops)) == 0.0, "all of a small model stays in a cache"
