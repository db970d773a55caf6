"""Folders of runs, which a killed run leaves behind: they carry its name in theirs."""

import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .runs import NAME, PROC, new_name

FOLDER = re.compile(rf"offbeat-[a-z]+-(?P<space>\d+)-(?P<run>{NAME.pattern})-.*")
RAM = Path("/dev/shm")
UNKNOWN = "0"  # a space


def folder_of_run(kind: str, *, in_ram: bool = False) -> "tempfile.TemporaryDirectory[str]":
    """A temporary folder; that a process which is being ended still writes there does no harm."""
    return tempfile.TemporaryDirectory(
        prefix=f"offbeat-{kind}-{_space()}-{new_name()}-", dir=RAM if in_ram and RAM.is_dir() else None,
        ignore_cleanup_errors=True,
    )  # fmt: skip


def folders() -> Iterator[tuple[Path, str]]:
    """With the names of their runs; not those of other containers and machines, who may share
    memory or a disk and number processes anew. None where that cannot be told."""
    space = _space()
    if space == UNKNOWN:
        return
    for place in {RAM, Path(tempfile.gettempdir())}:
        for path in place.glob("offbeat-*"):
            found = FOLDER.fullmatch(path.name)
            if found is not None and found["space"] == space:
                yield path, found["run"]


def _space() -> str:
    """In which process ids mean what they say: this boot of this machine, and this namespace of processes."""
    with suppress(OSError):
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text()
        return str(zlib.crc32(f"{boot} {os.stat('/proc/self/ns/pid').st_ino}".encode()))
    return UNKNOWN
