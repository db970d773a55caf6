"""keep_freed_memory: have the C library keep what a step frees for the next step, instead of giving it back.

Tensors on the CPU come from malloc. What glibc returns to the system comes back as fresh pages, each of which is
filled with zeros at its first touch: that can take longer than the arithmetic. Without glibc this does nothing.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_ALWAYS = (1 << 31) - 1
_MOST = 1 << 30


def keep_freed_memory() -> bool:
    """Whether it could be done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _ALWAYS)) and bool(mallopt(_MMAP_THRESHOLD, _MOST))
