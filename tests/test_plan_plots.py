"""The pictures of a plan, and the sweeps in them: what turning a knob does to the numbers."""

import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import run_here
from matplotlib.figure import Figure
from test_plan import answer, question

from offbeat.cost.plan import plan
from offbeat.cost.sweeps import strong_scaling, sweeps
from offbeat.cost.wires import Wires
from offbeat.report.plan_roofline import draw_roofline, roofs
from offbeat.report.plan_timeline import draw_stack, draw_timeline
from offbeat.sim.network import Link

PICTURES = {"weak_scaling.png", "strong_scaling.png", "knobs.png", "roofline.png", "stack.png", "timeline.png"}


def test_all_pictures_are_drawn(tmp_path: Path) -> None:
    flags = "--model resnet8 --device l4 --nodes 2 --workers-per-node 2 --link 1gbit --batch 8 --out plan"
    run_here(["plan", *shlex.split(flags), "--strategies", "ddp,local_sgd,lasgd"], tmp_path)
    assert {path.name for path in (tmp_path / "plan").iterdir()} == PICTURES | {"plan.json"}
    for name in PICTURES:
        assert (tmp_path / "plan" / name).read_bytes().startswith(b"\x89PNG")


def test_turning_a_knob_the_good_way_never_slows() -> None:
    knobs = {knob.name: knob for knob in sweeps(answer())}
    assert list(knobs) == [
        "batch of a worker", "FLOP/s of a worker", "memory bandwidth", "bandwidth of the link", "workers"
    ]  # fmt: skip
    now = next(row for row in answer().of("ddp") if row.workers == 16).samples_per_second
    for knob in knobs.values():
        assert list(knob.values) == sorted(knob.values)
        assert knob.speeds[knob.values.index(knob.now)] == pytest.approx(now), knob.name
        if knob.name != "workers":
            assert all(b >= a * 0.999 for a, b in zip(knob.speeds, knob.speeds[1:], strict=False)), knob.name
    link = knobs["bandwidth of the link"].speeds
    assert link[-1] > 2 * link[0], "this plan is bound by its link"


def test_knobs_and_strong_scaling_know_of_slow_workers() -> None:
    slowed = plan(question(stragglers={5: 3.0}, nodes=2, strategies=("ddp",)))
    speed = next(row for row in slowed.rows if row.workers == 8).samples_per_second
    for knob in sweeps(slowed):
        assert knob.speeds[knob.values.index(knob.now)] == pytest.approx(speed), knob.name
    alike = strong_scaling(plan(question(nodes=2, strategies=("ddp",))))
    strong = strong_scaling(slowed)
    assert strong.speeds["ddp"][-1] < 0.7 * alike.speeds["ddp"][-1]
    assert strong.speeds["ddp"][:3] == pytest.approx(alike.speeds["ddp"][:3]), "of four the fifth is none"


def test_a_batch_that_does_not_fit_has_no_speed() -> None:
    tight = replace(question().profile, device=replace(question().profile.device, memory_bytes=300_000_000))
    batches = sweeps(plan(question(profile=tight, strategies=("ddp",))))[0]
    assert math.isnan(batches.speeds[-1])
    assert not math.isnan(batches.speeds[0])


def test_strong_scaling_divides_one_batch() -> None:
    strong = strong_scaling(answer())
    assert strong.batch == 8 * 64
    assert strong.workers == (1, 2, 4, 8, 16)
    assert set(strong.speeds) == {"none", "ddp", "local_sgd", "lasgd"}
    assert strong.speeds["none"] == pytest.approx(strong.alone)
    assert all(ddp <= alone * (1 + 1e-9) for ddp, alone in zip(strong.speeds["ddp"], strong.alone, strict=True))
    assert strong.alone[-1] < 16 * strong.alone[0], "small batches use a device less well"


def test_the_roofline_has_a_dot_for_every_class() -> None:
    figure = Figure()
    draw_roofline(answer(), figure)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    legend = axes.get_legend()
    assert legend is not None
    shown = {text.get_text().partition(",")[0] for text in legend.get_texts()}
    assert {"convolution", "batch_norm", "elementwise"} <= shown
    assert shown <= {op.kind for op in answer().prediction.trace.ops}


def test_no_dot_lies_above_all_roofs() -> None:
    """Convolutions in float32 run in TF32, which has a roof of its own."""
    device, high = question().profile.device, roofs(answer())
    assert high == {"tf32": device.tf32_flops_per_second, "f32": device.flops_per_second[torch.float32],
                    "all but products": device.vector_flops_per_second}  # fmt: skip
    both = zip(answer().prediction.trace.ops, answer().prediction.ops, strict=True)
    reached = [op.flops / time.seconds for op, time in both]
    assert device.flops_per_second[torch.float32] < max(reached) < max(high.values())
    knob = sweeps(answer())[1]
    assert knob.now == high["tf32"] / 1e12


def test_bars_stack_up_to_the_step() -> None:
    figure = Figure()
    draw_stack(answer(), figure)
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    rows = [row for row in answer().rows if row.workers == 16]
    stacked = [compute + exposed for compute, exposed in zip(heights[:4], heights[4:], strict=True)]
    assert stacked == pytest.approx([1e3 * row.step_seconds for row in rows])


@pytest.mark.parametrize(("rate", "waits"), [(1e7, True), (1e13, False)])
def test_the_timeline_shows_waits_where_there_are_any(rate: float, waits: bool) -> None:
    link = Link(bytes_per_second=rate, seconds=0.0)
    figure = Figure()
    draw_timeline(plan(question(strategies=("ddp",), wires=Wires(link=link, local=link))), figure)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert ("waits" in {text.get_text() for text in legend.get_texts()}) is waits
