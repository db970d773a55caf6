"""Sizes: the numbers of random models and layers, log-uniform, as round as people choose them."""

import math
from dataclasses import dataclass, replace
from functools import partial
from random import Random

BLOCKS = (64, 64, 64, 32, 16, 8, 1)  # of channels and features
ROUND = (1, 3)  # times a power of 2


@dataclass(frozen=True)
class Sizes:
    """Draws the numbers of a model."""

    random: Random
    most_batch: int
    most_side: int  # of an image
    most_channels: int
    most_width: int  # of what is no image
    most_length: int  # of a row
    round_widths: float = 0.0  # share of widths that are a power of 2, or 3 times one

    def small(self) -> "Sizes":
        """Of networks whose steps take a few milliseconds."""
        return replace(self, most_batch=16, most_side=32, most_channels=64)

    def size(self, low: int, high: int) -> int:
        """A whole number between two, log-uniform; one in two is a multiple of 8 where it can be, as people choose."""
        drawn = round(math.exp(self.random.uniform(math.log(low), math.log(high))))
        return max(8, drawn // 8 * 8) if drawn >= 8 and self.random.random() < 0.5 else drawn

    def side(self, low: int, high: int) -> int:
        """Of an image: half of them a power of 2, or 7 times one, as where images are halved again and again."""
        drawn = self.size(low, high)
        return drawn if self.random.random() < 0.5 else _roundest(drawn, (1, 7), low, high)

    def batch(self) -> int:
        """At least 2: of one sample a BatchNorm has no variance. One in two is a power of 2."""
        drawn = math.exp(self.random.uniform(math.log(2), math.log(self.most_batch)))
        return 2 ** int(math.log2(drawn)) if self.random.random() < 0.5 else round(drawn)

    def block(self) -> int:
        """What the channels or features of a layer are multiples of: 64 in nearly half of the cases. People choose
        round numbers, and libraries have kernels of their own for them."""
        return self.random.choice(BLOCKS)

    def width(self, low: int, high: int, block: int | None = None) -> int:
        """Of channels or features: a multiple of a block, if there is one between the two."""
        block = self.block() if block is None else block
        while block > high:
            block //= 2
        drawn = round(math.exp(self.random.uniform(math.log(max(low, block)), math.log(high))))
        if self.round_widths and self.random.random() < self.round_widths:
            return _roundest(drawn, ROUND, low, high)
        return drawn // block * block


def _roundest(drawn: int, odds: tuple[int, ...], low: int, high: int) -> int:
    """The nearest that is one of these times a power of 2."""
    round_ones = [odd << power for odd in odds for power in range(high.bit_length()) if low <= odd << power <= high]
    return min(round_ones, key=lambda each: abs(math.log(each / drawn)))


ON_A_CPU = partial(
    Sizes, most_batch=64, most_side=64, most_channels=512, most_width=4096, most_length=512, round_widths=0.5
)
ON_A_GPU = partial(Sizes, most_batch=512, most_side=160, most_channels=1024, most_width=8192, most_length=1024)
