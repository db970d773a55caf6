"""Gradients averaged in backward, by torch's DistributedDataParallel, with the user's module left as it is.

DistributedDataParallel holds the parameters alone; hooks on the user's own module tell it of forward, as torch's
composable `replicate` does, but can be taken off again. A rank that ran out of data follows the others: it adds
zeros to every bucket and steps along with the average, so all ranks of the group stay equal and nobody hangs.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .comm import ring_bytes
from .layout import Ranks
from .torch_comm import TorchComm


class Gradients:
    def __init__(self, model: nn.Module, ranks: Ranks, group: dist.ProcessGroup, comm: TorchComm) -> None:
        self._ranks, self._group, self._comm = ranks, group, comm
        self._training = torch.zeros(())  # how many ranks of the group train in this step
        self._counted: dist.Work | None = None
        self._first_bucket_at = self._last_bucket_at = 0.0
        self._nbytes = 0
        self._ddp = DistributedDataParallel(nn.ParameterList(model.parameters()), process_group=group)
        self._ddp.register_comm_hook(None, self._reduce)
        self._handles = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        ]

    def enable(self, averaged: bool) -> None:
        """Whether the next steps' gradients are averaged."""
        self._ddp.require_backward_grad_sync = averaged

    def waited(self, now: float) -> float:
        """Seconds of the step that ends now in which this rank had its gradient but not yet the others'."""
        if self._nbytes == 0:
            return 0.0
        trace, first, last = self._comm.trace, self._first_bucket_at, self._last_bucket_at
        trace.add(
            "communicate", "gradients", first, now - first, ring_bytes(self._nbytes, len(self._ranks)), self._ranks
        )
        trace.add("wait", "gradients", last, now - last)
        self._nbytes = 0
        return now - last

    def follow(self) -> bool:
        """Step along without data: leave the average in the gradients; False if nobody trains any more."""
        reducer = self._ddp.reducer
        reducer._rebuild_buckets()  # as DistributedDataParallel's own `join` does, once
        buckets = reducer._get_zeros_like_grad_buckets()
        self._count(buckets[0].buffer(), trains=False)
        assert self._counted is not None
        self._counted.wait()
        if self._training == 0:
            return False
        self._first_bucket_at = self._last_bucket_at = self._comm.now()
        self._nbytes = sum(bucket.buffer().nbytes for bucket in buckets)
        works = [dist.all_reduce(bucket.buffer(), group=self._group, async_op=True) for bucket in buckets]
        for bucket, work in zip(buckets, works, strict=True):
            assert work is not None
            work.wait()
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                parameter.grad = gradient / self._training
        reducer._push_all_rebuilt_params()
        return True

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        del self._ddp

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._ddp._pre_forward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return self._ddp._post_forward(output)  # type: ignore[no-untyped-call]

    def _count(self, like: Tensor, *, trains: bool) -> None:
        self._training = torch.tensor(float(trains), device=like.device)
        self._counted = dist.all_reduce(self._training, group=self._group, async_op=True)

    def _reduce(
        self,
        state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch insists on this annotation
    ) -> torch.futures.Future[Tensor]:
        now = self._comm.now()
        if bucket.index() == 0:
            self._first_bucket_at, self._nbytes = now, 0
            self._count(bucket.buffer(), trains=True)
        self._last_bucket_at = now
        self._nbytes += bucket.buffer().nbytes
        counted, training = self._counted, self._training
        work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)
        assert work is not None
        assert counted is not None

        def mean(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            counted.wait()
            return future.value()[0].div_(training)

        averaged: torch.futures.Future[Tensor] = work.get_future().then(mean)
        return averaged
