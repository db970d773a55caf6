"""offbeat plan: what the rows say, the verdict, the files, and one sentence for what cannot be planned."""

import json
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from commands import run_here
from test_bad_input import _same_signals, check_sentence  # noqa: F401
from torch import nn

from offbeat import cli
from offbeat.cost.command import record
from offbeat.cost.device_profile import VERSION, DeviceProfile, load_profile, profile_names
from offbeat.cost.plan import Answer, Question, Row, plan
from offbeat.cost.predict import predict
from offbeat.cost.step import synchronous
from offbeat.cost.subject import Subject, find_subject
from offbeat.cost.verdict import best, knee, notes, verdict
from offbeat.cost.wires import Wires
from offbeat.errors import BadInput
from offbeat.sim.network import Link

COLUMNS = {"strategy", "workers", "batch", "step_seconds", "samples_per_second", "efficiency_low", "efficiency_high",
           "bottleneck"}  # fmt: skip


@lru_cache
def subject() -> Subject:
    return find_subject("resnet8", platform="cuda")


def question(**changes: object) -> Question:
    profile = load_profile("a100")
    usual = Question(
        subject=subject(),
        profile=profile,
        wires=Wires(link=Link(bytes_per_second=1.25e8, seconds=5e-5), local=profile.local),
        nodes=4,
        workers_per_node=4,
        batch=64,
        strategies=("none", "ddp", "local_sgd", "lasgd"),
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


@lru_cache
def answer() -> Answer:
    return plan(question())


def test_every_strategy_on_every_size() -> None:
    assert [(row.strategy, row.workers) for row in answer().rows] == [
        (strategy, workers) for strategy in ("none", "ddp", "local_sgd", "lasgd") for workers in (1, 2, 4, 8, 16)
    ]
    assert [row.nodes for row in answer().of("ddp")] == [1, 1, 1, 2, 4]
    assert question(nodes=3, workers_per_node=2).sizes == [1, 2, 4, 6]
    assert question(nodes=1, workers_per_node=1).sizes == [1]


def test_rows_are_consistent() -> None:
    for row in answer().rows:
        assert row.samples_per_second == pytest.approx(row.workers * 64 / row.step_seconds)
        assert row.step_seconds == pytest.approx(row.compute_seconds + row.exposed_seconds)
        assert 0 < row.efficiency_low <= row.efficiency <= row.efficiency_high <= 1
        if row.workers == 1 or row.strategy in ("none", "lasgd"):
            assert row.efficiency == pytest.approx(1.0), (row.strategy, row.workers)
    last = {row.strategy: row for row in answer().rows if row.workers == 16}
    assert last["ddp"].efficiency < last["local_sgd"].efficiency < last["lasgd"].efficiency
    assert last["ddp"].efficiency_low < last["ddp"].efficiency < last["ddp"].efficiency_high
    assert last["ddp"].bottleneck in ("inter-node", "latency")


def test_efficiency_lies_in_its_band_where_workers_differ() -> None:
    rows = plan(question(nodes=2, workers_per_node=1, strategies=("ddp", "lasgd"), stragglers={0: 2.0})).rows
    for row in rows:
        assert row.efficiency_low <= row.efficiency <= row.efficiency_high, (row.strategy, row.workers)
    assert rows[0].efficiency == pytest.approx(0.5), "alone, the slow worker is half as fast as one that is not"


def test_x_travels_once_every_eight_steps_of_local_sgd() -> None:
    row, layout = answer().of("local_sgd")[-1], question().layout(16)
    memory = answer().prediction.trace.memory
    assert memory.buffers > 0
    average = question().wires.all_reduce(memory.weights + memory.buffers, layout.ranks, layout).seconds
    assert row.exposed_seconds == pytest.approx(average / 8)


def test_the_band_is_fast_compute_on_a_slow_wire_and_the_reverse() -> None:
    row = answer().of("ddp")[-1]
    layout, (fast, slow) = question().layout(16), answer().prediction.band
    best_wire, worst_wire = question().wires.band

    def efficiency(compute: float, wire: float) -> float:
        prediction = answer().prediction
        wires = replace(question().wires, slower=wire)
        bucketed = prediction.bucketed.scaled(compute)
        step = synchronous(bucketed, lambda nbytes: wires.all_reduce(nbytes, layout.ranks, layout).seconds)
        return compute * prediction.time.seconds / step.seconds

    assert row.efficiency_low == pytest.approx(efficiency(fast, worst_wire))
    assert row.efficiency_high == pytest.approx(efficiency(slow, best_wire))
    assert row.efficiency_low < min(efficiency(fast, best_wire), efficiency(slow, worst_wire))


def test_bands_of_many_played_out_workers_are_as_wide_as_those_of_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    sgp = question(strategies=("sgp",))
    played = plan(sgp).rows
    monkeypatch.setattr("offbeat.cost.plan.BANDS_PLAYED_UP_TO", 8)
    quick = plan(sgp).rows
    assert quick[:4] == played[:4]
    before, last = quick[-2:]
    assert last.efficiency_low / last.efficiency == pytest.approx(before.efficiency_low / before.efficiency)
    assert last.efficiency == played[-1].efficiency < 1
    assert last.efficiency_low == pytest.approx(played[-1].efficiency_low, rel=0.2)


def test_bottlenecks_follow_the_hardware() -> None:
    def of(**changes: object) -> str:
        return plan(question(strategies=("ddp",), **changes)).rows[-1].bottleneck

    quick, slow = Link(bytes_per_second=1e12, seconds=1e-7), Link(bytes_per_second=1e6, seconds=1e-7)
    assert of(wires=Wires(link=slow, local=quick)) == "inter-node"
    assert of(wires=Wires(link=quick, local=slow)) == "intra-node"
    assert of(wires=Wires(link=Link(bytes_per_second=1e12, seconds=1.0), local=quick)) == "latency"
    free = Wires(link=quick, local=quick)
    assert of(wires=free, stragglers={0: 4.0}) == "stragglers"
    idle = replace(load_profile("a100").device, launch_seconds=0.0, dispatch_seconds=0.0)
    starved = replace(load_profile("a100"), device=replace(idle, bytes_per_second=1e9))
    assert of(wires=free, profile=starved) == "memory"
    weak = {torch.float32: 1e9}
    busy = replace(idle, flops_per_second=weak, tf32_flops_per_second=None, vector_flops_per_second=1e9)
    assert of(wires=free, profile=replace(load_profile("a100"), device=busy)) == "compute"


def test_verdict_says_best_band_knee_and_bottleneck() -> None:
    said = verdict(answer())
    assert said.startswith("On 16 workers lasgd is best: ")
    assert "100 % efficiency, no knee up to here; bound by " in said
    assert "ddp has" in said
    assert "with the knee at" in said
    assert notes(answer()) == ["NVIDIA A100 SXM 80GB: roofline; a step takes 75 % to 160 % of what is said here"]


def row(strategy: str, workers: int, speed: float, averages: float = 1.0) -> Row:
    return replace(answer().rows[0], strategy=strategy, workers=workers, samples_per_second=speed,
                   averages_per_step=averages)  # fmt: skip


def test_knee_is_where_more_workers_stop_being_worth_it() -> None:
    assert knee([row("ddp", 1, 100), row("ddp", 2, 190), row("ddp", 4, 300), row("ddp", 8, 600)]) == 2
    assert knee([row("ddp", 1, 100), row("ddp", 2, 181), row("ddp", 3, 260)]) is None
    assert knee([row("ddp", 4, 100)]) is None


def test_the_best_of_equals_averages_the_most() -> None:
    rows = [row("none", 64, 200, 0.0), row("local_sgd", 64, 100, 0.125), row("gossip", 64, 101, 1.0)]
    assert best(rows).strategy == "gossip", "an exchange in every step reaches all of 64 in 6"
    assert best([*rows, row("ddp", 64, 99)]).strategy == "ddp"
    assert best([*rows, row("ddp", 64, 90)]).strategy == "gossip"


def test_shipped_profiles_are_sound() -> None:
    assert {"a100", "h100", "h200", "l4", "rtx4090"} <= set(profile_names())
    for name in profile_names():
        profile = load_profile(name)
        assert DeviceProfile.from_dict(json.loads(json.dumps(profile.as_dict()))).as_dict() == profile.as_dict()
        if profile.label == "roofline":
            assert profile.kernels is None
            low, high = profile.band
            assert low < 1 < high
    times = {name: predict(subject().at(256), load_profile(name)).time.seconds for name in ("h100", "a100", "t4")}
    assert times["h100"] < times["a100"] < times["t4"]


def test_command_writes_rows(tmp_path: Path) -> None:
    printed = run_here(
        ["plan", "--model", "resnet8", "--device", "l4", "--nodes", "2", "--workers-per-node", "2", "--link", "1gbit",
         "--strategies", "ddp,lasgd:every=2,gossip", "--batch", "16", "--json", "plan.json"],
        tmp_path,
    )  # fmt: skip
    assert "lasgd:every=2" in printed
    assert "is best: " in printed
    read = json.loads((tmp_path / "plan.json").read_text())
    assert len(read["rows"]) == 9
    assert all(set(each) >= COLUMNS for each in read["rows"])
    assert (read["best"], read["label"], read["batch"]) == (read["best"], "roofline", 16)
    assert {each["by"] for each in read["rows"]} == {"closed form", "virtual world"}


def test_resnet50_on_a_thousand_gpus() -> None:
    profile = load_profile("h100")
    large = question(
        subject=find_subject("resnet50", platform="cuda", bf16=True),
        profile=profile,
        nodes=128,
        workers_per_node=8,
        wires=Wires(link=Link(bytes_per_second=12.5e9, seconds=1e-5), local=profile.local),
        strategies=("ddp", "local_sgd", "diloco"),  # closed forms; all strategies: benchmarks/plan_speed.py
    )
    rows = plan(large).rows
    assert [each.workers for each in rows[:11]] == [1 << power for power in range(11)]
    assert record(plan(replace(large, nodes=1, strategies=("ddp",))))["parameters"] == 25_557_032


OWN = """
import torch
from torch import nn
from offbeat.train.tasks import load_task

def pair():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(1, 8)

def task():
    return load_task("synthetic", seed=0)

class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        return self.layer(x) * (2 if x.sum() > 0 else 1)

def looks():
    return Looks(), torch.zeros(1, 8)

def number():
    return 3

def big():
    return nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(64))), torch.zeros(1, 16384)

MEAN = torch.tensor([0.5])
TEACHER = nn.Linear(8, 4)

class Distilled(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.layer, self.teacher = nn.Linear(8, 4), lambda x: teacher(x)
    def forward(self, x):
        return self.layer(x - MEAN) - self.teacher(x).detach()

def of_the_file():
    return Distilled(TEACHER), torch.zeros(1, 8)

def distilled():
    return Distilled(nn.Linear(8, 4)), torch.zeros(1, 8)

def scaled():
    layer = nn.Linear(8, 4)
    layer.scale = layer.weight.abs().max().item()
    return layer, torch.zeros(1, 8)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_models_of_ones_own(own: str) -> None:
    pair = find_subject(f"{own}:pair", platform="cpu")
    assert pair.at(7).batch == 7
    assert sum(spec.numel for spec in pair.at(7).parameters.values()) == 8 * 4 + 4 + 4 * 2 + 2
    task = find_subject(f"{own}:task", platform="cpu")
    assert task.batch == 32
    assert task.at(5).batch == 5
    assert task.at(5) is task.at(5), "traced once"


def test_a_model_of_ones_own_takes_no_memory(own: str) -> None:
    big = find_subject(f"{own}:big", platform="cpu")
    assert isinstance(big.model, nn.Module)
    assert all(parameter.is_meta for parameter in big.model.parameters()), "64 GiB otherwise"
    assert sum(spec.numel for spec in big.at(2).parameters.values()) == 64 * (1 << 28) + 64 * (1 << 14)
    scaled = find_subject(f"{own}:scaled", platform="cpu")  # which needs the numbers
    assert sum(spec.numel for spec in scaled.at(2).parameters.values()) == 8 * 4 + 4
    for name in ("of_the_file", "distilled"):  # tensors that are none of its parameters
        found = find_subject(f"{own}:{name}", platform="cpu")
        assert sum(spec.numel for spec in found.at(2).parameters.values()) == 8 * 4 + 4, name


def test_models_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("timm")
    fake.is_model = lambda name: name == "tiny"  # type: ignore[attr-defined]
    fake.list_models = lambda _pattern: ["tiny"]  # type: ignore[attr-defined]
    fake.get_pretrained_cfg = lambda *_args, **_kwargs: None  # type: ignore[attr-defined]
    fake.create_model = lambda _name, pretrained, num_classes: nn.Sequential(  # type: ignore[attr-defined]  # noqa: ARG005
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes)
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    step = find_subject("timm:tiny", platform="cuda", classes=12).at(4)
    assert sum(spec.numel for spec in step.parameters.values()) == 3 * 12 + 12
    with pytest.raises(BadInput, match="there is no timm model 'tinny': did you mean 'tiny'"):
        find_subject("timm:tinny", platform="cpu")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match="timm:tiny needs the package timm, which is not installed"):
        find_subject("timm:tiny", platform="cpu")


PLAN = "plan --model resnet8 --strategies ddp --nodes 1 --workers-per-node 2"


@pytest.mark.usefixtures("_same_signals")
@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        ("--model resnet51", r"no model 'resnet51': did you mean 'resnet50'\?"),
        ("--device h10", r"no device 'h10': did you mean 'h100'\?"),
        ("--device nowhere.json", r"there is no profile nowhere.json: write one with offbeat calibrate"),
        ("--device broken.json", r"broken.json is no profile of a device .*: write one with offbeat calibrate"),
        ("--device old.json", rf"profile old.json is of version 0, not {VERSION}: run offbeat calibrate again"),
        ("--link 10foo", r"'10foo' is not a rate: .* such as 100mbit"),
        ("--link measured", r"has no measured all-reduce: give a rate"),
        (
            "--link measured --local-link 1gbit",
            r"measured is the link between all workers.*: leave out --local-link",
        ),
        ("--local-link 5", r"'5' is not a rate"),
        ("--latency -1", r"a latency of -1.0 s is not a time"),
        ("--batch 0", r"--batch 0 does not fit: it must be at least 1"),
        (
            "--batch 10000000",
            r"needs .* GB, .* GB of them to synchronise, and NVIDIA H100 SXM has 76 GB for it: the largest batch that "
            r"fits is \d+",
        ),
        ("--model gpt --device tiny.json --batch 4", r"not even one sample fits, so choose another device"),
        (
            "--device cpu1 --workers-per-node 1000 --batch 256",
            r"GB for each of 1000 workers: the largest batch that fits is \d+",
        ),
        ("--nodes 0", r"--nodes 0 does not fit"),
        ("--straggler 7:2", r"straggler 7 is not a rank: ranks go from 0 to 1"),
        ("--all-reduce rings", r"no way to all-reduce 'rings': did you mean 'ring'\?"),
        ("--jitter 1e9", r"--jitter 1000000000.0 does not fit"),
        ("--strategies dpd", r"no strategy 'dpd': did you mean 'ddp'\?"),
        ("--optimizer lion", r"no optimizer 'lion': .*adamw, sgd"),
        ("--input 3,32", r"model resnet8 reads images"),
        ("--input 3,0,8", r"does not fit: all must be at least 1"),
        ("--classes 0", r"with 0 classes does not fit: all must be at least 1"),
        ("--device unjudged.json", r"unjudged.json is no profile of a device .*: write one with offbeat calibrate"),
        ("--model own.py:looks", r"looks at the values of a tensor .*a trace knows only shapes"),
        ("--model own.py:number", r"own.py:number returned int: it must return an offbeat Task, or a model and"),
        ("--model own.py:pair --classes 3", r"leave out --input and --classes"),
        ("--json nowhere/plan.json", r"--json nowhere/plan.json cannot be written"),
        ("--out own.py", r"--out own.py is a file: give the name of a folder"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], flags: str, pattern: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.json").write_text(f'{{"version": {VERSION}}}')
    (tmp_path / "old.json").write_text('{"version": 0}')
    cpu1 = load_profile("cpu1").as_dict()
    (tmp_path / "unjudged.json").write_text(json.dumps({**cpu1, "kernels": {**cpu1["kernels"], "held_out": {}}}))
    tiny = replace(load_profile("t4"), device=replace(load_profile("t4").device, memory_bytes=1_000_000))
    tiny.save(tmp_path / "tiny.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["offbeat", *PLAN.split(), *flags.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    check_sentence(err, pattern)
