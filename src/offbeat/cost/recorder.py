"""Recorder: sees every operation of a step on its way to the kernels, and writes it down.

It sits above FakeTensorMode, which answers with shapes, strides and types instead of numbers:

    model, loss, optimizer  ->  autograd  ->  Recorder  ->  FakeTensorMode

Fake tensors live and die as real ones would, so the recorder also counts the bytes that are alive.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from ..errors import BadInput
from .alive import Alive
from .answers import Answer, as_it_is
from .arguments import Arguments, flat, spec_of, storage_of
from .kernel import Argument, Kernel, Ref
from .kinds import kind_of
from .op import OPTIMIZER, Op, Phase
from .paths import Paths
from .reuse import CACHES, Caches, Touched, bulk, nearness, warmth

_NOTHING = ("lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
_CONVOLUTION_PARTS = ("input", "weight", "bias")
# What each gradient of a convolution is computed from, by argument; the others are there for their shapes.
_CONVOLUTION_READS = {"input": ("grad_output", "weight"), "weight": ("grad_output", "input"), "bias": ("grad_output",)}


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects `ops` while it is entered; `phase` says what the step is doing. `caches`: by which kernels are told
    apart that find more there; `answer`: what fake tensors get wrong about what an operation returns."""

    def __init__(self, model: nn.Module, *, caches: Caches = CACHES["cpu"], answer: Answer = as_it_is) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._caches = caches
        self._answer = answer
        self.phase: Phase = "forward"
        self.failed_in: str | None = None  # the path of the operation that raised
        self.alive = Alive()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._paths = Paths()
        self._calls: list[tuple[Kernel, Phase, str]] = []
        self._touched: list[Touched] = []  # of each call: the memory that it reads and writes
        self._completed: dict[int, list[str]] = {}  # by index of the operation
        self._makers: dict[int, int] = {}  # storage -> index of the operation that wrote it last
        self._model = model

    @property
    def ops(self) -> list[Op]:
        kernels = [kernel for kernel, _phase, _path in self._calls]
        near, warm = nearness(kernels, self._touched, self._caches), warmth(kernels, self._caches)
        place = partial(replace, bulk=bulk(kernels, self._caches))
        places = zip(kernels, near, warm, strict=True)
        kernels = [place(kernel, near=its_reads, warm=its_code) for kernel, its_reads, its_code in places]
        return [
            Op(kernel, phase, path, tuple(self._completed.get(index, ())))
            for index, (kernel, (_kernel, phase, path)) in enumerate(zip(kernels, self._calls, strict=True))
        ]

    @property
    def path(self) -> str:
        """The module that is being run, or whose forward is being undone."""
        if self.phase == "optimizer":
            return OPTIMIZER
        node = torch._C._current_autograd_node()
        if node is None or self._paths.inside:  # in backward, inside: an activation that is computed again
            return self._paths.now
        variable = getattr(node, "variable", None)  # of an AccumulateGrad: the parameter
        if variable is not None:
            return self._names.get(id(variable), "").rpartition(".")[0]
        return self._paths.at(node._sequence_nr())

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Follow the model's modules and gradients."""
        handles: list[RemovableHandle] = []
        for path, module in self._model.named_modules():
            handles += self._paths.follow(path, module)
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                hook = self._completion_of(name)
                handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _completion_of(self, name: str) -> Callable[[Tensor], None]:
        def complete(parameter: Tensor) -> None:
            assert parameter.grad is not None
            maker = self._makers.get(storage_of(parameter.grad), len(self._calls) - 1)
            self._completed.setdefault(maker, []).append(name)

        return complete

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            result = self._answer(func, args, func(*args, **kwargs))
        except Exception as error:
            if self.phase == "optimizer" and isinstance(error, DataDependentOutputException):
                return 1.0  # a step counter, say: no optimizer of torch chooses its kernels by such a value
            self.failed_in = self.path
            raise
        if func.namespace in ("prim", "prims", "profiler"):
            return result
        outputs = [value for value in flat(result) if isinstance(value, Tensor)]
        if any(tensor.layout is not torch.strided for tensor in outputs):
            raise BadInput(f"{self.path or 'the model'} makes sparse tensors, which cannot be traced: set sparse=False")
        for tensor in outputs:
            self.alive.add(tensor)
        self._record(func, args, kwargs, outputs)
        return result

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[Tensor]) -> None:
        call = Arguments(func, args, kwargs)
        before = {storage_of(tensor) for tensor in call.tensors}
        fresh = [tensor for tensor in outputs if storage_of(tensor) not in before]
        if func._schema.name.partition("::")[2] in _NOTHING:
            for tensor in fresh:
                self._makers.pop(storage_of(tensor), None)
            return
        if not fresh and not call.written:
            return  # a view, or a question about a tensor
        if not any(tensor.numel() for tensor in (*fresh, *(call.tensors[i] for i in call.written))):
            return
        path = self.path
        if func is torch.ops.aten.convolution_backward.default:
            for part, made in zip(_CONVOLUTION_PARTS, _gradients(outputs, call.value("output_mask")), strict=True):
                if made is not None:
                    kernel, reads = _convolution_gradient(call, part, made)
                    self._append(kernel, path, reads, [made])
            return
        kernel = Kernel(
            name=_name(func),
            kind=kind_of(func),
            inputs=tuple(map(spec_of, call.tensors)),
            outputs=tuple(map(spec_of, fresh)),
            written=call.written,
            arguments=call.named,
        )
        self._append(kernel, path, call.tensors, [*fresh, *(call.tensors[i] for i in call.written)])

    def _append(self, kernel: Kernel, path: str, reads: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        for tensor in made:
            self._makers[storage_of(tensor)] = len(self._calls)
        read = tuple((self.alive.life_of(tensor), spec_of(tensor).nbytes) for tensor in reads)
        self._touched.append(Touched(read, tuple(map(self.alive.life_of, made))))
        self._calls.append((kernel, self.phase, path))


def _convolution_gradient(call: Arguments, part: str, made: Tensor) -> tuple[Kernel, list[Tensor]]:
    """One of the three kernels that `convolution_backward` stands for, and the inputs that this one reads."""
    reads = _CONVOLUTION_READS[part]
    places = {name: Ref(place) for place, name in enumerate(reads)}
    named = dict(call.named)
    inputs = []
    for name in reads:
        ref = named[name]
        assert isinstance(ref, Ref)
        inputs.append(call.tensors[ref.index])
    kernel = Kernel(
        name="aten::convolution_backward.default",
        kind="convolution",
        inputs=tuple(map(spec_of, inputs)),
        outputs=(spec_of(made),),
        part=part,
        arguments=tuple(
            (name, places.get(name) if isinstance(value, Ref) else value)
            for name, value in call.named
            if name != "output_mask"
        ),
    )
    return kernel, inputs


def _gradients(outputs: list[Tensor], wanted: Argument) -> list[Tensor | None]:
    """The three gradients of a convolution, None where it was not asked for."""
    assert isinstance(wanted, tuple)
    made = iter(outputs)
    return [next(made) if want else None for want in wanted]


def _name(func: Any) -> str:
    return f"{func._schema.name}.{func._overloadname}"
