"""The command line from outside: real processes, what they leave behind, and how they end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from commands import run_here

from offbeat import cli
from offbeat.errors import OffbeatError
from offbeat.options import options_of
from offbeat.report.metrics import read_metrics
from offbeat.report.status import Result
from offbeat.strategies import STRATEGIES
from offbeat.strategies.lasgd import LASGD
from offbeat.train.seed import worker_seed
from offbeat.train.task import evaluate
from offbeat.train.tasks import load_task

OFFBEAT = [sys.executable, "-m", "offbeat"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "offbeat"]
MARK = "OFFBEAT_TEST_RUN"
GONE_SECONDS = 5.0
FEW = """
from dataclasses import replace
from offbeat.train.tasks import load_task
from offbeat.train.task import Samples

def task():
    full = load_task("synthetic", seed=0)
    few = Samples(inputs=full.train.inputs[:41], targets=full.train.targets[:41])  # 21 and 20 for two workers
    return replace(full, train=few, batch=7)
"""
DRAWS = """
import os
from dataclasses import replace
import torch
from offbeat.train.tasks import load_task

class Draws(torch.nn.Linear):
    def forward(self, x):
        if self.training:
            with open(f"drawn{os.environ['RANK']}", "w") as file:
                file.write(str(float(torch.rand(()))))
        return super().forward(x)

def task():
    return replace(load_task("synthetic", seed=0), model=lambda: Draws(32, 10))
"""
FOREVER = ["--task", "synthetic", "--steps", "10000000", "--workers", "2"]


class Run:
    """`offbeat ...` in a session of its own; all of its processes are known by a mark in their environment."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.mark = f"{MARK}={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, name: value, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def left(self) -> list[int]:
        """The processes of this run that are alive."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # gone meanwhile, or somebody else's
                continue
        return found

    def workers(self) -> list[int]:
        """Alive processes that a launcher started, by rank."""
        ranks = {}
        for pid in self.left():
            try:
                entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks.update({int(entry[5:]): pid for entry in entries if entry.startswith(b"RANK=")})
        return [ranks[rank] for rank in sorted(ranks)]

    def until_metrics(self, path: Path, records: int = 4) -> None:
        """Wait until the run trains: so many statuses are on disk."""
        while not (path.exists() and len(path.read_bytes().splitlines()) >= records):
            assert self.process.poll() is None, self.stderr
            time.sleep(0.05)

    def ends(self, seconds: float = 60.0) -> int:
        """The exit status; all processes must be gone when so many seconds have passed."""
        deadline = time.monotonic() + seconds
        status = self.process.wait(seconds)
        deadline = max(deadline, time.monotonic() + 1.0)
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.left(), f"left running: {self.left()}; stderr: {self.stderr}"
        return status


@contextmanager
def running(*arguments: str, folder: Path, command: list[str] = OFFBEAT) -> Iterator[Run]:
    run = Run([*command, *arguments], folder)
    try:
        yield run
    finally:
        for pid in run.left():
            os.kill(pid, signal.SIGKILL)
        run.process.wait(10)


def check_result(record: dict[str, Any], workers: int) -> Result:
    assert {"accuracy", "loss", "steps_per_second", "computing_share", "bytes_sent", "seconds"} <= set(record)
    result = Result.from_dict(record)
    assert result.workers == len(result.per_worker) == workers
    assert result.bytes_sent > 0
    assert 0 < result.computing_share <= 1
    return result


@pytest.mark.timeout(90)
def test_train_leaves_all_outputs_and_json_alone_on_stdout(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    arguments = ["train", "--workers", "2", "--epochs", "3", "--out", str(out), "--json", "-"]
    with running(*arguments, "--step-seconds", "0.002", folder=tmp_path) as run:
        assert run.ends() == 0, run.stderr
        record = json.loads(run.stdout)
    result = check_result(record, workers=2)
    assert result.compute == "emulated, 0.002 s a step"
    assert min(status.seconds for status in result.per_worker) >= 0.002 * result.per_worker[0].steps
    assert json.loads((out / "result.json").read_text()) == record
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors", "metrics.jsonl", "trace.json", "summary.png", "result.json",
    }  # fmt: skip
    task = load_task("digits", seed=0)
    model = task.model()
    safetensors.torch.load_model(model, out / "model.safetensors")
    assert evaluate(model, task)[0] == pytest.approx(result.accuracy)
    assert len(read_metrics(out / "metrics.jsonl")) >= 4
    kinds = {event.get("cat") for event in json.loads((out / "trace.json").read_text())["traceEvents"]}
    assert {"compute", "communicate"} <= kinds
    assert (out / "summary.png").read_bytes().startswith(b"\x89PNG")
    assert "emulated" in run.stderr


@pytest.mark.timeout(90)
def test_the_default_run_learns(tmp_path: Path) -> None:
    with running("train", "--json", "result.json", folder=tmp_path) as run:
        assert run.ends(80) == 0, run.stderr
    result = check_result(json.loads((tmp_path / "result.json").read_text()), workers=4)
    assert (result.task, result.strategy, result.nodes) == ("digits", "lasgd", 2)
    assert result.options == {name: option.default for name, option in options_of(LASGD).items()}
    assert result.accuracy is not None
    assert result.accuracy >= 0.95


@pytest.mark.timeout(90)
def test_timing_of_given_bytes_and_steps_reads_no_data(tmp_path: Path) -> None:
    arguments = "simulate --timing-only --model-bytes 1000 --steps 5 --task mnist --json result.json"
    run_here(arguments.split(), tmp_path)
    result = check_result(json.loads((tmp_path / "result.json").read_text()), workers=4)
    assert (result.task, result.accuracy, result.loss) == ("mnist", None, None)


@pytest.mark.timeout(90)
def test_every_rank_draws_its_own_numbers(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)
    arguments = ["train", "--task", "draws.py:task", "--workers", "2", "--steps", "1", "--seed", "3", "--quiet"]
    with running(*arguments, folder=tmp_path) as run:
        assert run.ends() == 0, run.stderr
    for rank in range(2):
        expected = torch.rand((), generator=torch.Generator().manual_seed(worker_seed(3, rank)))
        assert float((tmp_path / f"drawn{rank}").read_text()) == float(expected)


@pytest.mark.timeout(90)
def test_train_under_torchrun_gives_the_same_keys(tmp_path: Path) -> None:
    arguments = ["train", "--task", "synthetic", "--steps", "20", "--json", "result.json", "--quiet"]
    with running(*arguments, folder=tmp_path, command=TORCHRUN) as run:
        assert run.ends() == 0, run.stderr
        assert run.stdout == ""
    result = check_result(json.loads((tmp_path / "result.json").read_text()), workers=2)
    assert result.nodes == 1
    assert result.compute == "real"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "strategy", ["ddp", "local_sgd", "local_sgd:warmup_steps=12", "lasgd", "lasgd:delay=2", "gossip"]
)
def test_workers_that_run_out_of_data_at_different_steps_end_together(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(FEW)
    arguments = ["train", "--task", "few.py:task", "--workers", "2", "--epochs", "5", "--json", "-", "--quiet"]
    with running(*arguments, "--strategy", strategy, folder=tmp_path) as run:
        assert run.ends() == 0, run.stderr
        result = check_result(json.loads(run.stdout), workers=2)
    assert [status.steps for status in result.per_worker] == [15, 10]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_a_signal_ends_every_process_and_keeps_the_metrics(
    number: signal.Signals, to_group: bool, tmp_path: Path
) -> None:
    with running("train", *FOREVER, "--out", "out", folder=tmp_path) as run:
        run.until_metrics(tmp_path / "out" / "metrics.jsonl")
        (os.killpg if to_group else os.kill)(run.process.pid, number)
        assert run.ends(GONE_SECONDS) == 128 + number
        assert f"offbeat: ended by {number.name}" in run.stderr
        assert "Traceback" not in run.stderr
    assert len(read_metrics(tmp_path / "out" / "metrics.jsonl")) >= 4


@pytest.mark.timeout(60)
def test_nohup_is_respected() -> None:
    code = "import signal, sys; from offbeat import cli; sys.argv = ['offbeat', '--version']\n"
    code += "try: cli.main()\nfinally: print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    for words, ignored in ((["nohup"], "True"), ([], "False")):
        ran = subprocess.run([*words, sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.split()[-1] == ignored


@pytest.mark.timeout(60)
def test_a_signal_while_workers_start_ends_them_without_a_traceback(tmp_path: Path) -> None:
    with running("train", *FOREVER, folder=tmp_path) as run:
        while len(run.workers()) < 2:
            assert run.process.poll() is None, run.stderr
            time.sleep(0.01)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.ends(GONE_SECONDS) == 128 + signal.SIGINT
        assert run.stderr.startswith("offbeat: ended by SIGINT")
        assert run.stderr.count("\n") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_simulation_and_keeps_the_metrics(number: signal.Signals, tmp_path: Path) -> None:
    long = ["--task", "synthetic", "--steps", "50000"]  # statuses come at every percent
    with running("simulate", *long, "--out", "out", "--quiet", folder=tmp_path) as run:
        run.until_metrics(tmp_path / "out" / "metrics.jsonl")
        os.kill(run.process.pid, number)
        assert run.ends(GONE_SECONDS) == 128 + number
        assert re.fullmatch(rf"offbeat: ended by {number.name}.*\n", run.stderr)
    assert len(read_metrics(tmp_path / "out" / "metrics.jsonl")) >= 4


@pytest.mark.parametrize("consequence", [RuntimeError("half done"), OffbeatError("the task failed"), None])
def test_what_fails_because_of_a_signal_is_not_blamed(
    consequence: Exception | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_options: object) -> None:
        try:
            cli.interrupt(signal.SIGTERM, None)
        finally:
            if consequence is not None:
                raise consequence

    monkeypatch.setattr("sys.argv", ["offbeat", "train"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(cli.cli, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 128 + signal.SIGTERM
    assert capfd.readouterr().err == "offbeat: ended by SIGTERM; what was written so far is kept\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("strategy", ["ddp", "lasgd", "gossip"])
def test_a_killed_worker_ends_the_run_with_a_sentence(strategy: str, tmp_path: Path) -> None:
    with running("train", *FOREVER, "--strategy", strategy, "--out", "out", "--quiet", folder=tmp_path) as run:
        run.until_metrics(tmp_path / "out" / "metrics.jsonl")
        os.kill(run.workers()[1], signal.SIGKILL)
        assert run.ends(GONE_SECONDS) == 1
        assert run.stderr == "offbeat: worker 1 was ended by SIGKILL, so the run was ended\n"


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_workers_die_with_a_killed_launcher(tmp_path: Path) -> None:
    with running("train", *FOREVER, "--out", "out", "--quiet", folder=tmp_path) as run:
        run.until_metrics(tmp_path / "out" / "metrics.jsonl")
        os.kill(run.process.pid, signal.SIGKILL)
        assert run.ends(GONE_SECONDS) == -signal.SIGKILL


def test_an_option_of_all_strategies_is_said_to_be_so() -> None:
    every = [cls for cls in STRATEGIES.values() if "trail" in options_of(cls)]
    assert len(every) == len(STRATEGIES)
    assert cli.option_help("trail", every).endswith("[all, default 0.0]")
    assert "lasgd, default 1" in cli.option_help("every", [STRATEGIES["local_sgd"], STRATEGIES["lasgd"]])
