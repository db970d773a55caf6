"""What a race leaves behind when it is killed, and that the next one takes it away."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.compare.course import Loopback
from offbeat.emulate.folders import folder_of_run, folders
from offbeat.emulate.runs import start_of
from offbeat.emulate.strays import members, sweep

RACE = "compare --loopback --workers 2 --strategies ddp --steps 100000 --step-seconds 0.01 --quiet"
KEEP = """
import time
from offbeat.emulate.folders import folder_of_run
with folder_of_run("lap", in_ram=True) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def soon(happened: Callable[[], object], seconds: float) -> bool:
    """At least once: while processes start and end, their number goes up and down."""
    until = time.monotonic() + seconds
    while not (found := bool(happened())) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def folders_of(pid: int) -> list[Path]:
    return [path for path, name in folders() if name.startswith(f"{pid}-")]


def processes_of(pid: int) -> int:
    return sum(1 for _ in members(lambda name: name.startswith(f"{pid}-")))


@pytest.mark.timeout(90)
def test_workers_on_loopback_die_with_a_race_that_is_killed_and_its_folder_goes_at_the_next() -> None:
    with subprocess.Popen([sys.executable, "-m", "offbeat", *RACE.split()], stderr=subprocess.DEVNULL) as race:
        try:
            assert soon(lambda: folders_of(race.pid) and processes_of(race.pid) == 2, 60)
        finally:
            race.kill()
    assert soon(lambda: processes_of(race.pid) == 0, 5), "nothing but the kernel ends them"
    assert folders_of(race.pid)
    with Loopback(1):
        assert not folders_of(race.pid)


@pytest.mark.timeout(60)
def test_a_folder_stays_as_long_as_its_owner() -> None:
    with subprocess.Popen([sys.executable, "-c", KEEP], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip())
            (folder / "snapshots").mkdir()
            sweep()
            assert folders_of(owner.pid) == [folder]
        finally:
            owner.kill()
    sweep()
    assert not folder.exists()


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.emulate.folders.RAM", tmp_path)
    with folder_of_run("lap", in_ram=True) as own:
        space, dead = int(Path(own).name.split("-")[2]), f"{os.getpid()}-1-0"
    assert start_of(os.getpid()) != 1
    kept = [f"offbeat-lap-{space + 1}-{dead}-x", "offbeat-lap-abc", "offbeat-of-a-user", f"lap-{space}-{dead}-x"]
    for name in (*kept, f"offbeat-lap-{space}-{dead}-x"):
        (tmp_path / name).mkdir()
    sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    with folder_of_run("lap", in_ram=True) as own:
        sweep()
        assert Path(own).parent == tmp_path
        assert folders_of(os.getpid()) == [Path(own)]
    assert not Path(own).exists()


def test_where_nobody_can_tell_whose_folders_they_are_all_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.emulate.folders.RAM", tmp_path)
    monkeypatch.setattr("offbeat.emulate.folders.PROC", tmp_path / "masked")
    (tmp_path / f"offbeat-lap-0-{os.getpid()}-1-0-x").mkdir()
    with folder_of_run("lap", in_ram=True):
        sweep()
        assert len(list(tmp_path.iterdir())) == 2


def test_folders_of_another_boot_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.emulate.folders.RAM", tmp_path)
    boot = tmp_path / "sys" / "kernel" / "random" / "boot_id"
    boot.parent.mkdir(parents=True)
    monkeypatch.setattr("offbeat.emulate.folders.PROC", tmp_path)
    boot.write_text("one")
    with folder_of_run("lap", in_ram=True) as own:
        assert folders_of(os.getpid()) == [Path(own)]
        boot.write_text("other")
        assert not folders_of(os.getpid())


def test_a_worker_on_loopback_gets_its_arguments_and_environment(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['RANK'])"
    with Loopback(1) as course, (tmp_path / "log").open("wb") as log:
        worker = course.run(0, [sys.executable, "-c", code, "-", "a b"], env={"RANK": "3"}, stdout=log, stderr=log)
        assert worker.wait(30) == 0
    assert (tmp_path / "log").read_text() == "['-', 'a b'] 3\n"


def test_what_leaves_its_session_is_ended_too(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    with Loopback(1) as course, (tmp_path / "log").open("wb") as log:
        course.run(0, [sys.executable, "-c", code], env={}, stdout=log, stderr=log).wait(30)
        assert processes_of(os.getpid()) == 1
    assert processes_of(os.getpid()) == 0


def test_a_signal_is_seen_as_the_workers_own(tmp_path: Path) -> None:
    with Loopback(1) as course, (tmp_path / "log").open("wb") as log:
        worker = course.run(0, ["sleep", "60"], env={}, stdout=log, stderr=log)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == -signal.SIGTERM
