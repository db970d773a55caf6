"""All tests: one torch thread (two cores are shared), and nothing left behind."""

import gc
import multiprocessing
import signal
import threading
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """OpenMP threads that outnumber the free cores wait for each other, which slows small models many times."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_finish() -> None:
    """What is loaded by now stays: at the end of each `attach` all of it would be looked through."""
    gc.collect()
    gc.freeze()


for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in the background of a script: tests send these to processes
        signal.signal(number, usual)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No child process and no thread of ours outlives its test."""
    yield
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
    threads = [t.name for t in threading.enumerate() if t.name.startswith("offbeat") and t.is_alive()]
    assert not children, f"left running: {children}"
    assert not threads, f"left running: {threads}"
