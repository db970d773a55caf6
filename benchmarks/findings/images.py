"""Fashion-MNIST, read once per process."""

from functools import cache

from offbeat.train.data.idx import fashion_mnist
from offbeat.train.data.parts import Parts


@cache
def parts() -> Parts:
    return fashion_mnist()
