"""Kept: the runs of a sweep in `runs.jsonl`, each on disk as soon as it is over, so that none is run twice."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..report.metrics import MetricsFile, read_metrics
from .finished import Finished
from .setting import Setting

FILE = "runs.jsonl"


def read_kept(out: Path, settings: Iterable[Setting]) -> dict[str, Finished]:
    """Those of the settings' runs that lie in a folder, by identity."""
    path = out / FILE
    if not path.exists():
        return {}
    records: dict[Any, dict[str, Any]] = {
        record.get("identity"): record for record in read_metrics(path) if isinstance(record, dict)
    }
    return {
        setting.identity: Finished.from_dict(setting, records[setting.identity])
        for setting in settings
        if setting.identity in records
    }


def keep(file: MetricsFile, finished: Finished) -> None:
    file.write({"kind": "run", "identity": finished.setting.identity, **finished.as_dict()})
