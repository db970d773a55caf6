"""Bad input: one sentence on standard error, exit status 2, no traceback, no process left."""

import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ROOT
from test_cli import FOREVER, GONE_SECONDS, TORCHRUN, running

from offbeat import cli
from offbeat.train.job import Job

OWN_TASKS = """
import os
from dataclasses import replace
import torch
from torch import nn
from offbeat.train.tasks import load_task

def good():
    return load_task("synthetic", seed=0)

def raises():
    raise RuntimeError("no\\ndata")

def returns_a_number():
    return 3

def raises_on_one_rank():
    if os.environ.get("RANK") == "1":
        open("raised", "w").close()
        raise KeyError("only here")
    return good()

class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.steps = good().model(), 0

    def forward(self, x):
        self.steps += 1
        if self.steps == 20 and os.environ.get("RANK") == "1":
            open("raised", "w").close()
            raise ValueError("forward broke")
        return self.inner(x)

def breaks_on_one_rank():
    return replace(good(), model=Breaks)

class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.complex64))

def complex_model():
    return replace(good(), model=Complex)

class TooNarrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x.flatten(1))

def model_does_not_fit():
    return replace(good(), model=TooNarrow)
"""

BOTH = [
    ("--strategy lasdg", r"no strategy 'lasdg': did you mean 'lasgd'\?"),
    ("--strategy lasgd:evry=3", r"'evry': did you mean 'every'\?"),
    ("--strategy lasgd:every=0", r"every=0 .* at least 1"),
    ("--strategy lasgd:every=abc", r"every=abc .* whole number"),
    ("--strategy lasgd:every", r"name=value"),
    ("--strategy lasgd:every=8 --every 9", r"--every 9 .* give it once"),
    ("--strategy ddp --every 8", r"every=8 does not fit ddp, .*lasgd"),
    ("--strategy gossip --rate nan", r"rate=nan"),
    ("--strategy gossip --topology rng", r"did you mean 'ring'\?"),
    ("--every 0", r"every=0 .* at least 1"),
    ("--delay -1", r"delay=-1 .* at least 0"),
    ("--wrokers 3", r"--wrokers.*'--workers'"),
    ("--workers 0", r"--workers 0 .* at least 1"),
    ("--workers two", r"--workers.*two"),
    ("--workers 100000", r"samples leave some of 100000 workers without any"),
    ("--nodes 5", r"5 nodes are more than 4 workers"),
    ("--epochs 3 --steps 3", r"--epochs 3 and --steps 3"),
    ("--batch 0", r"--batch 0"),
    ("--seed -1", r"--seed -1 .* at least 0"),
    (f"--seed {1 << 64}", r"below 2\*\*63"),
    ("--learning-rate nan", r"learning rate nan"),
    ("--task digit", r"did you mean 'digits'\?"),
    ("--task mnist --data nowhere", r"train-images-idx3-ubyte.*nowhere.*--data"),
    ("--task mnist --data short", r"short/train-images-idx3-ubyte"),
    ("--task cifar10 --data short", r"short/data_batch_1.bin .*30730000"),
    ("--task text --data nowhere", r"nowhere cannot be read"),
    ("--model mpl", r"did you mean 'mlp'\?"),
    ("--model gpt", r"gpt does not fit task digits"),
    ("--out file", r"--out file is a file"),
    ("--out file/below", r"--out file/below cannot be written to"),
    ("--json nowhere/x.json", r"--json nowhere/x.json cannot be written"),
    ("--json .", r"--json \. cannot be written \(Is a directory\)"),
    ("--task nowhere.py:task", r"no Python file nowhere.py"),
    ("--task own.py", r"file.py:function"),
    ("--task own.py:nothing", r"no function 'nothing'"),
    ("--task own.py:raises", r"RuntimeError: no data"),
    ("--task own.py:returns_a_number", r"returned int"),
    ("--task own.py:good --model mlp", r"leave out --data, --model"),
    ("extra", r"extra"),
]
TRAIN = [
    ("--port 0", r"--port 0 .* 1 to 65535"),
    ("--port 70000", r"--port 70000 .* 1 to 65535"),
    ("--device tpu", r"choose cpu or cuda"),
    ("--step-seconds -1", r"--step-seconds -1"),
    ("--step-seconds inf", r"--step-seconds inf"),
]
SIMULATE = [
    ("--link abc", r"'abc' is not a rate"),
    ("--link -1mbit", r"'-1mbit' is not a rate"),
    ("--local-link 0", r"'0' is not a rate"),
    ("--latency -1", r"latency of -1"),
    ("--latency soon", r"soon"),
    ("--local-latency nan", r"latency of nan"),
    ("--straggler 0", r"RANK:FACTOR"),
    ("--straggler 9:2", r"9 is not a rank"),
    ("--straggler 0:0", r"above 0"),
    ("--straggler 0:2 --straggler 0:3", r"each rank once"),
    ("--jitter -1", r"jitter=-1"),
    ("--jitter 1e200", r"at most 100"),
    ("--step-seconds 0", r"step_seconds=0"),
    ("--step-seconds soon", r"'measured'"),
    ("--model-bytes 5", r"goes with --timing-only"),
    ("--timing-only --model-bytes 0", r"--model-bytes 0"),
    ("--timing-only --model-bytes 5 --model cnn", r"--model cnn would go unused beside --model-bytes"),
    ("--timing-only --model-bytes 5 --learning-rate 0.5", r"--learning-rate 0.5 would go unused"),
    ("--timing-only --model-bytes 5 --steps 3 --batch 2", r"--batch 2 would go unused"),
    ("--timing-only --model-bytes 5 --steps 3 --task mnist --data nowhere", r"--data nowhere would go unused"),
    ("--timing-only --model-bytes 5 --steps 3 --task digit", r"did you mean 'digits'\?"),
    ("--task own.py:complex_model", r"'weight' is torch.complex64"),
    ("--task own.py:model_does_not_fit", r"line \d+ of own.py raised RuntimeError"),
]
COMPARE = [
    ("--loopback --delay 0.1", r"--delay 0.1 would go unused beside --loopback"),
    ("--loopback --delay -1", r"delay of -1.0 s .* choose 0 to 10 s"),
    ("--delay -1", r"delay of -1.0 s .* choose 0 to 10 s"),
    ("--delay nan", r"delay of nan s"),
    ("--loopback --link 1gbit", r"--link 1gbit would go unused beside --loopback"),
    ("--loopback --link 100mbit", r"--link 100mbit would go unused"),  # even if it is the default
    ("--link=", r"'' is not a rate"),
    ("--link fast", r"'fast' is not a rate"),
    ("--link 100mbit,90gbit", r"90gbit cannot be shaped: choose 1kbit to 34gbit"),
    ("--link 100mbit,", r"'' is not a rate"),
    ("--workers 4,2000", r"2000 nodes cannot be emulated: choose 1 to 1023"),
    ("--loopback --workers 2,20000", r"samples leave some of 20000 workers without any"),
    ("--workers 2,0", r"0 workers on 0 nodes: both must be at least 1"),
    ("--snapshots -3", r"--snapshots -3 does not fit: it must be at least 0"),
    ("--snapshots 0 --target-accuracy 0.9", r"--snapshots 0 leaves no point .* --target-accuracy 0.9"),
    ("--target-accuracy 1.5", r"--target-accuracy 1.5 .* at most 1"),
    ("--limit-seconds 0", r"--limit-seconds 0 does not fit: it must be above 0"),
    ("--limit-seconds nan", r"--limit-seconds nan does not fit"),
    ("--limit-seconds 1e6", r"--limit-seconds 1e\+06 does not fit: .* at most 604800, a week"),
    ("--straggler 4:2", r"--straggler 4:2 .* below 4"),
    ("--straggler 0:2 --step-seconds 0", r"--straggler 0:2 would go unused beside --step-seconds 0.*: leave"),
    ("--strategies lasgdd", r"did you mean 'lasgd'"),
    ("--workers 2 --nodes 3", r"3 nodes are more than 2 workers"),
    ("--repeats 0", r"--repeats 0 .* at least 1"),
    ("--steps 5 --epochs 2", r"--epochs 2 and --steps 5 contradict each other"),
    ("--step-seconds -1", r"--step-seconds -1.0 does not fit"),
    ("--json nowhere/x.json --loopback", r"--json nowhere/x.json cannot be written"),
    ("--seed -1 --loopback", r"seed -1 at least 0"),
]
DDP = f"{ROOT}/benchmarks/rivals/torch_ddp.py:train"
OWN_RIVAL = f"""
from runpy import run_path
rival = run_path({str(ROOT / "benchmarks" / "rivals" / "rival.py")!r})["rival"]

@rival
def train(model, optimizer, setup, *, every=16):
    yield model, optimizer
"""
RIVALS = [
    ("nowhere.py:train", r"nowhere.py is not there: name a rival's file and its function"),
    ("own.py:nothing", r"own.py has no function nothing: choose among .*good"),
    ("own.py:good", r"good does not fit: a rival is a function of \(model, optimizer, setup\)"),
    ("own.py:good:every=3", r"own.py:good:every=3 does not fit: good\(\) got an unexpected keyword argument 'every'"),
    ("no_python.py:train", r"no_python.py is no Python \(.*line 1\)\): correct that file"),
    (f"{DDP}:hok=fp16", r"there is no setting 'hok': choose among hook, trail"),
    (f"{DDP}:hook=fp17", r"there is no hook 'fp17': choose among none, fp16, bf16"),
    (f"{DDP}:fp16", r"settings are written name=value, and 'fp16' is not"),
    (f"{DDP}:trail=2", r"trail=2.0 does not fit"),
    (f"{DDP}:trail=long", r"trail=long must be a number, such as 0.0"),
    ("rival.py:train:every=abc", r"every=abc must be a whole number, such as 16"),
]
CASES = [
    *((f"{command} {flags}", words) for flags, words in BOTH for command in ("train", "simulate")),
    *((f"train {flags}", words) for flags, words in TRAIN),
    *((f"simulate {flags}", words) for flags, words in SIMULATE),
    *((f"compare {flags}", words) for flags, words in COMPARE),
    *((f"compare --loopback --strategies {spec}", words) for spec, words in RIVALS),
    ("trian", r"'trian'.*'train'"),
    ("bogus", r"'bogus'\. Choose among train, simulate"),
    ("train --augment", r"'--augment'\. It is an option of: compare\."),
    ("train --stepz 3", r"Did you mean one of: .*'--steps'"),
    ("train --qqqqqqqqqq", r"See offbeat train --help"),
    ("--workers 0", r"--workers 0 does not fit"),  # a flag without a command is one of train's
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the cases name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "own.py").write_text(OWN_TASKS)
    (tmp_path / "rival.py").write_text(OWN_RIVAL)
    (tmp_path / "no_python.py").write_text("def train(:")
    (tmp_path / "short").mkdir()
    for name in ("train-images", "t10k-images"):
        (tmp_path / "short" / f"{name}-idx3-ubyte").write_bytes(bytes((0, 0, 8, 3)) + bytes(100))
    for name in ("train-labels", "t10k-labels"):
        (tmp_path / "short" / f"{name}-idx1-ubyte").write_bytes(bytes((0, 0, 8, 1)) + bytes(100))
    (tmp_path / "short" / "data_batch_1.bin").write_bytes(bytes(3000))
    return tmp_path


@pytest.fixture
def _same_signals() -> Iterator[None]:
    """The command line takes the signals over; give them back."""
    before = {number: signal.getsignal(number) for number in cli.ENDING_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_same_signals")
@pytest.mark.parametrize(("arguments", "words"), CASES)
def test_one_sentence(
    arguments: str, words: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["offbeat", *arguments.split()])
    before = set(here.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert out == ""
    check_sentence(err, words)
    assert {path for path in here.rglob("*") if "__pycache__" not in str(path)} == before


@pytest.mark.usefixtures("_same_signals")
def test_port_taken(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["offbeat", "train", "--port", str(port)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 2
    check_sentence(capfd.readouterr().err, rf"port {port} cannot be had .* --port")


@pytest.mark.usefixtures("_same_signals")
def test_alone_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Job] = []
    monkeypatch.setattr("offbeat.train.command.train", lambda job, *_, **__: called.append(job))
    monkeypatch.setattr("sys.argv", ["offbeat"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert [(job.task, job.strategy.name, job.layout.workers, job.layout.nodes) for job in called] == [
        ("digits", "lasgd", 4, 2)
    ]


@pytest.mark.usefixtures("_same_signals")
@pytest.mark.parametrize(
    "arguments", ["--help", "train --help", "simulate -h", "compare -h", "plan --help", "calibrate -h", "--version"]
)
def test_help_teaches(arguments: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["offbeat", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capfd.readouterr()
    assert (ended.value.code, err) == (0, "")
    if "train" in arguments or "simulate" in arguments:
        assert f"offbeat {arguments.split()[0]} --" in out  # an example to copy
        assert "--warmup-steps" in out
    if "plan" in arguments or "calibrate" in arguments:
        assert f"offbeat {arguments.split()[0]} --" in out


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("raises_on_one_rank", r"raises_on_one_rank\(\) of own.py raised KeyError: 'only here'"),
        ("breaks_on_one_rank", r"failed on rank 1: line \d+ of own.py raised ValueError: forward broke"),
        ("complex_model", r"torch.complex64.* only floating-point"),
    ],
)
def test_a_task_that_fails_among_workers(task: str, words: str, here: Path) -> None:
    arguments = [*FOREVER, "--task", f"own.py:{task}", "--quiet"]
    with running("train", *arguments, folder=here) as run:
        assert run.ends() == 2, run.stderr
        check_sentence(run.stderr, words)
        if (here / "raised").exists():
            assert time.time() - (here / "raised").stat().st_mtime < GONE_SECONDS


@pytest.mark.timeout(60)
def test_under_torchrun_each_rank_says_it_at_most_once(here: Path) -> None:
    with running("train", "--workers", "3", folder=here, command=TORCHRUN) as run:
        assert run.ends() == 1, run.stderr  # torchrun's own status
        own = [line for line in run.stderr.splitlines() if line.startswith("offbeat: ")]
        assert 1 <= len(own) <= 2
        assert set(own) == {"offbeat: --workers 3 contradicts the launcher, which started 2: leave it out"}
        assert "exitcode  : 2" in run.stderr


def check_sentence(err: str, words: str) -> None:
    assert err.startswith("offbeat: "), err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert re.search(words, err), err
