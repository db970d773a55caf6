"""mnist and fashion-mnist: 28x28 images in idx files, plain or .gz (format: yann.lecun.com/exdb/mnist).

An idx file is a big-endian header (magic 0x0800 + number of dimensions, then each dimension) and bytes.
"""

import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from ...errors import BadInput
from ..task import Samples
from .files import DEFAULT_FOLDER, check_classes, check_size, read
from .parts import Parts

CLASSES = 10
UNSIGNED_BYTES = 0x0800
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


def mnist(data: Path | None = None) -> Parts:
    """From DIR, DIR/mnist or (torchvision's) DIR/MNIST/raw."""
    folder = data or DEFAULT_FOLDER
    remedy = "put the four idx files of MNIST (plain or .gz) into a folder and name it with --data DIR"
    return _parts([folder, folder / "mnist", folder / "MNIST" / "raw"], (0.1307,), (0.3081,), remedy)


def fashion_mnist(data: Path | None = None) -> Parts:
    """From DIR, DIR/fashion-mnist or DIR/FashionMNIST/raw; without DIR also from Debian's package."""
    folder = data or DEFAULT_FOLDER
    folders = [folder, folder / "fashion-mnist", folder / "FashionMNIST" / "raw"]
    if data is None:
        folders.append(DEBIAN_FASHION_MNIST)
    remedy = "apt-get install dataset-fashion-mnist and leave out --data, or name your folder with --data DIR"
    return _parts(folders, (0.2860,), (0.3530,), remedy)


def read_idx(path: Path, dimensions: int, remedy: str) -> Tensor:
    """The unsigned bytes of one idx file, uint8 of `dimensions` dimensions."""
    content = read(path, remedy)
    header_nbytes = 4 * (1 + dimensions)
    if len(content) < header_nbytes:
        raise BadInput(f"{path} holds {len(content)} bytes, fewer than the {header_nbytes} of its header: {remedy}")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:header_nbytes])
    if magic != UNSIGNED_BYTES + dimensions:
        raise BadInput(
            f"{path} begins with {magic:#010x} where an idx file of {dimensions} dimensions begins with "
            f"{UNSIGNED_BYTES + dimensions:#010x}: {remedy}"
        )
    check_size(path, len(content), header_nbytes + math.prod(shape), remedy)
    if 0 in shape:
        raise BadInput(f"{path} holds no data, its shape is {tuple(shape)}: {remedy}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header_nbytes).view(shape)


def _parts(folders: list[Path], mean: tuple[float], std: tuple[float], remedy: str) -> Parts:
    return Parts(
        train=_samples("train", folders, mean, std, remedy),
        test=_samples("t10k", folders, mean, std, remedy),
        classes=CLASSES,
    )


def _samples(part: str, folders: list[Path], mean: tuple[float], std: tuple[float], remedy: str) -> Samples:
    images_path = _find(f"{part}-images-idx3-ubyte", folders, remedy)
    labels_path = _find(f"{part}-labels-idx1-ubyte", [images_path.parent], remedy)
    images, labels = read_idx(images_path, 3, remedy), read_idx(labels_path, 1, remedy)
    if len(images) != len(labels):
        raise BadInput(f"{labels_path} holds {len(labels)} labels for {len(images)} images: {remedy}")
    check_classes(labels_path, int(labels.max()), CLASSES, remedy)
    return Samples(inputs=images.unsqueeze(1), targets=labels.long(), mean=mean, std=std)


def _find(name: str, folders: list[Path], remedy: str) -> Path:
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    looked = ", ".join(str(folder) for folder in folders)
    raise BadInput(f"there is no {name} or {name}.gz in {looked}: {remedy}")
