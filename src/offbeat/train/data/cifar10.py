"""cifar10: 60,000 colour images of 32x32 pixels, in the official "binary version" files.

A file is 10,000 records of a label byte and 3 x 32 x 32 pixel bytes (www.cs.toronto.edu/~kriz/cifar.html).
"""

from pathlib import Path

import torch

from ...errors import BadInput
from ..task import Samples
from .files import DEFAULT_FOLDER, check_classes, check_size, read
from .parts import Parts

CLASSES = 10
SHAPE = (3, 32, 32)
RECORD_NBYTES = 1 + 3 * 32 * 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)
REMEDY = "unpack cifar-10-binary.tar.gz from www.cs.toronto.edu/~kriz into a folder and name it with --data DIR"


def cifar10(data: Path | None = None, *, records_per_file: int = 10_000) -> Parts:
    """From DIR or DIR/cifar-10-batches-bin."""
    top = data or DEFAULT_FOLDER
    folders = [top, top / "cifar-10-batches-bin"]
    folder = next((folder for folder in folders if (folder / TRAIN_FILES[0]).is_file()), None)
    if folder is None:
        raise BadInput(f"there is no {TRAIN_FILES[0]} in {folders[0]} or {folders[1]}: {REMEDY}")
    return Parts(
        train=_samples([folder / name for name in TRAIN_FILES], records_per_file),
        test=_samples([folder / name for name in TEST_FILES], records_per_file),
        classes=CLASSES,
    )


def _samples(paths: list[Path], records: int) -> Samples:
    content = bytearray()
    for path in paths:
        content += _records(path, records)
    table = torch.frombuffer(content, dtype=torch.uint8).view(-1, RECORD_NBYTES)
    images = table[:, 1:].reshape(-1, *SHAPE)
    return Samples(inputs=images, targets=table[:, 0].long(), mean=MEAN, std=STD)


def _records(path: Path, records: int) -> bytes:
    content = read(path, REMEDY)
    check_size(path, len(content), records * RECORD_NBYTES, REMEDY)
    check_classes(path, max(content[::RECORD_NBYTES]), CLASSES, REMEDY)
    return content
