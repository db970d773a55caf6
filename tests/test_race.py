"""A race that is broken off keeps what was measured by then."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

COMPARE = """#!{python}
import json, pathlib, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
(out / "compare.json").write_text(json.dumps({{"runs": ["the first"]}}))
try:
    print("a lap is over", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.2)  # namespaces and links are taken down
    sys.exit(130)
"""
RACE = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import race
race.ROOT, sys.executable = Path({folder!r}), {compare!r}
sys.argv[1:] = ["straggler", "--results", {folder!r}]
race.main()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_race_that_is_broken_off_keeps_its_laps(tmp_path: Path, number: signal.Signals) -> None:
    compare = tmp_path / "compare"
    compare.write_text(COMPARE.format(python=sys.executable))
    compare.chmod(0o755)
    code = RACE.format(benchmarks=str(ROOT / "benchmarks"), folder=str(tmp_path), compare=str(compare))
    race = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert race.stdout is not None
    while "a lap is over" not in race.stdout.readline():
        pass
    if number == signal.SIGINT:
        os.killpg(race.pid, number)  # as a terminal does
    else:
        race.send_signal(number)
    _, told = race.communicate(timeout=30)
    assert race.returncode == 1
    assert "straggler ended with status" in told
    assert "Traceback" not in told
    assert json.loads((tmp_path / "straggler.json.part").read_text())["runs"] == ["the first"]
    assert not (tmp_path / "straggler.json").exists()
