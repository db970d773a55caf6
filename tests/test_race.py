"""A race that is broken off keeps what was measured by then, and nothing of it goes on."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from commands import ROOT

from offbeat.emulate.runs import start_of

# In place of `offbeat compare`: one lap is over, and the next takes until there is a file `go`.
COMPARE = """
import json, os, pathlib, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
(out / "compare.json").write_text(json.dumps({{"runs": ["the first"]}}))
try:
    print("a lap is over in process", os.getpid(), flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
except KeyboardInterrupt:
    time.sleep(0.2)  # namespaces and links are taken down
    sys.exit({status})
"""
RACE = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import race
race.ROOT = Path({folder!r})
sys.argv[1:] = ["straggler", "--results", {folder!r}]
race.main()
"""


@contextmanager
def racing(folder: Path, *before: str, status: int = 130) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A race whose first lap is over, and the process that races; `status` is its own after Ctrl-C."""
    (folder / "offbeat.py").write_text(COMPARE.format(status=status))
    code = RACE.format(benchmarks=str(ROOT / "benchmarks"), folder=str(folder))
    with subprocess.Popen(
        [*before, sys.executable, "-c", code],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as race:  # fmt: skip
        try:
            assert race.stdout is not None
            over = next((line for line in race.stdout if "a lap is over" in line), None)
            assert over is not None, race.communicate()
            yield race, int(over.split()[-1])
        finally:
            race.kill()


def runs_in(path: Path) -> object:
    return json.loads(path.read_text())["runs"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGINT, 0), (signal.SIGTERM, 130), (signal.SIGHUP, 130)]
)
def test_a_race_that_is_broken_off_keeps_its_laps(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """Also where the signal came too late for the race to fail of it."""
    with racing(tmp_path, status=status) as (race, _):
        if number == signal.SIGINT:
            os.killpg(race.pid, number)  # as a terminal does
        else:
            race.send_signal(number)
        _, told = race.communicate(timeout=30)
    assert race.returncode == 1
    assert "straggler ended with status" in told
    assert told.endswith("what was measured is in straggler.json.part\n")
    assert "Traceback" not in told
    assert runs_in(tmp_path / "straggler.json.part") == ["the first"]
    assert not (tmp_path / "straggler.json").exists()


@pytest.mark.timeout(60)
def test_nohup_is_respected(tmp_path: Path) -> None:
    with racing(tmp_path, "nohup") as (race, _):
        race.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        _, told = race.communicate(timeout=30)
    assert race.returncode == 0, told
    assert runs_in(tmp_path / "straggler.json") == ["the first"]


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_a_race_dies_with_its_keeper(tmp_path: Path) -> None:
    with racing(tmp_path) as (race, racer):
        race.kill()
        race.wait()
        until = time.monotonic() + 10
        while start_of(racer) is not None and time.monotonic() < until:
            time.sleep(0.02)
        assert start_of(racer) is None, "zombies do not count"


@pytest.fixture
def race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """To be run here, with all its files in a folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("race")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["race.py", "straggler", "--results", str(tmp_path)])
    return module


def test_a_race_that_ends_before_its_first_lap_is_over_keeps_nothing(
    tmp_path: Path, race: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "run_to_the_end", lambda _words: 2)
    with pytest.raises(SystemExit, match=r"^straggler ended with status 2; nothing was measured$"):
        race.main()
    assert not list(tmp_path.iterdir())


def test_a_race_that_is_complete_takes_the_place_of_one_that_was_broken_off(
    tmp_path: Path, race: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(words: list[str]) -> int:
        out = Path(words[-1])
        out.mkdir(parents=True)
        (out / "compare.json").write_text('{"runs": ["all"]}')
        return 0

    monkeypatch.setattr(race, "run_to_the_end", run)
    (tmp_path / "straggler.json.part").write_text('{"runs": ["the first"]}')
    race.main()
    assert runs_in(tmp_path / "straggler.json") == ["all"]
    assert not (tmp_path / "straggler.json.part").exists()
