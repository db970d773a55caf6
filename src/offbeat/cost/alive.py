"""Alive: the bytes that tensors hold, as they come and go."""

import weakref

from torch import Tensor


class Alive:
    """Bytes of the storages that are alive, and the most there ever were."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}
        self._lives: dict[int, int] = {}
        self._born = 0

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once, until it dies."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self._born += 1
        self._lives[key] = self._born
        self.nbytes += storage.nbytes()
        self.peak = max(self.peak, self.nbytes)
        weakref.finalize(storage, self._free, key).atexit = False

    def life_of(self, tensor: Tensor) -> tuple[int, int]:
        """Names a tensor's storage; another one that comes to lie in the same place has another name."""
        key = tensor.untyped_storage()._cdata
        return key, self._lives.get(key, 0)

    def _free(self, key: int) -> None:
        self.nbytes -= self._sizes.pop(key)
        del self._lives[key]
