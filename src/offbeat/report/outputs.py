"""The folder of `--out`: result.json, trace.json (for Perfetto) and summary.png, each whole or not there at all."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadInput
from ..layout import Ranks
from ..trace import Event, chrome
from .status import Result, Status, to_json


def write_outputs(
    directory: Path, result: Result, statuses: Sequence[Status], events: Iterable[Event], node_of: Ranks
) -> tuple[Path, ...]:
    """Writes the three files, the numbers first, and says where they are."""
    from .summary import draw_summary  # matplotlib takes its time, and `replacing` has other users

    directory = Path(directory)
    events = list(events)
    paths = tuple(directory / name for name in ("result.json", "trace.json", "summary.png"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing(paths[0]) as path:
            path.write_text(to_json(result.as_dict(), indent=2) + "\n", encoding="utf-8")
        with replacing(paths[1]) as path:
            path.write_text(json.dumps(chrome(events, node_of), allow_nan=False), encoding="utf-8")
        with replacing(paths[2]) as path:
            draw_summary(path, result, statuses, events, node_of)
    except OSError as error:
        raise BadInput(
            f"the outputs cannot be written to {directory} ({error.strerror}): give --out a folder of yours"
        ) from error
    return paths


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its place once the block is through."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
