"""Reading data files; whatever is wrong with one becomes a sentence that names it and the remedy."""

import gzip
import zlib
from pathlib import Path

from ...errors import BadInput

DEFAULT_FOLDER = Path("data")


def read(path: Path, remedy: str) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    try:
        packed = path.read_bytes()
        return gzip.decompress(packed) if path.suffix == ".gz" else packed
    except OSError as error:  # gzip.BadGzipFile is one
        raise BadInput(f"{path} cannot be read ({error.strerror or error}): {remedy}") from error
    except (EOFError, zlib.error) as error:
        raise BadInput(f"{path} is a truncated or damaged gzip file ({error}): {remedy}") from error


def check_size(path: Path, nbytes: int, expected: int, remedy: str) -> None:
    if nbytes != expected:
        raise BadInput(f"{path} holds {nbytes} bytes where {expected} were expected: {remedy}")


def check_classes(path: Path, highest: int, classes: int, remedy: str) -> None:
    if highest >= classes:
        raise BadInput(f"{path} holds the label {highest} where 0 to {classes - 1} were expected: {remedy}")
