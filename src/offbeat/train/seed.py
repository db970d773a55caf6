"""The seed of what a worker draws by itself while it trains, such as dropout; the same in both worlds."""

import numpy as np


def worker_seed(seed: int, rank: int) -> int:
    """All workers build their model from `seed`, and draw from this one afterwards."""
    return int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0])
