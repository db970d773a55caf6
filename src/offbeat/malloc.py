"""keep_freed_memory: have the C library keep what a step frees for the next step, instead of giving it back.

Tensors on the CPU come from malloc. What glibc returns to the system comes back as fresh pages, each of which is
filled with zeros at its first touch: that can take longer than the arithmetic. Without glibc this does nothing.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_NEVER = (1 << 31) - 1
_LARGEST = (1 << 30, 32 << 20)  # of blocks that are kept; older versions refuse more than the second


def keep_freed_memory() -> bool:
    """Whether it could be done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Setting either stops glibc from raising the other by itself: so the second only if the first was taken.
    return any(mallopt(_MMAP_THRESHOLD, most) for most in _LARGEST) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
