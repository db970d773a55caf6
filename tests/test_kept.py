"""Results that are kept say where, when and of what they are, and whether they held."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from commands import ROOT


@pytest.mark.parametrize("given", [["--json", "FILE"], ["--json=FILE"]])
def test_a_record_says_all_but_where_it_is(tmp_path: Path, given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    kept = importlib.import_module("kept")
    path = tmp_path / "leaks.json"
    words = [word.replace("FILE", str(path)) for word in given]
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/leaks.py", "--cycles", "3", *words])
    kept.keep(path, start=kept.Start(), held=False, runs=[{"cycle": 0, "left": ["process 5"]}], cycles=1)
    record = json.loads(path.read_text())
    assert {"date", "command", "machine", "versions", "commit", "held", "cycles", "runs"} == record.keys()
    assert record["command"] == ["python", "benchmarks/leaks.py", "--cycles", "3"]
    assert record["held"] is False
    assert record["versions"]["torch"].startswith("2.")
    assert str(tmp_path) not in path.read_text()
