"""Staging: CUDA tensors on a host-side wire, so that early ranks hold no GPU kernel while they wait for late ones.

device -> pinned host buffer (side stream) -> between hosts -> pinned host buffer -> device (side stream)

Two threads, one that sends and one that receives, keep the order of the calls; the training thread only ever
enqueues. They sleep while they wait for the GPU.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from .events import mark

Wait = Callable[[], object]  # returns when it is done, or raises what went wrong
Begin = Callable[[Tensor, Tensor], Wait]  # begin(x, out) on the host


T = TypeVar("T")


class Line:
    """One thing after another, in a thread that keeps no process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future

    def close(self) -> None:
        """The thread ends after what is in line; nobody waits for it."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # or it would hold torch's connections open while the line is empty


class Staging:
    def __init__(self) -> None:
        self._sender, self._receiver = Line("offbeat staging out"), Line("offbeat staging in")
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self._pinned: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def start(self, x: Tensor, out: Tensor, begin: Begin) -> Future[object]:
        """`begin` sends x and receives into out, maybe the same; the future is done when out holds the result."""
        if not x.is_cuda:  # nothing to stage, but it keeps its place in the order
            begun = self._sender.submit(lambda: begin(x, out))
            return self._receiver.submit(lambda: begun.result()())
        outward, inward = self._streams_of(x.device)
        host_x, host_out = self._host_buffer(x), self._host_buffer(out)
        outward.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(outward):
            host_x.copy_(x, non_blocking=True)
            copied = mark(outward)

        def send() -> Wait:
            copied.synchronize()
            return begin(host_x, host_out)

        sent = self._sender.submit(send)

        def receive() -> None:
            sent.result()()
            with torch.cuda.stream(inward):
                out.copy_(host_out, non_blocking=True)
                mark(inward).synchronize()

        return self._receiver.submit(receive)

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()

    def _streams_of(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        if device not in self._streams:
            self._streams[device] = (_stream(device), _stream(device))
        return self._streams[device]

    def _host_buffer(self, buffer: Tensor) -> Tensor:
        """One per device buffer, kept: pinning is slow, and a buffer is in one collective at a time."""
        key = (buffer.data_ptr(), buffer.numel(), buffer.dtype)
        if key not in self._pinned:
            self._pinned[key] = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        return self._pinned[key]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
