"""The pairwise transport: every endpoint of a test lives in this process, unless it has to be killed."""

import os
import random
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

import pytest
import torch

from offbeat.errors import BadInput, LostPeer, OffbeatError, Stopped
from offbeat.layout import Ranks
from offbeat.peers import Closed, Peers, Pending, listen
from offbeat.peers.pairing import Matching
from offbeat.peers.wire import GREETING_NBYTES, Kind, Reply, greet

pytestmark = pytest.mark.timeout(30)

HOST = "127.0.0.1"
KEY = b"a key that all ranks of this run know"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    threads, fds = set(threading.enumerate()), descriptors()
    yield
    assert set(threading.enumerate()) == threads
    assert descriptors() == fds


@contextmanager
def world(size: int, ranks: Ranks | None = None, **options: float) -> Iterator[list[Peers]]:
    with ExitStack() as stack:
        listeners = [listen(HOST) for _ in range(size)]
        addresses = {rank: (HOST, listener.getsockname()[1]) for rank, listener in enumerate(listeners)}
        yield [
            stack.enter_context(Peers(rank, addresses, listener, key=KEY, **options))
            for rank, listener in enumerate(listeners)
        ]


def finish[T](*works: Pending[T], seconds: float = 10.0) -> list[T]:
    for work in works:
        assert work.wait(seconds), f"{work} hangs"
    return [work.result() for work in works]
