"""Staging: CUDA tensors on a host-side wire, so that early ranks hold no GPU kernel while they wait for late ones.

device -> pinned host buffer (side stream) -> between hosts -> pinned host buffer -> device (side stream)

Two threads, one that sends and one that receives, keep the order of the calls; the training thread only ever
enqueues.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

Wait = Callable[[], object]  # returns when it is done, or raises what went wrong
Begin = Callable[[Tensor, Tensor], Wait]  # begin(x, out) on the host


class Staging:
    def __init__(self) -> None:
        self._sender = ThreadPoolExecutor(1, "offbeat staging out")
        self._receiver = ThreadPoolExecutor(1, "offbeat staging in")
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self._pinned: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def start(self, x: Tensor, out: Tensor, begin: Begin) -> Future[object]:
        """`begin` sends x and receives into out, maybe the same; the future is done when out holds the result."""
        if not x.is_cuda:  # nothing to stage, but it keeps its place in the order
            begun = self._sender.submit(begin, x, out)
            return self._receiver.submit(lambda: begun.result()())
        outward, inward = self._streams_of(x.device)
        host_x, host_out = self._host_buffer(x), self._host_buffer(out)
        outward.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(outward):
            host_x.copy_(x, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(outward)

        def send() -> Wait:
            copied.synchronize()
            return begin(host_x, host_out)

        sent = self._sender.submit(send)

        def receive() -> None:
            sent.result()()
            with torch.cuda.stream(inward):
                out.copy_(host_out, non_blocking=True)
                inward.synchronize()

        return self._receiver.submit(receive)

    def close(self) -> None:
        self._sender.shutdown(wait=False, cancel_futures=True)
        self._receiver.shutdown(wait=False, cancel_futures=True)

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
