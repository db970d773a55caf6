"""Odometer: the steps that every worker has made so far, in a small file that all of them map into memory.

For a worker it is one number written to memory at each step; the lap reads them all when it looks at the wire.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def new_odometer(folder: Path, workers: int) -> NDArray[np.int64]:
    """All at 0."""
    return np.memmap(folder / "steps", dtype=np.int64, mode="w+", shape=(workers,))


def odometer(folder: Path) -> NDArray[np.int64]:
    """That of a lap whose folder this is."""
    return np.memmap(folder / "steps", dtype=np.int64, mode="r+")
