"""SIGTERM and SIGHUP leave like Ctrl-C does: by an exception, so that everything on the way out is given back."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def leaving_in_order() -> Iterator[None]:
    """Only where nobody else handles or ignores them; elsewhere than in the main thread Python does not allow it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    untouched = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in untouched:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in untouched:
            signal.signal(number, signal.SIG_DFL)


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
