"""The service that lets workers share a GPU: started for a lap, gone after it, with a stand-in for NVIDIA's program."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offbeat.compare.mps import PROGRAM, mps, sharing
from offbeat.emulate.strays import MARK, members
from offbeat.errors import OffbeatError

STAND_IN = """#!{python}
import os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if sys.argv[1:] == ["-f"]:
    (pipes / "{listens}").touch()
    while not (pipes / "quit").exists():
        time.sleep(0.01)
elif {obeys} and sys.stdin.read() == "quit\\n":
    (pipes / "quit").touch()
"""


LAP = """
import time
from offbeat.compare.mps import mps
with mps("cuda"):
    print("served", flush=True)
    time.sleep(60)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, listens: str = "control", obeys: bool = True) -> None:
    program = folder / PROGRAM
    program.write_text(STAND_IN.format(python=sys.executable, listens=listens, obeys=obeys))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def served() -> int:
    return sum(1 for _ in members(lambda name: name.startswith(f"{os.getpid()}-")))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("obeys", [True, False])
def test_it_is_there_for_the_workers_and_gone_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obeys: bool
) -> None:
    install(tmp_path, monkeypatch, obeys=obeys)
    monkeypatch.setattr("offbeat.compare.mps.QUIT_SECONDS", 5.0 if obeys else 0.1)
    before = dict(os.environ)
    with mps("cuda") as env:
        pipes = Path(env["CUDA_MPS_PIPE_DIRECTORY"])
        assert (pipes / "control").exists()
        assert served() == 1
        assert MARK not in env
    assert served() == 0
    assert not pipes.exists()
    assert dict(os.environ) == before, "the process that evaluates is no client: the service would wait for it"


@pytest.mark.timeout(60)
def test_it_is_gone_also_when_the_lap_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    with pytest.raises(ZeroDivisionError), mps("cuda"):
        1 / 0  # noqa: B018
    assert served() == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_of_a_run_that_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """By SIGKILL it is the next one that tidies up."""
    install(tmp_path, monkeypatch)
    with subprocess.Popen(
        [sys.executable, "-c", LAP], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as lap:
        try:
            assert lap.stdout is not None
            assert lap.stdout.readline().strip() == "served"
            lap.send_signal(number)
            lap.wait(30)
        finally:
            lap.kill()
    if number == signal.SIGKILL:
        with mps("cuda"):
            pass
    assert not list(members(lambda name: name.startswith(f"{lap.pid}-")))


@pytest.mark.timeout(60)
def test_a_service_that_does_not_listen_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, listens="elsewhere")
    monkeypatch.setattr("offbeat.compare.mps.START_SECONDS", 0.2)
    with pytest.raises(OffbeatError, match="does not start: run it by hand"), mps("cuda"):
        pass
    assert served() == 0


def test_workers_on_a_cpu_need_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    with mps("cpu") as env:
        assert env == {}
    assert sharing("cuda") == "MPS"
    assert sharing("cpu") is None
    monkeypatch.setenv("PATH", "")
    assert sharing("cuda") == "turns"
    with mps("cuda") as env:
        assert env == {}
