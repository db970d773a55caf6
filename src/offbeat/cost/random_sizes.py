"""Sizes: the numbers of random models and layers, log-uniform, as round as people choose them."""

import math
from dataclasses import dataclass
from functools import partial
from random import Random

BLOCKS = (64, 64, 64, 32, 16, 8, 1)  # of channels and features


@dataclass(frozen=True)
class Sizes:
    """Draws the numbers of a model."""

    random: Random
    most_batch: int
    most_side: int  # of an image
    most_channels: int
    most_width: int  # of what is no image
    most_length: int  # of a row
    batches: int = 1  # are drawn, and the smallest is taken

    def size(self, low: int, high: int) -> int:
        """A whole number between two, log-uniform; one in two is a multiple of 8 where it can be, as people choose."""
        drawn = round(math.exp(self.random.uniform(math.log(low), math.log(high))))
        return max(8, drawn // 8 * 8) if drawn >= 8 and self.random.random() < 0.5 else drawn

    def side(self, low: int, high: int) -> int:
        """Of an image: half of them a power of 2, or 7 times one, as where images are halved again and again."""
        drawn = self.size(low, high)
        if self.random.random() < 0.5:
            return drawn
        halved = [odd << power for odd in (1, 7) for power in range(high.bit_length()) if low <= odd << power <= high]
        return min(halved, key=lambda each: abs(math.log(each / drawn)))

    def batch(self) -> int:
        """At least 2: of one sample a BatchNorm has no variance. One in two is a power of 2."""
        drawn = math.exp(min(self.random.uniform(math.log(2), math.log(self.most_batch)) for _ in range(self.batches)))
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
        return drawn // block * block


ON_A_CPU = partial(Sizes, most_batch=64, most_side=64, most_channels=512, most_width=4096, most_length=512, batches=2)
ON_A_GPU = partial(Sizes, most_batch=512, most_side=160, most_channels=1024, most_width=8192, most_length=1024)
