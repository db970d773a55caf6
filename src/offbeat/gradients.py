"""Gradients averaged in backward, by torch's DistributedDataParallel, with the user's module left as it is.

every backward:  who trains, who still wants averages (a few numbers) ; sum of each bucket / number that train

DistributedDataParallel holds the parameters alone; hooks on the user's own module tell it of forward, as torch's
composable `replicate` does, but can be taken off again. A rank that ran out of data follows the others: it adds
zeros to every bucket and steps along with the average, so all ranks of the group stay equal and nobody hangs.
Averaging ends in the same backward on all ranks, the first that none of them wants averaged, however many steps
each has made or skipped by then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .comm import ring_bytes
from .errors import LostPeer, OffbeatError, torch_story
from .layout import Ranks
from .replica import Replica, trainable
from .torch_comm import TorchComm


@dataclass
class Round:
    """One backward: when its first and last buckets were ready here, and when the last average was there."""

    first: float
    last: float
    done: float
    nbytes: int


class Gradients:
    """`wanted` tells whether the step under way has its gradients averaged; `stopped`: nobody wants that any more."""

    def __init__(
        self, model: nn.Module, ranks: Ranks, group: dist.ProcessGroup, comm: TorchComm, wanted: Callable[[], bool]
    ) -> None:
        self.stopped = False
        self.failure: LostPeer | None = None
        self._model, self._ranks, self._group, self._comm, self._wanted = model, ranks, group, comm, wanted
        self._parameters = dict(trainable(model))
        self._message = torch.zeros(())  # of the round under way: for each rank whether it trains; how many want it
        self._averaged: Tensor | None = None  # the message of the last round that was averaged
        self._counted: dist.Work | None = None
        self._rounds: list[Round] = []  # since the last step
        self._complete = 0  # how many of them had all their buckets
        self._ddp: DistributedDataParallel | None = DistributedDataParallel(
            nn.ParameterList(self._parameters.values()), process_group=group, init_sync=False
        )
        self._ddp.register_comm_hook(None, self._reduce)
        ends = {id(p): p for p in (*self._parameters.values(),)[:: max(1, len(self._parameters) - 1)]}
        self._backwards = dict.fromkeys(ends, 0)  # since the last step, as the first and the last parameter saw it
        self._handles = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
            *(p.register_post_accumulate_grad_hook(self._count_backward) for p in ends.values()),  # type: ignore[no-untyped-call]
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Gradients":
        return self  # a copy of the model, for a moving average say, carries our hooks along: they pass it over

    def end_step(self) -> float:
        """Check and trace the step that ends now; seconds in which this rank had its gradient but not the others'."""
        backwards = max(self._backwards.values())
        self._backwards = dict.fromkeys(self._backwards, 0)
        if self._complete < backwards and not self.stopped:
            raise OffbeatError(self._what_is_missing(backwards))
        waited = 0.0
        for round in self._rounds:
            nbytes = ring_bytes(round.nbytes, len(self._ranks))
            self._comm.trace.add("communicate", "gradients", round.first, round.done - round.first, nbytes, self._ranks)
            self._comm.trace.add("wait", "gradients", round.last, round.done - round.last)
            waited += round.done - round.last
        self._rounds, self._complete = [], 0
        return waited

    def follow(self) -> bool:
        """Take part in a round without data: leave the average in the gradients; False if nobody wants one."""
        if self.stopped or self._ddp is None:
            return False
        reducer = self._ddp.reducer
        try:
            reducer._rebuild_buckets()  # as DistributedDataParallel's own `join` does, once
            buckets = reducer._get_zeros_like_grad_buckets()
            if not self._begin_round(buckets[0].buffer().device, trains=False):
                return False
            works = [dist.all_reduce(bucket.buffer(), group=self._group, async_op=True) for bucket in buckets]
            for bucket, work in zip(buckets, works, strict=True):
                assert work is not None
                work.wait()
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                    parameter.grad = gradient / self._message[:-1].sum()
        except RuntimeError as error:
            raise self._lost(error) from None
        self._rounds[-1].nbytes = sum(bucket.buffer().nbytes for bucket in buckets)
        self._rounds[-1].done = self._comm.now()
        reducer._push_all_rebuilt_params()
        return True

    def adopt(self, replica: Replica) -> None:
        """After the last round: ranks that followed take the parameters of those that trained to the end.

        A follower's steps may differ from theirs, because its learning rate stood still.
        """
        if not self.stopped or self._averaged is None or bool(self._message[:-1].any()):
            return
        trained = [rank for rank, trains in zip(self._ranks, self._averaged[:-1].tolist(), strict=True) if trains]
        if len(trained) == len(self._ranks):
            return
        for index, flat in enumerate(replica.flats):
            theirs = flat.clone()
            try:
                dist.broadcast(theirs, trained[0], group=self._group)
            except RuntimeError as error:
                raise self._lost(error) from None
            if self._comm.rank not in trained:
                for slot in replica.slots:
                    if slot.flat == index and slot.is_parameter:
                        slot.view(flat).copy_(slot.view(theirs))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._ddp = None

    def close(self) -> None:
        """Take the hooks off and let go of the process group."""
        self.detach()
        self._counted = None
        del self._group

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if module is not self._model or self._ddp is None:
            return None
        if self.stopped:
            self.detach()
            return None
        try:
            return self._ddp._pre_forward(*args, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "finished reduction" in str(error):
                raise OffbeatError(self._what_is_missing(1)) from None
            raise

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if module is not self._model or self._ddp is None:
            return None
        return self._ddp._post_forward(output)  # type: ignore[no-untyped-call]

    def _count_backward(self, parameter: Tensor) -> None:
        self._backwards[id(parameter)] += 1

    def _begin_round(self, device: torch.device, *, trains: bool) -> bool:
        """Tell the others and, unless it is clear from here, learn from them whether this round is averaged."""
        wants = trains and self._wanted()
        message = torch.zeros(len(self._ranks) + 1, device=device)
        message[self._ranks.index(self._comm.rank)] = float(trains)
        message[-1] = float(wants)
        now = self._comm.now()
        self._rounds.append(Round(now, now, now, 0))
        self._message = message
        self._counted = dist.all_reduce(message, group=self._group, async_op=True)
        if not wants:
            assert self._counted is not None
            self._counted.wait()
            self.stopped = not message[-1]
        if not self.stopped:
            self._averaged = message
        return not self.stopped

    def _reduce(
        self,
        state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch insists on this annotation
    ) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer()
        try:
            if bucket.index() == 0:
                self._begin_round(buffer.device, trains=True)
            self._complete += bucket.is_last()
            if self.stopped:  # what this rank has is what it keeps
                own: torch.futures.Future[Tensor] = torch.futures.Future()
                own.set_result(buffer)
                return own
            work = dist.all_reduce(buffer, group=self._group, async_op=True)
        except RuntimeError as error:
            raise self._lost(error) from None
        round, counted, message = self._rounds[-1], self._counted, self._message
        round.last = self._comm.now()
        round.nbytes += buffer.nbytes
        assert work is not None
        assert counted is not None

        def mean(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            try:
                counted.wait()
                summed = future.value()[0]
            except RuntimeError as error:
                raise self._lost(error) from None
            round.done = max(round.last, self._comm.now())
            return summed.div_(message[:-1].sum())

        averaged: torch.futures.Future[Tensor] = work.get_future().then(mean)
        return averaged

    def _lost(self, error: RuntimeError) -> LostPeer:
        self.failure = LostPeer(None, f"the average of gradients failed: {torch_story(error)}")
        return self.failure

    def _what_is_missing(self, backwards: int) -> str:
        unused = [name for name, parameter in self._parameters.items() if parameter.grad is None]
        if unused:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            return (
                f"parameter {unused[0]!r}{more} got no gradient on rank {self._comm.rank}, and gradients are averaged "
                f"only when all have one: use every trainable parameter in every backward, or freeze what is not used"
            )
        return (
            f"rank {self._comm.rank} made {backwards} backward passes in a step and {self._complete} of them had all "
            f"gradients averaged: call the attached model itself, model(...), once before every backward(), "
            f"and use all of its trainable parameters"
        )
