"""A ring of slots in shared memory, which one process fills and another on the same host empties, in order.

The memory has no name and is gone with the last process that holds it. The one who fills it makes it, and hands
its descriptor to the other over their Unix socket. It is sealed against a change of size, so that nobody can cut it
off under a reader; and no position ever travels: each side counts slots by itself.
"""

import array
import fcntl
import mmap
import os
import socket
import sys

import numpy as np

SLOT_NBYTES = 1 << 20  # small against the L3 cache, and few doorbells per megabyte
SLOTS = 4  # two at work on either side
RING_NBYTES = SLOTS * SLOT_NBYTES
AVAILABLE = sys.platform == "linux" and hasattr(os, "memfd_create")


class _Ring:
    """The memory and the slot whose turn it is. Raises OSError or ValueError if it cannot be had."""

    def __init__(self, fd: int, access: int) -> None:
        self._map = mmap.mmap(fd, RING_NBYTES, access=access)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._turn = 0

    def _slot(self, nbytes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        assert 0 < nbytes <= SLOT_NBYTES
        start = self._turn * SLOT_NBYTES
        self._turn = (self._turn + 1) % SLOTS
        return self._bytes[start : start + nbytes]

    def close(self) -> None:
        self._bytes = np.empty(0, np.uint8)  # the map cannot be closed while it is seen
        self._map.close()


class Filler(_Ring):
    """Our end of the ring that we fill. `descriptor` is open until the peer has been given it."""

    def __init__(self) -> None:
        self.free = SLOTS
        self.descriptor = os.memfd_create("offbeat", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.descriptor, 0, RING_NBYTES)  # fails here, not at the first touch
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            super().__init__(self.descriptor, mmap.ACCESS_WRITE)
        except BaseException:
            self.close_descriptor()
            raise

    def hand_over(self, sock: socket.socket, words: bytes) -> None:
        """Send the descriptor along with these few bytes. Raises OSError."""
        rights = array.array("i", [self.descriptor])
        if sock.sendmsg([words], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]) < len(words):
            raise ConnectionError("a frame was cut in two")  # no such thing on a Unix socket
        self.close_descriptor()

    def put(self, piece: memoryview) -> None:
        """Copy into the next slot, of which one must be free."""
        assert self.free > 0
        np.copyto(self._slot(piece.nbytes), np.frombuffer(piece, np.uint8))
        self.free -= 1

    def close_descriptor(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def close(self) -> None:
        self.close_descriptor()
        super().close()


class Emptier(_Ring):
    """Our end of the ring that the peer fills. The descriptor may be closed once this is made."""

    def __init__(self, descriptor: int) -> None:
        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("the memory could shrink, and this process would die when it reads on")
        super().__init__(descriptor, mmap.ACCESS_READ)

    def take(self, into: memoryview) -> None:
        """Copy from the next slot, which the peer must have filled."""
        np.copyto(np.frombuffer(into, np.uint8), self._slot(into.nbytes))


def receive_with_descriptor(sock: socket.socket, into: memoryview) -> tuple[int, int | None]:
    """Bytes, how many, and the descriptor that came along, if one did; any beyond the first the kernel drops."""
    space = socket.CMSG_SPACE(array.array("i").itemsize)
    received, extras, _, _ = sock.recvmsg_into([into], space, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    for more in descriptors[1:]:  # CMSG_SPACE is rounded up, and leaves room for a second one
        os.close(more)
    return received, descriptors[0] if descriptors else None
