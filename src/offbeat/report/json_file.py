"""The file of `--json`: one record, to a file or, for "-", to standard output, alone there."""

import sys
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .status import to_json


def write_json(file: Path | str, record: Any) -> None:
    text = to_json(record, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(file, error) from error


def check_json(file: Path | str) -> None:
    """Before anything runs, so that nothing runs in vain."""
    if file != "-":
        try:
            try_to_write(Path(file))
        except OSError as error:
            raise cannot_write(file, error) from None


def try_to_write(path: Path) -> None:
    """Leaves a file that is there as it is, and none where there was none."""
    existed = path.exists()
    path.open("a").close()
    if not existed:
        path.unlink()


def cannot_write(file: Path | str, error: OSError) -> BadInput:
    return BadInput(f"--json {file} cannot be written ({error.strerror}): give a file in a folder of yours")
