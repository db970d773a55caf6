"""TorchComm: the Comm of the real world. Collectives and shifts on torch.distributed, pairs and swaps on `peers`."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .comm import Steps, ring_bytes
from .driver import Driver, Finished, RealProcess, RealWork, Sleep
from .errors import BadInput, LostPeer, OffbeatError, torch_story
from .layout import Layout, Ranks
from .peers import Peers, Swap
from .staging import Staging, Wait
from .trace import Trace
from .two_hops import TwoHops, is_short

T = TypeVar("T")


class TorchComm:
    """`groups` has a process group for each tuple of ranks that the strategy averages over; `two_hops` the
    lanes whose short messages need not go round a ring, where threads carry them."""

    def __init__(
        self,
        rank: int,
        layout: Layout,
        *,
        seed: int = 0,
        groups: Mapping[Ranks, dist.ProcessGroup] | None = None,
        two_hops: Mapping[Ranks, TwoHops] | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.rank, self.layout, self.seed = rank, layout, seed
        self.trace = Trace(rank)
        self._groups, self._two_hops, self._peers = groups or {}, two_hops or {}, peers
        self._origin = time.perf_counter()
        self._driver = Driver(self.now, self.trace)
        self._stagings: dict[
            Ranks, Staging
        ] = {}  # once a CUDA tensor travels over a group, all goes that way, in order
        self._latest: dict[Ranks, Collective] = {}  # under way over a group; control messages left out
        self._swap_staging: Staging | None = None  # its own, since a slow peer must not hold up an average
        self._shift_staging: Staging | None = None  # also without CUDA: torch cannot tell whether a message has come

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def restart_clock(self) -> None:
        """From here on times count from now; all ranks call it at the same moment."""
        self._origin = time.perf_counter()

    def run(self, steps: Steps) -> None:
        self._driver.run(steps)

    def alive(self) -> Ranks:
        if self._peers is None:
            return self.layout.ranks
        alive = {self.rank, *self._peers.alive()}
        return self.layout.ranks if len(alive) == self.layout.workers else tuple(sorted(alive))

    def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> "Finished | Collective":
        if len(ranks) == 1:
            return Finished(_into(x, out))
        if is_exact_share(len(ranks), x.dtype):  # then the sum is the mean, and the copy has cost no further pass
            out = torch.mul(x, 1 / len(ranks), out=torch.empty_like(x) if out is None else out)
            return self._start("average", out, ranks, ring_bytes(out.nbytes, len(ranks)))
        out = _into(x, out)
        return self._start("average", out, ranks, ring_bytes(out.nbytes, len(ranks)), divide_by=len(ranks))

    def add_up(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> "Finished | Collective":
        out = _into(x, out)
        if len(ranks) == 1:
            return Finished(out)
        return self._start("average", out, ranks, ring_bytes(out.nbytes, len(ranks)))

    def broadcast(self, x: Tensor, source: int, ranks: Ranks, out: Tensor | None = None) -> RealWork[Tensor]:
        out = _into(x, out)
        if len(ranks) == 1:
            return Finished(out)
        return self._start("broadcast", out, ranks, out.nbytes if self.rank == source else 0, source)

    def _start(
        self, name: str, buffer: Tensor, ranks: Ranks, nbytes: int, source: int = -1, divide_by: int = 1
    ) -> "Collective":
        group = self._group(ranks)
        collective = Collective(name, buffer, ranks, nbytes, divide_by, self)
        before = self._latest.get(ranks)
        if buffer.is_cuda and ranks not in self._stagings:
            self._stagings[ranks] = Staging()
        staging = self._stagings.get(ranks)
        hops = self._two_hops.get(ranks) if name == "average" and staging is not None and is_short(buffer) else None

        def begin(tensor: Tensor) -> tuple[dist.Work, Wait]:
            collective.found_idle = buffer.ndim > 0 and (before is None or before.off_the_wire)
            if hops is not None:
                work, wait = hops.begin(tensor)
            elif name == "average":
                work = dist.all_reduce(tensor, group=group, async_op=True)
                wait = work.wait
            else:
                work = dist.broadcast(tensor, source, group=group, async_op=True)
                wait = work.wait
            collective.on_the_wire(work)
            return work, wait

        collective.under_way(
            begin(buffer)[0] if staging is None else staging.start(buffer, buffer, lambda tensor, _: begin(tensor)[1])
        )
        if buffer.ndim > 0:
            self._latest[ranks] = collective
        return collective

    def over(self, collective: "Collective") -> None:
        """Its buffer is its caller's alone again."""
        if self._latest.get(collective.ranks) is collective:
            del self._latest[collective.ranks]

    def pair(self, candidates: Ranks, after: float = 0.0) -> RealWork[int]:
        return self._endpoint.pair(candidates, after)

    def swap(self, x: Tensor, peer: int, out: Tensor | None = None) -> RealWork[Tensor]:
        if not x.is_cuda:
            swap = self._endpoint.swap(x, peer, out)
            return Traced("swap", swap, x.nbytes, (peer,), self)
        if self._swap_staging is None:
            self._swap_staging = Staging()
        out = torch.empty_like(x) if out is None else out
        staged = self._swap_staging.start(x, out, lambda x, out: partial(_finish, self._endpoint.swap(x, peer, out)))
        return Traced("swap", Staged(staged, out), x.nbytes, (peer,), self)

    def shift(self, x: Tensor, to: int, source: int, out: Tensor | None = None) -> RealWork[Tensor]:
        group = self._group(self.layout.ranks)
        for peer in (to, source):
            if peer == self.rank or not 0 <= peer < self.layout.workers:
                others = [rank for rank in self.layout.ranks if rank != self.rank]
                raise BadInput(f"rank {peer} is no peer of rank {self.rank}: choose among {others}")
        if self._shift_staging is None:
            self._shift_staging = Staging()
        if out is None:
            out = torch.empty_like(x)
        elif out is x:  # what comes must not overwrite what goes
            x = x.clone()
        staged = self._shift_staging.start(x, out, partial(_shift, to=to, source=source, group=group))
        return Traced("shift", Staged(staged, out), x.nbytes, (to, source), self)

    def sleep(self, seconds: float) -> RealWork[None]:
        return Sleep(seconds, self.now)

    def mark(self, name: str) -> None:
        self.trace.add("mark", name, self.now(), 0.0)

    def spawn(self, steps: Steps) -> RealProcess:
        return self._driver.spawn(steps)

    def close(self) -> None:
        self._latest.clear()
        if self._peers is not None:
            self._peers.close()
        for staging in (*self._stagings.values(), self._swap_staging, self._shift_staging):
            if staging is not None:
                staging.close()

    def _group(self, ranks: Ranks) -> dist.ProcessGroup:
        if ranks not in self._groups:
            raise OffbeatError(f"no process group for ranks {ranks}: the strategy must name them in `groups`")
        return self._groups[ranks]

    @property
    def _endpoint(self) -> Peers:
        if self._peers is None:
            raise OffbeatError("this worker has no connections to peers: the strategy must set `meets_peers`")
        return self._peers


class Collective:
    """A collective on torch.distributed, issued asynchronously and polled."""

    def __init__(self, name: str, buffer: Tensor, ranks: Ranks, nbytes: int, divide_by: int, comm: TorchComm) -> None:
        self.name = name
        self.found_idle = False
        self._divide_by = divide_by
        self.ranks = ranks
        self._handle: dist.Work | Future[object] | None = None
        self._wire: dist.Work | None = None  # of the handle's work, the part between hosts
        self._buffer, self._nbytes, self._comm = buffer, nbytes, comm
        self._since = comm.now()
        self._error: OffbeatError | None = None
        self._seen = False

    def under_way(self, handle: dist.Work | Future[object]) -> None:
        self._handle = handle

    def on_the_wire(self, work: dist.Work) -> None:
        self._wire = work

    @property
    def off_the_wire(self) -> bool:
        """Asked by the thread that sends, while another one may be taking the result."""
        wire = self._wire
        return wire.is_completed() if wire is not None else self.done

    @property
    def done(self) -> bool:
        handle = self._handle
        if handle is None:
            return self._seen
        return handle.done() if isinstance(handle, Future) else handle.is_completed()

    def wait(self) -> None:
        try:
            if isinstance(self._handle, Future):
                self._handle.result()
            elif self._handle is not None:
                self._handle.wait()
        except RuntimeError as error:
            self._error = LostPeer(None, f"{self.name} over ranks {_short(self.ranks)} failed: {torch_story(error)}")

    def result(self) -> Tensor:
        if not self.done:
            raise OffbeatError(f"{self.name} is not done: wait() for it before you ask for its result")
        if not self._seen:
            self._seen = True
            self.wait()  # done, so at once; tells what went wrong, and orders CUDA streams
            if self._divide_by > 1 and self._error is None:
                self._buffer /= self._divide_by
            if self._buffer.ndim > 0:  # a number on its own is a control message
                seconds = self._comm.now() - self._since
                self._comm.trace.add("communicate", self.name, self._since, seconds, self._nbytes, self.ranks)
            self._handle = self._wire = None  # lets go of torch's sockets, also where an error keeps this object alive
            self._comm.over(self)
        if self._error is not None:
            raise self._error
        return self._buffer


class Staged:
    """An exchange that threads carry on, such as a swap of CUDA tensors by way of the host."""

    def __init__(self, future: Future[object], out: Tensor) -> None:
        self._future, self._out = future, out

    @property
    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        self._future.exception()

    def result(self) -> Tensor:
        error = self._future.exception()
        if error is not None:
            raise error.with_traceback(None)  # whose frames would hold on to torch's sockets
        return self._out


class Traced:
    """An exchange with a few peers, written to the trace when it is over."""

    def __init__(self, name: str, work: RealWork[Tensor], nbytes: int, peers: Ranks, comm: TorchComm) -> None:
        self.name = name
        self._work, self._nbytes, self._peers, self._comm = work, nbytes, peers, comm
        self._since = comm.now()
        self._seen = False

    @property
    def done(self) -> bool:
        return self._work.done

    def wait(self) -> None:
        self._work.wait()

    def result(self) -> Tensor:
        if not self.done:
            raise OffbeatError(f"{self.name} is not done: wait() for it before you ask for its result")
        received = self._work.result()
        if not self._seen:
            self._seen = True
            seconds = self._comm.now() - self._since
            self._comm.trace.add("communicate", self.name, self._since, seconds, self._nbytes, self._peers)
        return received


def _finish(swap: Swap) -> None:
    swap.wait()
    swap.result()


def _shift(x: Tensor, out: Tensor, *, to: int, source: int, group: dist.ProcessGroup) -> Wait:
    """Begin to send x and to receive into out; what is returned waits for both."""
    begun = [(to, _or_lost(to, lambda: dist.isend(x, to, group=group)))]
    begun.append((source, _or_lost(source, lambda: dist.irecv(out, source, group=group))))

    def wait() -> None:
        for peer, work in begun:
            if work is not None:
                _or_lost(peer, work.wait)

    return wait


def _or_lost(peer: int, call: Callable[[], T]) -> T:
    try:
        return call()
    except RuntimeError as error:
        story = torch_story(error)
    raise LostPeer(peer, f"shift failed: {story}")  # from here, since torch's error would hold on to its sockets


def is_exact_share(ranks: int, dtype: torch.dtype) -> bool:
    """Whether x / ranks is exact, so that the mean may be had by dividing first; else rounding would bias it."""
    return ranks & (ranks - 1) == 0 and dtype != torch.float16  # whose range is so short that it would lose digits


def _into(x: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        return x.clone()
    return out if out is x else out.copy_(x)


def _short(ranks: Ranks) -> str:
    return str(list(ranks)) if len(ranks) <= 8 else f"{ranks[0]}..{ranks[-1]}"
