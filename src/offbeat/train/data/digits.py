"""digits: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..task import Samples
from .parts import Parts

TRAIN_SAMPLES = 1437
CLASSES = 10
FILE = "datasets/data/digits.csv.gz"  # of scikit-learn


def digits() -> Parts:
    """1,437 train and 360 test images, always the same ones, normalised by the train part."""
    pixels, labels = pixels_and_labels()
    order = np.random.default_rng(0).permutation(len(pixels))
    images = torch.from_numpy(pixels[order] / 16).float().view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels[order]).long()
    std, mean = torch.std_mean(images[:TRAIN_SAMPLES])
    images = (images - mean) / std
    return Parts(
        train=Samples(inputs=images[:TRAIN_SAMPLES], targets=targets[:TRAIN_SAMPLES]),
        test=Samples(inputs=images[TRAIN_SAMPLES:], targets=targets[TRAIN_SAMPLES:]),
        classes=CLASSES,
    )


def pixels_and_labels() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pixels are from 0 to 16. Read from scikit-learn's file: to import it takes a second, in every worker."""
    found = importlib.util.find_spec("sklearn")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        if (file := Path(folder) / FILE).is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # of a version that keeps it elsewhere

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels
