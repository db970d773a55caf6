"""The metrics file: one JSON object per line, on disk as soon as it is written, so that Ctrl-C loses nothing.

Every line has a "kind": "status" for a `Status`, and whatever the writer chose for any other record.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import BadInput
from .status import Status, to_json


class MetricsFile:
    """Appends to `path`, made with its folder if need be; a line torn by an earlier crash is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _mend(self.path)
            self._file = self.path.open("a", encoding="utf-8", buffering=1)  # 1: flushed at every line
        except OSError as error:
            raise BadInput(f"{path} cannot be written ({error.strerror}): give a file in a folder of yours") from error

    def write(self, record: Status | Mapping[str, Any]) -> None:
        if isinstance(record, Status):
            record = {"kind": "status", **record.as_dict()}
        if not isinstance(record.get("kind"), str):
            raise BadInput(f'the record {dict(record)} has no "kind": say what it is, such as "epoch"')
        self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[Status | dict[str, Any]]:
    """Every record in order, each `Status` as such; a torn last line is left out."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}): give a file written by a run") from error
    records: list[Status | dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None and number == len(lines):
            break
        if record is None:
            raise BadInput(f"line {number} of {path} is not a JSON object: give a metrics file, or cut that line")
        if record.get("kind") == "status":
            records.append(Status.from_dict({key: value for key, value in record.items() if key != "kind"}))
        else:
            records.append(record)
    return records


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None where the line is torn."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _mend(path: Path) -> None:
    """End the file with a whole line: complete the newline of the last one, or cut it if it is torn."""
    if not path.is_file():
        return
    whole, newline, last = path.read_bytes().rpartition(b"\n")
    if not last:
        return
    with path.open("r+b") as file:
        if _parse(last) is None:
            file.truncate(len(whole + newline))
        else:
            file.seek(0, 2)
            file.write(b"\n")
