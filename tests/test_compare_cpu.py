"""CPU seconds of a worker and of all that it started."""

import subprocess
import sys
from pathlib import Path

import pytest

from offbeat.compare.contest import Contest, run_contest
from offbeat.compare.cpu import Process, cpu_seconds, descendants_seconds, processes

BURN = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]"


def test_cpu_seconds_are_those_of_all_descendants() -> None:
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_seconds() - before > 0.29, "of one that has ended"
    before = cpu_seconds()
    wait = f"{BURN}; print('burnt', flush=True); input()"
    start = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen(
        [sys.executable, "-c", start, wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "burnt\n"
        assert cpu_seconds() - before > 0.25, "of a child's child that runs"
        parent.stdin.write("\n")
    assert cpu_seconds() - before > 0.29, "also when both have ended"


def test_descendants_without_proc_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.compare.cpu.PROC", tmp_path / "none")
    assert processes() == {}
    known = {2: Process(1, 0.5), 3: Process(2, 0.25), 4: Process(3, 0.125), 5: Process(0, 8.0)}
    assert descendants_seconds(known, 1) == 0.875


WORKS_IN_A_CHILD = """
import subprocess, sys
from contextlib import contextmanager

@contextmanager
def train(model, optimizer, setup):
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as child:
        try:
            yield model, optimizer
        finally:
            child.kill()
"""


@pytest.mark.timeout(120)
def test_a_rival_that_works_in_a_child_process_does_not_hide_its_cpu_seconds(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(WORKS_IN_A_CHILD)
    contest = Contest(
        strategies=(f"{tmp_path}/child.py:train",), links=(None,), workers=(1,), steps=10, step_seconds=0.1
    )
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    none, child = (outcome.measures for outcome in outcomes)
    assert none is not None
    assert child is not None
    assert child.cpu_share > none.cpu_share + 0.3
