"""Kernel: one call of a library kernel, without the values of its tensors.

It says everything that the call's time depends on, and enough to make the call again: `signature` is the key under
which a calibration files what it measured.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import prod

import torch

SHORT = {
    torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b1",
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None  # in elements; None: contiguous

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: a dimension that was only expanded (stride 0) is there once."""
        if self.strides is None:
            return self.numel * self.dtype.itemsize
        return prod(n for n, s in zip(self.shape, self.strides, strict=True) if s) * self.dtype.itemsize

    def __str__(self) -> str:
        layout = "" if self.strides is None else "@" + ",".join(map(str, self.strides))
        return f"{SHORT.get(self.dtype, str(self.dtype))}[{','.join(map(str, self.shape))}{layout}]"


@dataclass(frozen=True)
class Ref:
    """In the arguments of a kernel: its `index`-th input."""

    index: int


@dataclass(frozen=True)
class Scalar:
    """In the arguments of a kernel: a number that takes part in the arithmetic, so that its value changes no time."""

    value: bool | int | float | complex


Argument = object  # Ref, Scalar, None, a number, a string, a type or memory format, or a tuple of these


@dataclass(frozen=True, eq=False)
class Kernel:
    """A call of a library kernel. Two calls that differ only in values of floats are the same kernel."""

    name: str  # the operator with its overload, "aten::addmm.default"
    kind: str  # its class, "matmul"
    inputs: tuple[Spec, ...]  # each tensor once
    outputs: tuple[Spec, ...]  # fresh tensors
    written: tuple[int, ...] = ()  # the inputs that are changed in place
    part: str = ""  # of a convolution's backward: "input", "weight" or "bias"
    arguments: tuple[tuple[str, Argument], ...] = ()  # by name, as the schema has them
    near: tuple[int, int] = (0, 0)  # eighths of what it reads that a cache may still have: see `reuse`
    warm: int = 0  # how recently its code ran, up to WARMEST: see `reuse`
    bulk: int = 0  # how much its step moves: see `reuse`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self.signature == other.signature

    def __hash__(self) -> int:
        return hash(self.signature)

    @property
    def operator(self) -> str:
        """The bare name of the operator: "addmm"."""
        return self.name.partition("::")[2].partition(".")[0]

    @property
    def dtype(self) -> torch.dtype:
        """The type it computes in: that of its first floating input, or of what it makes."""
        for spec in (*self.inputs, *self.outputs):
            if spec.dtype.is_floating_point:
                return spec.dtype
        return (*self.inputs, *self.outputs)[0].dtype

    @cached_property
    def settings(self) -> tuple[tuple[str, Argument], ...]:
        """The arguments beside tensors that its time may depend on: stride, padding, groups, dim; never a float."""
        return tuple((name, value) for name, value in self.arguments if _matters(value))

    @cached_property
    def call(self) -> str:
        """One line that says all but where in a step it stands."""
        settings = ",".join(f"{name}={_plain(value)}" for name, value in self.settings)
        name = f"{self.name}/{self.part}" if self.part else self.name
        return " ".join(filter(None, (name, _run_lengths(self.inputs), "->", _run_lengths(self.outputs), settings)))

    @cached_property
    def signature(self) -> str:
        """One line that says all: two kernels of one signature take one time."""
        near = f"near={self.near[0]},{self.near[1]}" if any(self.near) else ""
        warm, bulk = f"warm={self.warm}" if self.warm else "", f"bulk={self.bulk}" if self.bulk else ""
        return " ".join(filter(None, (self.call, near, warm, bulk)))

    def argument(self, name: str) -> Argument:
        return dict(self.arguments)[name]

    def tensor(self, name: str) -> Spec | None:
        """The input that is the argument `name`; None where none was given."""
        value = dict(self.arguments).get(name)
        return self.inputs[value.index] if isinstance(value, Ref) else None


def _matters(value: Argument) -> bool:
    if isinstance(value, tuple):
        return all(map(_matters, value))
    return isinstance(value, (bool, int, str, torch.dtype, torch.memory_format, torch.layout))


def _plain(value: Argument) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(_plain, value)) + ")"
    return SHORT.get(value, str(value)) if isinstance(value, torch.dtype) else str(value)


def _run_lengths(specs: tuple[Spec, ...]) -> str:
    """`3*f32[8] f32[9]`: an optimizer's list of hundreds of tensors stays readable."""
    runs = [(spec, len([*run])) for spec, run in groupby(specs)]
    return " ".join(f"{count}*{spec}" if count > 1 else str(spec) for spec, count in runs)
