"""text: a character corpus, by default the sources of the Python standard library that runs this.

Samples are windows of 64 characters, one after the other; targets are the same shifted by one.
"""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput
from ..task import Samples
from .files import read
from .parts import Parts

WINDOW = 64  # characters
CORPUS_CHARACTERS = 2_000_000  # the rest is left unread
VOCABULARY = 96  # the most frequent characters, and number 0 for all others
TEST_SHARE = 0.1  # the end of the corpus
SUFFIXES = {".md", ".py", ".rst", ".txt"}
REMEDY = "name a text file, or a folder of .txt, .md, .rst or .py files, with --data PATH"


def text(data: Path | None = None, *, characters: int = CORPUS_CHARACTERS) -> Parts:
    """From a file, or from a folder's text files in the order of their paths."""
    corpus = _corpus(data, characters)
    tokens, vocabulary = encode(corpus)
    train_length = len(tokens) - int(len(tokens) * TEST_SHARE)
    if len(tokens) - train_length <= WINDOW:
        raise BadInput(
            f"{data or 'the corpus'} holds {len(tokens)} characters, too few for a test part of {TEST_SHARE:.0%} "
            f"with a window of {WINDOW} and the next: {REMEDY}"
        )
    return Parts(train=_windows(tokens[:train_length]), test=_windows(tokens[train_length:]), classes=vocabulary)


def encode(corpus: str) -> tuple[Tensor, int]:
    """Character numbers, int64 [length], and how many there are: 1 is the most frequent, 0 all the rare."""
    codes = np.frombuffer(corpus.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    by_frequency = np.argsort(-counts, kind="stable")[: VOCABULARY - 1]  # ties: the lower code first
    numbers = np.zeros(len(counts), dtype=np.int64)
    numbers[by_frequency] = np.arange(1, len(by_frequency) + 1)
    return torch.from_numpy(numbers[inverse]), len(by_frequency) + 1


def _windows(tokens: Tensor) -> Samples:
    count = (len(tokens) - 1) // WINDOW
    used = count * WINDOW
    return Samples(inputs=tokens[:used].view(count, WINDOW), targets=tokens[1 : used + 1].view(count, WINDOW))


def _corpus(data: Path | None, characters: int) -> str:
    parts, length = [], 0
    for path in _files(data):
        part = read(path, REMEDY).decode("utf-8", "replace")
        parts.append(part)
        length += len(part)
        if length >= characters:
            break
    return "".join(parts)[:characters]


def _files(data: Path | None) -> list[Path]:
    folder = Path(sysconfig.get_path("stdlib")) if data is None else data
    if data is None:
        files = sorted(folder.glob("*.py"))  # not its folders, which hold site-packages and tests
    elif data.is_dir():
        files = sorted(path for path in data.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    else:
        return [data]
    if not files:
        raise BadInput(f"there are no text files in {folder}: {REMEDY}")
    return files
