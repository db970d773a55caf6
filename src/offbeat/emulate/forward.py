"""Carries frames between two TAPs: those of the node (stdin) after a delay, those of the bridge (stdout) at once.

Run as a program of its own, so it imports nothing of Offbeat: `python forward.py DELAY_SECONDS QUEUE_NBYTES`.
"""

import os
import select
import sys
import time
from collections import deque
from contextlib import suppress

NODE, BRIDGE = 0, 1
FRAME_NBYTES = 1 << 17  # more than the largest segment
FRAMES_PER_TURN = 32  # then the other direction, and what is due


def read(tap: int) -> bytes | None:
    try:
        return os.read(tap, FRAME_NBYTES)
    except BlockingIOError:
        return None


def write(tap: int, frame: bytes) -> None:
    with suppress(OSError):  # the interface is down or full: the frame is lost, as on any wire
        os.write(tap, frame)


def forward(delay: float, queue_nbytes: int) -> None:
    waiting: deque[tuple[float, bytes]] = deque()
    held = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([NODE, BRIDGE], [], [], timeout)
        if NODE in ready:
            due = time.monotonic() + delay
            for _ in range(FRAMES_PER_TURN):
                if (frame := read(NODE)) is None:
                    break
                if held + len(frame) <= queue_nbytes:  # else it is dropped, as by a full router
                    waiting.append((due, frame))
                    held += len(frame)
        if BRIDGE in ready:
            for _ in range(FRAMES_PER_TURN):
                if (frame := read(BRIDGE)) is None:
                    break
                write(NODE, frame)
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, frame = waiting.popleft()
            held -= len(frame)
            write(BRIDGE, frame)


if __name__ == "__main__":
    with suppress(OSError):  # may we not, then a busy machine adds to the delay
        os.nice(-10)
    forward(float(sys.argv[1]), int(sys.argv[2]))
