"""Kernels written down: to JSON and back, so that a profile can be fitted and measured again without the model."""

from typing import Any

import torch

from .kernel import SHORT, Argument, Kernel, Ref, Scalar, Spec

_LONG = {short: dtype for dtype, short in SHORT.items()}
_CONSTANTS = (torch.dtype, torch.memory_format, torch.layout)  # all are called torch.something


def to_json(kernel: Kernel) -> dict[str, Any]:
    """Only what differs from the defaults, since a profile has thousands."""
    full = {
        "name": kernel.name,
        "kind": kernel.kind,
        "inputs": [str(spec) for spec in kernel.inputs],
        "outputs": [str(spec) for spec in kernel.outputs],
        "written": list(kernel.written),
        "part": kernel.part,
        "arguments": {name: _down(value) for name, value in kernel.arguments},
        "near": list(kernel.near) if any(kernel.near) else [],
        "warm": kernel.warm,
        "bulk": kernel.bulk,
    }
    return {name: value for name, value in full.items() if value not in ("", [], 0)}


def from_json(read: dict[str, Any]) -> Kernel:
    """The kernel that `to_json` wrote."""
    return Kernel(
        name=read["name"],
        kind=read["kind"],
        inputs=tuple(map(_spec, read.get("inputs", []))),
        outputs=tuple(map(_spec, read.get("outputs", []))),
        written=tuple(read.get("written", [])),
        part=read.get("part", ""),
        arguments=tuple((name, _up(value)) for name, value in read["arguments"].items()),
        near=_near(read.get("near", [0, 0])),
        warm=int(read.get("warm", 0)),
        bulk=int(read.get("bulk", 0)),
    )


def _near(read: list[int]) -> tuple[int, int]:
    nearest, further = read
    return int(nearest), int(further)


def _spec(text: str) -> Spec:
    """`f32[2,3@1,2]`: type, shape and, unless contiguous, strides."""
    name, _, rest = text.rstrip("]").partition("[")
    shape, at, strides = rest.partition("@")
    dtype = _LONG.get(name) or getattr(torch, name.removeprefix("torch."))
    return Spec(_numbers(shape), dtype, _numbers(strides) if at else None)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _down(value: Argument) -> Any:
    if isinstance(value, Ref):
        return {"input": value.index}
    if isinstance(value, Scalar):
        return {"scalar": value.value}
    if isinstance(value, _CONSTANTS):
        return {"torch": str(value).removeprefix("torch.")}
    return [_down(part) for part in value] if isinstance(value, tuple) else value


def _up(value: Any) -> Argument:
    if isinstance(value, list):
        return tuple(map(_up, value))
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == "torch":
            constant: Argument = getattr(torch, inner)
            return constant
        return Ref(inner) if kind == "input" else Scalar(inner)
    return value
