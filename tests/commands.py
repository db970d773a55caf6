"""Run a command as a user would, from inside the environment that the tests run in, and leave nothing behind."""

import io
import os
import shlex
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from offbeat.cli import cli

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 100
PROGRAMS = {
    "offbeat": [sys.executable, "-m", "offbeat"],
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PET_STANDALONE": "1",  # torchrun: any free port instead of always the same
}


def run_command(line: str, cwd: Path) -> str:
    """One command line; returns what it printed. Programs that are not known here are an error."""
    program, *arguments = shlex.split(line, comments=True)
    if program.startswith("scripts/"):
        script = ROOT / program
        assert os.access(script, os.X_OK), f"{program} cannot be executed"
        if program == "scripts/test":
            return ""  # that is what runs this
        program, arguments = program.removeprefix("scripts/"), arguments or ["train"]
    if program == "offbeat" and arguments[:1] in (["simulate"], ["plan"]):
        return run_here(arguments, cwd)
    assert program in PROGRAMS, f"{program!r} of {line!r} is none of {', '.join(PROGRAMS)}"
    process = subprocess.Popen(
        [*PROGRAMS[program], *arguments],
        cwd=cwd, env={**os.environ, **ENVIRONMENT}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        end(process)
    assert process.returncode == 0, f"{line!r} ended with status {process.returncode}:\n{output}"
    return output


def run_here(arguments: list[str], cwd: Path) -> str:
    """A command that starts no process of its own: in this one, which has torch imported already."""
    printed = io.StringIO()
    with chdir(cwd), redirect_stdout(printed), redirect_stderr(printed):
        cli.main(arguments, standalone_mode=False, prog_name="offbeat")
    return printed.getvalue()


def end(process: subprocess.Popen[str]) -> None:
    """A launcher that is asked to end takes its workers along; one that is killed cannot."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
