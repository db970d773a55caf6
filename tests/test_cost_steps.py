"""Real steps whose operations are timed in place, and what a calibration keeps of them."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from offbeat.cost import trace
from offbeat.cost.calibrate_steps import (
    ALL_FAIL,
    Visiting,
    at_usual_speed,
    case_name,
    in_turns,
    one_by_one,
    visit_models,
)
from offbeat.cost.counts import read_bytes_of
from offbeat.cost.cpu_step import MOST_PAIRS, MOST_TURNS, MOST_WARM, Timed
from offbeat.cost.failed import Failed
from offbeat.cost.gauge import Gauge
from offbeat.cost.host import PhaseTiming, StepTiming, step_timing
from offbeat.cost.kernel import Kernel, Ref, Spec
from offbeat.cost.op import Op
from offbeat.cost.profile import Profile, Timing
from offbeat.cost.random_models import random_models
from offbeat.cost.real_step import RealStep
from offbeat.cost.reuse import CACHES, WARMEST, Touched, bulk, nearness, warmth
from offbeat.cost.subject import Case, Subject, find_subject
from offbeat.cost.trace import Platform
from offbeat.cost.visits import CallTimes, Visit
from offbeat.cost.when_quiet import visits_when_quiet
from offbeat.cost.zoo import learned_from, references
from offbeat.errors import OffbeatError

CPU = torch.device("cpu")
NEAREST, FURTHER = CACHES["cpu"].near, CACHES["cpu"].far


def visit(step: RealStep, gauge: Gauge, turns: int = 1, patience_seconds: float = 0.0) -> Visit:
    ((_key, found),) = visits_when_quiet([(0, lambda: step)], gauge, turns=turns, patience_seconds=patience_seconds)
    assert isinstance(found, Visit), found
    return found


ALONE, BESIDE = one_by_one(visit, []), one_by_one(visit, references()[:1])


def copy(nbytes: int) -> Kernel:
    numbers = Spec((nbytes // 4,), torch.float32)
    return Kernel("aten::clone.default", "copy", (numbers,), (numbers,), arguments=(("self", Ref(0)),))


def touching(*names: tuple[int, int]) -> Touched:
    """Reads the first, writes the second; each (storage, bytes)."""
    (read, nbytes), (written, _) = names
    return Touched((((read, 0), nbytes),), ((written, 0),))


def test_what_was_just_written_is_near_and_what_was_long_ago_is_far() -> None:
    small, large = NEAREST // 4, FURTHER
    kernels = [copy(small), copy(small), copy(large), copy(small), copy(small)]
    touched = [
        touching((1, small), (2, small)),
        touching((2, small), (3, small)),  # just written
        touching((4, large), (5, large)),  # never seen before: as the step before left it, a step ago
        touching((2, small), (6, small)),  # before the large one
        touching((6, small), (7, small)),
    ]
    assert nearness(kernels, touched, CACHES["cpu"]) == [(0, 0), (8, 0), (0, 0), (0, 0), (8, 0)]


def test_between_near_and_far_there_is_a_cache() -> None:
    some = (NEAREST + FURTHER) // 8
    kernels = [copy(some), copy(some), copy(some)]
    touched = [touching((1, some), (2, some)), touching((3, some), (4, some)), touching((2, some), (5, some))]
    assert nearness(kernels, touched, CACHES["cpu"])[2] == (0, 8)


def test_code_is_warm_that_ran_just_before_and_cold_where_much_was_moved_since() -> None:
    caches, short, long = CACHES["cpu"], copy(8), copy(FURTHER)
    other = replace(copy(8), name="aten::neg.default")
    assert warmth([short, short, other], caches) == [WARMEST] * 3, "the first ran in the step before"
    assert warmth([short, other, long, other], caches) == [WARMEST, WARMEST, WARMEST, 2], "a copy of any size"
    first, again = (replace(each, kind="convolution") for each in (copy(8), copy(16)))
    found = warmth([first, long, again, long], caches)
    assert found == [1, WARMEST, 1, WARMEST], "a convolution's code is for its shapes"
    assert warmth([first, *[long] * 8, again], caches)[0] == 0
    gelus = [replace(copy(numbers), name="aten::gelu.default") for numbers in (8, 16)]
    assert warmth([gelus[0], long, gelus[1], long], caches) == [1, WARMEST, 1, WARMEST], (
        "so is that of what oneDNN does"
    )
    assert warmth([short, short], CACHES["cuda"]) == [0, 0]


@pytest.mark.parametrize(("moved", "warm"), [(NEAREST - 8, 5), (NEAREST, 4), (4 * NEAREST - 8, 4), (4 * NEAREST, 3)])
def test_code_cools_by_one_for_four_times_the_bytes(moved: int, warm: int) -> None:
    other = replace(copy(8), name="aten::neg.default")
    assert warmth([other, copy(moved // 2), other], CACHES["cpu"])[2] == warm


def test_bulk_is_twice_the_logarithm_of_what_a_step_moves() -> None:
    """A copy moves its bytes twice."""
    assert bulk([copy(1 << 12)], CACHES["cpu"]) == 2 * 13
    assert bulk([copy(1 << 12)] * 2, CACHES["cpu"]) == 2 * 14
    assert bulk([copy(1 << 12)] * 3, CACHES["cpu"]) == 2 * 14 + 1
    assert bulk([copy(1 << 12)], CACHES["cuda"]) == bulk([], CACHES["cpu"]) == 0


@pytest.mark.parametrize(("platform", "far"), [("cpu", 800 // 8), ("cuda", 0)])
def test_bytes_from_memory_are_those_read_that_no_cache_has(platform: Platform, far: int) -> None:
    read = replace(copy(800), near=(3, 4))
    overwritten = Kernel("aten::zero_.default", "copy", read.inputs, (), (0,), arguments=(("self", Ref(0)),))
    rows = Kernel(
        "aten::embedding.default", "gather", (Spec((1000, 100), torch.float32), Spec((2,), torch.int64)),
        (Spec((2, 100), torch.float32),), arguments=(("weight", Ref(0)), ("indices", Ref(1))), near=(8, 0),
    )  # fmt: skip
    ops = [Op(kernel, "forward", "") for kernel in (read, overwritten, rows)]
    found = step_timing(ops, Visit(1.0, (1.0, 0.0, 0.0), (), (0.1, 0.1, 0.1)), platform, 0.1)
    assert found.phases["forward"].far_bytes == far
    assert read_bytes_of(rows) == 800 + 16


def test_a_small_step_finds_its_weights_in_the_cache() -> None:
    """What it reads first it wrote in the step before."""
    step = trace(
        lambda: nn.Linear(8, 8), torch.zeros(2, 8), None, loss=lambda out, _: out.mean(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )  # fmt: skip
    product = next(op.kernel for op in step.ops if op.kind == "matmul")
    assert product.near == (8, 0)
    place = f" near=8,0 warm=5 bulk={bulk([op.kernel for op in step.ops], CACHES['cpu'])}"
    assert product.call + place == product.signature


def test_a_gpu_has_larger_caches() -> None:
    def near(platform: Platform) -> tuple[int, int]:
        step = trace(
            lambda: nn.Linear(500, 500), torch.zeros(2, 500), None, loss=lambda out, _: out.mean(),
            optimizer=partial(torch.optim.SGD, lr=0.1), platform=platform,
        )  # fmt: skip
        return next(op.kernel.near for op in step.ops if op.kind == "matmul")

    assert near("cpu") == (0, 8)
    assert near("cuda") == (8, 0)


def test_near_survives_json() -> None:
    from offbeat.cost.written import from_json, to_json

    kernel = Kernel("aten::clone.default", "copy", (), (), near=(3, 4))
    assert from_json(to_json(kernel)).near == (3, 4)
    assert "near" not in to_json(copy(8))


@pytest.mark.parametrize("name", ["cnn", "gpt", "resnet8"])
def test_a_visit_times_the_operations_of_the_trace(name: str) -> None:
    subject = find_subject(name, platform="cpu", input_shape=(16,) if name == "gpt" else (3, 16, 16))
    found = visit(RealStep(subject, 2, CPU), Gauge(lambda: time.sleep(0.002)), turns=2, patience_seconds=0.0)
    assert len(found.ops) == len(subject.at(2).ops)
    assert [kernel.name for kernel in found.kernels] == [op.kernel.name for op in subject.at(2).ops]
    assert all(seconds > 0 for seconds in (found.seconds, *found.ops))
    assert found.reference_seconds >= 0.002


def test_a_norm_of_16_bits_is_traced_as_it_is() -> None:
    """Its statistics have the weights' 32 bits, and its gradient needs no copy."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))

    plain = find_subject("cnn", platform="cpu", input_shape=(3, 16, 16))
    subject = replace(plain, model=build, autocast=torch.bfloat16, _traced={})
    found = visit(RealStep(subject, 2, CPU), Gauge(lambda: None), turns=1, patience_seconds=0.0)
    assert [kernel.call for kernel in found.kernels] == [op.kernel.call for op in subject.at(2).ops]


class Told(Gauge):
    """Looks that are given, the last one for ever; the least of them is quiet."""

    def __init__(self, *looks: float) -> None:
        super().__init__(lambda: None)
        self._looks = list(looks)
        self._least = min(looks)

    def look(self) -> float:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]

    @property
    def least(self) -> float:
        return self._least


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (0.0, 4 + MOST_WARM + 2 * MOST_PAIRS),
        (0.008, 4 + 2 + 2 * MOST_PAIRS),
        (0.05, 4 + 1 + 2),
        (0.2, 4 + 1 + 2),
        (0.5, 3 + 2),
    ],
)
def test_the_longer_a_step_the_fewer_are_made(monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int) -> None:
    """Beside those that are timed by phase, as many as have their operations timed."""
    step = RealStep(find_subject("cnn", platform="cpu", input_shape=(3, 16, 16)), 2, CPU)
    made = 0

    def counted(own: RealStep) -> None:
        nonlocal made
        made += 1
        own.by_phase()

    monkeypatch.setattr(RealStep, "__call__", counted)
    monkeypatch.setattr("offbeat.cost.cpu_step.seconds_of", lambda call: call() or max(seconds, 1e-9))
    visit(step, Told(1.0))
    assert made == steps


@pytest.mark.parametrize(
    ("looks", "patience", "reference", "quiet"),
    [
        # the first look is before it is prepared; each turn begins with the look that ended the one before
        ((9.0, 1.0, 1.0, 1.0), 60.0, 1.0, True),
        ((9.0, 1.0, 5.0, 1.0, 1.0, 1.0), 60.0, 1.0, True),  # a turn that was disturbed is made again
        ((9.0, 5.0, 1.0, 1.0, 1.0), 60.0, 1.0, True),  # none begins before it is quiet
        ((9.0, *[5.0] * (2 * MOST_TURNS - 2), 4.0, 3.0, 4.0), 0.0, 3.5, False),  # the quietest have to do
    ],
)
def test_a_visit_is_made_of_quiet_turns(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[float, ...], patience: float, reference: float, quiet: bool
) -> None:
    monkeypatch.setattr("offbeat.cost.when_quiet.PAUSE_SECONDS", 0.0)
    step = RealStep(find_subject("cnn", platform="cpu", input_shape=(3, 16, 16)), 2, CPU)
    found = visit(step, Told(*looks), turns=2, patience_seconds=patience)
    assert (found.reference_seconds, found.quiet) == (reference, quiet)


@pytest.mark.parametrize(
    ("patience", "held", "order"),
    [
        (60.0, 1 << 10, "prepare a, prepare b, time a, prepare c, time b, time c"),
        (60.0, 1 << 50, "prepare a, time a, prepare b, time b, prepare c, time c"),  # two do not fit into the memory
        (0.0, 1 << 10, "prepare a, time a, prepare b, time b, prepare c, time c"),
    ],
)
def test_steps_are_prepared_while_the_cpu_is_not_quiet(
    monkeypatch: pytest.MonkeyPatch, patience: float, held: int, order: str
) -> None:
    done: list[str] = []

    class Stub:
        has_enough, held_nbytes = True, held

        def __init__(self, step: str, *, turns: int) -> None:
            self.step, self.since = step, time.monotonic()
            done.append(f"prepare {step}")

        def take_turn(self, before: float, gauge: Gauge) -> float:
            done.append(f"time {self.step}")
            return gauge.look()

        def visit(self) -> str:
            return self.step.upper()

    monkeypatch.setattr("offbeat.cost.when_quiet.Prepared", Stub)
    monkeypatch.setattr("offbeat.cost.when_quiet.PAUSE_SECONDS", 0.0)
    steps: Any = [(each, partial(str, each)) for each in "abc"]
    looks = Told(5.0, 5.0, 1.0, 5.0, 5.0, 5.0, 5.0, 1.0)  # a is timed at the first 1.0, the others wait for the second
    found = list(visits_when_quiet(steps, looks, patience_seconds=patience))
    assert found == [("a", "A"), ("b", "B"), ("c", "C")]
    assert ", ".join(done) == order


def test_timing_changes_no_number() -> None:
    """The parts of a convolution's backward are computed one by one, and must be what they are at once."""
    subject = find_subject("cnn", platform="cpu", input_shape=(3, 16, 16))
    plain, timed = RealStep(subject, 2, CPU), RealStep(subject, 2, CPU)
    plain()
    with Timed(split=True):
        timed()
    for one, other in zip(plain.model.parameters(), timed.model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


def test_a_step_that_waits_holds_weights_gradients_and_momentum() -> None:
    step = RealStep(find_subject("cnn", platform="cpu", input_shape=(3, 16, 16)), 2, CPU)
    weights = sum(parameter.nbytes for parameter in step.model.parameters())
    assert step.held_nbytes == weights
    step()
    assert step.held_nbytes == 3 * weights


def test_a_real_step_can_be_repeated_for_ever() -> None:
    """It learns nothing, so that gradients do not vanish: numbers next to zero are slow."""
    step = RealStep(find_subject("cnn", platform="cpu", input_shape=(3, 16, 16)), 2, CPU)
    before = [parameter.clone() for parameter in step.model.parameters()]
    step()
    step()
    assert all(map(torch.equal, before, step.model.parameters()))


def test_parts_of_a_call_sum_up_to_what_they_take_at_once() -> None:
    gradients = CallTimes(range(2))
    for seconds in ((1.0, 3.0), (3.2,), (1.0, 3.0), (3.2,)):
        gradients.add(seconds)
    assert gradients.ops() == pytest.approx([0.8, 2.4])
    view = CallTimes(range(0))
    view.add((1.0,))
    assert view.ops() == []


def test_times_are_given_at_the_usual_speed() -> None:
    kernels = (copy(8), copy(16))
    slow = Visit(2.0, (1.0, 0.5, 0.5), kernels, (0.5, 1.0), reference_seconds=0.2)
    assert slow.at_speed_of(0.1) == Visit(1.0, (0.5, 0.25, 0.25), kernels, (0.25, 0.5), 0.1)


@pytest.mark.parametrize(
    ("host", "device", "seconds"),
    [
        ((1.0, 0.5, 0.5), (0.5, 0.2), 1.1),  # the device waits for the host, which is half as slow now
        ((1.0, 0.5, 0.5), (1.0, 0.6), 1.76),  # until the device is what takes longer
        ((0.2, 0.1, 0.1), (1.0, 1.0), 2.2),  # the host is ahead of it anyway
    ],
)
def test_beside_a_gpu_only_the_host_has_another_speed(
    host: tuple[float, float, float], device: tuple[float, float], seconds: float
) -> None:
    kernels = (copy(8), copy(16))
    slow = Visit(2.2, host, kernels, device, reference_seconds=0.2, on_gpu=True)
    found = slow.at_speed_of(0.1)
    assert found.seconds == pytest.approx(seconds)
    assert found.phases == (host[0] / 2, host[1] / 2, host[2] / 2)
    assert found.ops == device
    phase = {"forward": PhaseTiming(sum(host), {"copy": 2}, 8, 0, 0)}
    steps = {str(at): StepTiming(2.2, phase, beside, 0, sum(device)) for at, beside in enumerate((0.1, 0.1, 0.2))}
    usual = at_usual_speed(Profile("x", {}, {copy(8): Timing(0.25, 3)}, steps, reference_seconds=0.2))
    assert usual.timings[copy(8)].seconds == 0.25
    assert next(iter(usual.steps.values())).seconds == pytest.approx(seconds)


def test_the_usual_speed_is_that_of_the_median_visit() -> None:
    forward = {"forward": PhaseTiming(0.5, {"copy": 1}, 8, 0, 0)}
    steps = {str(beside): StepTiming(1.0, forward, beside, 0) for beside in (0.1, 0.2, 0.4)}
    found = at_usual_speed(Profile("x", {}, {copy(8): Timing(0.25, 3)}, steps, reference_seconds=0.1))
    assert found.reference_seconds == 0.2
    assert found.timings[copy(8)].seconds == 0.5
    assert {(step.seconds, step.phases["forward"].host_seconds) for step in found.steps.values()} == {(2.0, 1.0)}
    assert at_usual_speed(Profile("x", {})) == Profile("x", {})


def test_a_step_that_is_not_what_was_traced_is_refused(tmp_path: Path) -> None:
    def other(step: RealStep, reference: Gauge) -> Visit:
        found = visit(step, reference)
        return replace(found, kernels=found.kernels[::-1])

    case = next(learned_from("cpu")), 2
    with pytest.raises(OffbeatError, match="cnn, batch 2: a real step does not issue the operations of its trace"):
        visit_models([case], tmp_path / "part", visiting=one_by_one(other, []))


def test_a_few_steps_that_are_not_what_was_traced_are_left_out(tmp_path: Path) -> None:
    """A new version of torch may issue one layer in another way: that is no reason to measure nothing."""
    subject = next(learned_from("cpu"))
    cases = [(subject, batch) for batch in range(1, 13)]

    def once_other(step: RealStep, reference: Gauge) -> Visit:
        found = visit(step, reference)
        return replace(found, kernels=found.kernels[::-1]) if step.samples == 3 else found

    found = visit_models(cases, tmp_path / "part", visiting=one_by_one(once_other, []))
    assert found.unlike == [case_name(subject, 3)]
    assert len(found.steps) == 11
    again = visit_models(cases, tmp_path / "part", visiting=ALONE)
    assert again.unlike == found.unlike, "not visited again"


def refusing(batch: int) -> Visiting:
    """Visits of all but those of that batch, which a library has no kernel for."""

    def visited(step: RealStep, reference: Gauge) -> Visit:
        if step.samples == batch:
            raise NotImplementedError("no kernel for this\nand a long trace")
        return visit(step, reference)

    return one_by_one(visited, [])


def test_a_step_that_fails_is_left_out_and_the_others_are_measured(tmp_path: Path) -> None:
    subject, path = next(learned_from("cpu")), tmp_path / "part"
    cases = [(subject, batch) for batch in (2, 3, 4)]
    found = visit_models(cases, path, visiting=refusing(3))
    assert list(found.steps) == [case_name(subject, 2), case_name(subject, 4)]
    assert found.failed == {case_name(subject, 3): "NotImplementedError: no kernel for this"}
    assert Profile.load(path) == found
    assert visit_models(cases, path, visiting=ALONE).failed == found.failed, "not tried again"


def test_where_every_step_fails_the_first_reason_is_told(tmp_path: Path) -> None:
    subject, path = next(learned_from("cpu")), tmp_path / "part"
    tried = 0

    def cases() -> Iterator[Case]:
        nonlocal tried
        for _ in itertools.count():
            tried += 1
            yield replace(subject, name=f"model {tried}"), 2

    with pytest.raises(
        OffbeatError, match=r"no step .*: model 1, batch 2 \(NotImplementedError: no kernel for this\), "
    ):
        visit_models(cases(), path, visiting=refusing(2))
    assert tried == ALL_FAIL
    assert not Profile.load(path).failed, "once it is mended they are tried again"


def broken() -> nn.Module:
    raise ValueError("an operation that is not there")


@pytest.mark.parametrize("answers", [True, False])
def test_after_a_failure_a_gpu_gives_memory_back_or_is_told_to_answer_no_more(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    done: list[str] = []

    def synchronize(_device: torch.device) -> None:
        done.append("waited")
        if not answers:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("gave back"))
    monkeypatch.setattr("offbeat.cost.calibrate_steps.RealStep", lambda *_: broken())
    subject = next(learned_from("cpu"))
    visits = one_by_one(visit, [], torch.device("cuda"))([(subject, 2), (subject, 3)], 0.0)
    for batch in (2, 3) if answers else (2,):
        assert next(visits) == ((subject, batch), Failed("ValueError: an operation that is not there"))
    with pytest.raises(StopIteration if answers else OffbeatError) as told:
        next(visits)
    if answers:
        assert done == ["waited", "gave back"] * 2
    else:
        assert "cnn, batch 2 left a GPU that answers this process no more" in str(told.value)


def test_a_step_that_fails_when_it_is_timed_does_not_take_those_along_that_wait() -> None:
    class Stub:
        has_enough, held_nbytes, since = True, 0, 0.0

        def __init__(self, step: str, *, turns: int) -> None:
            self.step = step
            if step == "b":
                raise RuntimeError("cannot be made")

        def take_turn(self, before: float, gauge: Gauge) -> float:
            if self.step == "a":
                raise MemoryError
            return before

        def visit(self) -> str:
            return self.step.upper()

    steps: Any = [(each, partial(str, each)) for each in "abc"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offbeat.cost.when_quiet.Prepared", Stub)
        found = dict(visits_when_quiet(steps, Told(1.0), patience_seconds=0.0))
    assert found == {"a": Failed("MemoryError"), "b": Failed("RuntimeError: cannot be made"), "c": "C"}


def test_what_was_measured_before_failures_were_kept_is_read(tmp_path: Path) -> None:
    path = tmp_path / "part"
    Profile("x", {}).save(path)
    read = json.loads(path.read_text())
    del read["failed"]
    path.write_text(json.dumps(read))
    assert Profile.load(path) == Profile("x", {})


def test_random_models_follow_the_seed_fit_the_limit_and_can_be_run() -> None:
    def some(seed: int) -> list[Case]:
        return list(itertools.islice(random_models(seed=seed, platform="cpu", most_flops=1e8), 12))

    first, again, other = some(0), some(0), some(1)
    signatures = [
        [op.kernel.signature for subject, batch in cases for op in subject.at(batch).ops]
        for cases in (first, again, other)
    ]
    assert signatures[0] == signatures[1] != signatures[2]
    assert all(batch == 2 or subject.at(batch).flops <= 1e8 for subject, batch in first)
    kinds = {op.kind for subject, batch in first for op in subject.at(batch).ops}
    assert kinds >= {"matmul", "convolution", "attention", "batch_norm", "row_norm", "elementwise", "pool"}
    for subject, batch in first[:6]:
        RealStep(subject, batch, CPU)()


def test_visits_are_kept_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "cpu.part"
    cases = [(subject, 2) for subject in itertools.islice(learned_from("cpu"), 2)]
    first = visit_models(cases[:1], path, visiting=BESIDE)
    assert list(first.steps) == [case_name(*cases[0])] == ["cnn, batch 2"]
    assert {op.kernel for op in cases[0][0].at(2).ops if op.nbytes} == set(first.timings)
    visited: list[str] = []
    second = visit_models(
        cases,
        path,
        visiting=BESIDE,
        progress=lambda _n, case: visited.append(case_name(*case)),
    )
    assert visited == ["lenet, batch 2"]
    assert second.steps["cnn, batch 2"] == first.steps["cnn, batch 2"], "as it was"
    assert second.reference_seconds == first.reference_seconds
    assert Profile.load(path) == second
    assert not visit_models(cases, tmp_path / "none", visiting=BESIDE, at_most_seconds=-1.0).steps


def test_what_does_not_fit_into_the_memory_is_not_visited(tmp_path: Path) -> None:
    subject = next(learned_from("cpu"))
    cases = [(subject, 2), (subject, 8)]
    small, large = (subject.at(batch).memory.peak for _, batch in cases)
    assert small < large
    found = visit_models(cases, tmp_path / "part", visiting=ALONE, most_bytes=small)
    assert list(found.steps) == [f"{subject.name}, batch 2"]


def test_models_that_must_be_seen_take_turns_with_random_ones() -> None:
    def endless() -> Iterator[Case]:
        for number in itertools.count():
            yield subject, number

    subject: Subject = next(learned_from("cpu"))
    batches = [batch for _subject, batch in itertools.islice(in_turns([(subject, 100), (subject, 200)], endless()), 6)]
    assert batches == [100, 0, 200, 1, 2, 3]


FAULTS = """
import resource, torch
from offbeat.malloc import keep_freed_memory
kept = keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(1 << 20)
before = faults()
for _ in range(20):
    torch.ones(1 << 20)
print(kept, faults() - before)
"""


def test_freed_memory_is_kept() -> None:
    """In a process of its own: it changes the allocator for good."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=60)
    kept, faults = run.stdout.split()
    if kept != "True":
        pytest.skip("no glibc")
    assert int(faults) < 20 * 100, "of 1,024 pages each"
