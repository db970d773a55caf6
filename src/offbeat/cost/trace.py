"""trace: the operations of one training step of any torch model, without running it and without its memory."""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ..errors import BadInput, unknown
from ..train.task import Task
from .answers import as_on_a_cpu, as_on_a_gpu
from .arguments import spec_of
from .fake import Model, fake_mode, fake_model, fake_tensors
from .gpu import LikeGpu, use_foreach
from .kernel import Kernel, Spec
from .memory import Memory
from .op import LOSS, OPTIMIZER, Op, Phase
from .recorder import Recorder
from .reuse import CACHES

Platform = Literal["cpu", "cuda"]
PLATFORMS: tuple[Platform, ...] = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """One training step, as a list of operations in the order they are issued."""

    ops: tuple[Op, ...]
    parameters: Mapping[str, Spec]  # those that get a gradient, by name; a tied weight once
    batch: int  # samples
    memory: Memory

    def of(self, phase: Phase) -> list[Op]:
        return [op for op in self.ops if op.phase == phase]

    @property
    def kernels(self) -> list[Kernel]:
        return [op.kernel for op in self.ops]

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.ops)

    @property
    def nbytes(self) -> int:
        return sum(op.nbytes for op in self.ops)

    @property
    def gradient_order(self) -> list[str]:
        """The parameters in the order in which their gradients are ready."""
        return [name for op in self.ops for name in op.completes]


def trace(
    model: Model,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    platform: Platform = "cpu",
    autocast: torch.dtype | None = None,
) -> TracedStep:
    """Trace `loss(model(inputs), targets).backward(); optimizer.step()` as torch would issue it on `platform`.

    `model` is a module, which stays as it is, or better a function that builds one: then nothing is allocated at any
    size. `inputs` is a tensor, a tuple of the model's arguments, or a dict of them by name; only its shapes and types
    count, so tensors on the meta device do. `autocast` is the type that forward and loss are done in.
    """
    if platform not in PLATFORMS:
        raise unknown("platform", platform, PLATFORMS)
    with Tracing() as tracing:
        return tracing.step(model, inputs, targets, loss, optimizer, platform, autocast)


def trace_task(
    task: Task, *, batch: int | None = None, platform: Platform = "cpu", autocast: torch.dtype | None = None
) -> TracedStep:
    """Trace a task at a batch of any size: one sample of its data tells the shapes of all."""
    batch = task.batch if batch is None else batch
    if batch < 1:
        raise BadInput(f"a batch of {batch} samples trains nothing: give at least 1")
    sample = task.train.batch(torch.tensor([0]))
    inputs, targets = (part.expand(batch, *part.shape[1:]).to("meta").contiguous() for part in sample)
    return trace(
        task.model, inputs, targets, loss=task.loss, optimizer=task.optimizer, platform=platform, autocast=autocast
    )


class Tracing:
    """The making of one trace; it knows how far it has come, to say so if it fails."""

    def __init__(self) -> None:
        self._doing = "building the model"
        self._recorder: Recorder | None = None

    def __enter__(self) -> "Tracing":
        return self

    def __exit__(self, _type: Any, error: BaseException | None, _traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, BadInput) and not _raised_here(error):
            raise self._explain(error) from error

    def step(
        self,
        model: Model,
        inputs: Any,
        targets: Any,
        loss: Callable[[Any, Any], Tensor],
        make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        platform: Platform,
        autocast: torch.dtype | None,
    ) -> TracedStep:
        mode = fake_mode()
        network = fake_model(model, mode)
        inputs, targets = fake_tensors((inputs, targets), mode)
        answer = as_on_a_gpu if platform == "cuda" else as_on_a_cpu
        recorder = self._recorder = Recorder(network, caches=CACHES[platform], answer=answer)
        weights = _count(recorder, network.parameters())
        buffers = _count(recorder, network.buffers())
        batch = _count(recorder, _tensors((inputs, targets)))
        with ExitStack() as contexts:
            contexts.enter_context(mode)
            if platform == "cuda":
                contexts.enter_context(LikeGpu())
            self._doing = "making the optimizer"
            optimizer = make_optimizer(network.parameters())
            if platform == "cuda":
                use_foreach(optimizer)
            trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
            if not trainable:
                raise BadInput("the model has no parameter that is trained: leave requires_grad on for some")

            with recorder.hooked(), recorder:
                self._doing = "the forward pass"
                with _autocast(autocast):
                    scalar = loss(_call(network, inputs), targets)
                saved = recorder.alive.nbytes - weights - buffers - batch
                if not isinstance(scalar, Tensor) or scalar.numel() != 1:
                    raise BadInput("the loss must be a tensor of one number: take its mean over the batch")
                self._doing = "the backward pass"
                recorder.phase = "backward"
                scalar.backward()  # type: ignore[no-untyped-call]
            del scalar
            peak = recorder.alive.peak
            gradients = sum(p.grad.untyped_storage().nbytes() for p in trainable.values() if p.grad is not None)

            self._doing = "the optimizer's step"
            recorder.phase = "optimizer"
            optimizer.step()  # makes the state, which is no part of the steps to come
            state = _count(recorder, _state_of(optimizer))
            recorder.alive.peak = recorder.alive.nbytes
            with recorder:
                optimizer.step()
        return TracedStep(
            ops=tuple(recorder.ops),
            parameters={name: spec_of(p) for name, p in trainable.items()},
            batch=_samples(inputs),
            memory=Memory(
                weights=weights,
                buffers=buffers,
                gradients=gradients,
                optimizer_state=state,
                batch=batch,
                saved=saved,
                peak=max(peak + state, recorder.alive.peak),
            ),
        )

    def _explain(self, error: Exception) -> BadInput:
        """One sentence: where it stopped, why, and what to do."""
        where = self._doing
        path = self._recorder.failed_in if self._recorder is not None else None
        if path is not None:
            where = {LOSS: "the loss", OPTIMIZER: where, "": "the model's forward"}.get(path, f"module {path!r}")
        if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)) or "numpy" in str(error):
            return BadInput(
                f"{where} looks at the values of a tensor ({_operator(error)}), and a trace knows only shapes: "
                f"use operations that do not depend on values (torch.where instead of if, no .item() or boolean "
                f"indexing) or trace a version of the model without that part"
            )
        if isinstance(error, (UnsupportedFakeTensorException, UnsupportedOperatorException)):
            return BadInput(
                f"{where} uses {_operator(error)}, which torch cannot trace without data: "
                f"trace a version of the model without it"
            )
        story = " ".join(f"{type(error).__name__}: {error}".split())
        return BadInput(f"{where} raised {story}: check that the batch fits the model and the loss")


def _raised_here(error: Exception) -> bool:
    """Whether a line of this package raised it: a bug of ours, but for the files that call the user's functions."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    file = Path(frame.f_code.co_filename)
    return file.parent == Path(__file__).parent and file.name not in (Path(__file__).name, "fake.py")


def _operator(error: Exception) -> str:
    """What the error says of the operator that stopped the trace."""
    operator = getattr(error, "func", None)
    return str(operator if operator is not None else next(iter(str(error).splitlines()), type(error).__name__))


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


@contextmanager
def _autocast(dtype: torch.dtype | None) -> Iterator[None]:
    if dtype is None:
        yield
    else:
        with torch.autocast("cpu", dtype=dtype):
            yield


def _count(recorder: Recorder, tensors: Iterable[Tensor]) -> int:
    """The bytes of tensors, each storage once; from now on they count as alive."""
    before = recorder.alive.nbytes
    for tensor in tensors:
        recorder.alive.add(tensor)
    return recorder.alive.nbytes - before


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _state_of(optimizer: Optimizer) -> list[Tensor]:
    return _tensors([dict(state) for state in optimizer.state.values()])


def _samples(inputs: Any) -> int:
    first = next((tensor for tensor in _tensors(inputs) if tensor.dim()), None)
    return 1 if first is None else len(first)
