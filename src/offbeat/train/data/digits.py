"""digits: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn."""

import numpy as np
import torch

from ..task import Samples
from .parts import Parts

TRAIN_SAMPLES = 1437
CLASSES = 10


def digits() -> Parts:
    """1,437 train and 360 test images, always the same ones, normalised by the train part."""
    from sklearn.datasets import load_digits  # here, since importing scikit-learn takes a second

    pixels, labels = load_digits(return_X_y=True)  # 0..16
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
