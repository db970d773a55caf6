"""Replica: the trainable parameters and floating-point buffers of a model as one flat buffer per dtype.

The model's own tensors become views of the buffer and stay so: updates are in place and addresses never change,
so optimizers, compiled code and CUDA graphs keep working. Tied weights appear once; frozen parameters and integer
buffers stay where they are and never travel.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from .errors import BadInput, OffbeatError

ALIGNMENT = 16  # elements: every tensor starts on a cache line of its own
CHUNK = 1 << 16  # elements: two or three operands of this size stay in the second-level cache
GPU_CHUNK = 1 << 22  # elements: what a GPU is busy with for a while, and little beside a model


Fragment = tuple[Tensor, ...]  # views of a part of x


@dataclass(frozen=True)
class Slot:
    """Where a tensor of the model lies: in which flat buffer, from which element on, in which shape."""

    name: str
    flat: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_parameter: bool

    def view(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset)


@dataclass(frozen=True)
class Replica:
    """One worker's x, or a part of it. `flats`: contiguous buffers, of a whole model one per dtype and device; padding
    is zero."""

    flats: tuple[Tensor, ...]
    slots: tuple[Slot, ...] = ()
    tensors: tuple[Tensor, ...] = ()  # the model's own, one per slot

    @property
    def nbytes(self) -> int:
        return sum(flat.nbytes for flat in self.flats)

    def like(self) -> tuple[Tensor, ...]:
        """Fresh zeroed buffers of the same sizes, for what a strategy keeps beside x."""
        return tuple(torch.zeros_like(flat) for flat in self.flats)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Views of what lies in front in the flats: the parameters, all of it where there is no model."""
        return tuple(flat[:end] for flat, end in zip(self.flats, self._ends_of_parameters(), strict=True) if end)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        """Views of what lies behind the parameters: averaged like them, but nothing that an optimizer may move."""
        ends = zip(self.flats, self._ends_of_parameters(), strict=True)
        return tuple(flat[end:] for flat, end in ends if end < len(flat))

    def apart_from_buffers(self) -> tuple["Replica", Fragment]:
        """The parameters alone, and the buffers."""
        ends = self._ends_of_parameters()
        kept = [flat for flat, end in enumerate(ends) if end]
        slots = [replace(s, flat=kept.index(s.flat)) for s in self.slots if s.is_parameter and s.flat in kept]
        return Replica(self.parameters, tuple(slots)), self.buffers

    def _ends_of_parameters(self) -> list[int]:
        if not self.slots:
            return [len(flat) for flat in self.flats]
        ends = [0] * len(self.flats)
        for slot in self.slots:
            if slot.is_parameter:
                end = slot.offset + -(-math.prod(slot.shape) // ALIGNMENT) * ALIGNMENT
                ends[slot.flat] = max(ends[slot.flat], end)
        return ends

    @property
    def numbers(self) -> int:
        """How many x has, padding not counted."""
        if not self.slots:
            return sum(flat.numel() for flat in self.flats)
        return sum(math.prod(slot.shape) for slot in {replace(slot, name="") for slot in self.slots})

    def fragments(self, count: int) -> tuple[Fragment, ...]:
        """x in so many parts of nearly equal bytes, in order; each is one view, or one per flat buffer that it spans.

        Fewer parts where numbers are so wide that some would hold none.
        """
        if count > self.numbers:
            raise BadInput(f"fragments={count} does not fit: x has {self.numbers} numbers, so use that or fewer")
        cuts = [self.nbytes * index / count for index in range(count + 1)]
        fragments: list[list[Tensor]] = [[] for _ in range(count)]
        start = 0
        for flat in self.flats:
            align = ALIGNMENT if count * 4 * ALIGNMENT * flat.element_size() <= self.nbytes else 1
            places = [round((cut - start) / flat.element_size() / align) * align for cut in cuts]
            places = [min(max(place, 0), len(flat)) for place in places]
            for fragment, low, high in zip(fragments, places, places[1:], strict=False):
                if high > low:
                    fragment.append(flat[low:high])
            start += flat.nbytes
        return tuple(tuple(fragment) for fragment in fragments if fragment)

    def set_apart(self, nbytes: int) -> tuple[Fragment, "Replica"]:
        """Its smallest tensors, of together at most so many bytes, and the rest of x; neighbours are one view."""
        starts = {(slot.flat, slot.offset) for slot in self.slots if math.prod(slot.shape)}
        starts |= {(flat, 0) for flat in range(len(self.flats))}
        ends = [(flat, len(buffer)) for flat, buffer in enumerate(self.flats)]
        tensors = [
            (flat, low, high) for (flat, low), (same, high) in pairwise(sorted([*starts, *ends])) if flat == same
        ]
        small, left = set(), nbytes
        for tensor in sorted(tensors, key=lambda t: ((t[2] - t[1]) * self.flats[t[0]].element_size(), t)):
            left -= (tensor[2] - tensor[1]) * self.flats[tensor[0]].element_size()
            if left < 0:
                break
            small.add(tensor)
        if not small:
            return (), self
        apart: tuple[list[Tensor], list[Tensor]] = ([], [])
        for (is_small, flat), run in groupby(tensors, key=lambda t: (t in small, t[0])):
            neighbours = list(run)
            apart[not is_small].append(self.flats[flat][neighbours[0][1] : neighbours[-1][2]])
        return tuple(apart[0]), Replica(tuple(apart[1]))

    def describe(self) -> str:
        """Its tensors in a few words; equal if and only if names, shapes and dtypes are."""
        kinds = [(slot.name, slot.shape, str(self.flats[slot.flat].dtype)) for slot in self.slots]
        elements = sum(math.prod(slot.shape) for slot in self.slots)
        digest = hashlib.sha256(repr(kinds).encode()).hexdigest()[:8]
        return f"{len(kinds)} tensors of {elements:,} numbers to average (names and shapes: {digest})"

    def check(self, model: nn.Module) -> None:
        """Hold the model's tensors against the buffers: code that replaced one would train it unseen."""
        for slot, tensor in zip(self.slots, self.tensors, strict=True):
            flat = self.flats[slot.flat]
            module, _, name = slot.name.rpartition(".")
            there = getattr(model.get_submodule(module), name) if not slot.is_parameter else tensor
            address = flat.data_ptr() + slot.offset * flat.element_size()
            if there is not tensor or (tensor.numel() and tensor.data_ptr() != address):
                raise OffbeatError(
                    f"{'parameter' if slot.is_parameter else 'buffer'} {slot.name!r} was replaced by a new tensor "
                    f"inside the attached block, so it is averaged no more: change it in place (copy_, "
                    f"load_state_dict), or before the block"
                )

    def release(self) -> None:
        """Give the model's tensors memory of their own again, so that it can be copied and saved like any other."""
        own: dict[Slot, Tensor] = {}
        for slot, tensor in zip(self.slots, self.tensors, strict=True):
            place = replace(slot, name="")  # what shares memory goes on doing so
            if place not in own:
                own[place] = tensor.data.clone()
            tensor.data = own[place]


def flatten(model: nn.Module, *, buffers: bool = True) -> Replica:
    """Move the model's trainable parameters (and floating-point buffers) into flat buffers, in place."""
    tensors: list[tuple[str, Tensor]] = [*trainable(model)]
    if not tensors:
        raise BadInput(f"{type(model).__name__} has no trainable parameter: set requires_grad on at least one")
    parameters = len(tensors)
    if buffers:
        seen = {id(tensor) for _, tensor in tensors}
        for name, buffer in model.named_buffers():  # each once, also where it is shared
            if buffer.is_floating_point() and id(buffer) not in seen:
                tensors.append((name, buffer))
    kinds = list(dict.fromkeys((tensor.dtype, tensor.device) for _, tensor in tensors))
    sizes = [0] * len(kinds)
    slots: list[Slot] = []
    shared: dict[Any, int] = {}  # tensors of the same memory, tied without being the same object, stay tied
    for index, (name, tensor) in enumerate(tensors):
        flat = kinds.index((tensor.dtype, tensor.device))
        stride = _dense_stride(tensor)
        memory = (tensor.data_ptr(), flat, tensor.shape, tensor.stride()) if tensor.numel() else index
        offset = shared.setdefault(memory, sizes[flat])
        slots.append(Slot(name, flat, offset, tuple(tensor.shape), stride, index < parameters))
        if offset == sizes[flat]:
            sizes[flat] += -(-tensor.numel() // ALIGNMENT) * ALIGNMENT
    flats = tuple(
        torch.zeros(size, dtype=dtype, device=device) for (dtype, device), size in zip(kinds, sizes, strict=True)
    )
    with torch.no_grad():
        for slot, (_, tensor) in zip(slots, tensors, strict=True):
            view = slot.view(flats[slot.flat])
            view.copy_(tensor)
            tensor.data = view
    return Replica(flats, tuple(slots), tuple(tensor for _, tensor in tensors))


def trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that travel; one that is not floating point cannot be averaged."""
    for name, parameter in model.named_parameters():  # each once, also where it is tied
        if parameter.requires_grad:
            if isinstance(parameter, UninitializedParameter):
                raise BadInput(
                    f"parameter {name!r} has no shape yet: run the model once on a batch before attaching it"
                )
            if not parameter.is_floating_point():
                raise BadInput(
                    f"parameter {name!r} is {parameter.dtype}, and only floating-point parameters can be averaged: "
                    f"freeze it (requires_grad=False) and keep it out of the optimizer, or store it as float"
                )
            yield name, parameter


def in_chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one length side by side, in pieces: small enough for a cache, or for a temporary on a GPU."""
    size = CHUNK if tensors[0].device.type == "cpu" else GPU_CHUNK
    if tensors[0].numel() <= size:
        yield tensors
    else:
        yield from zip(*(torch.split(tensor, size) for tensor in tensors), strict=True)


def add_difference_(x: Tensor, plus: Tensor, minus: Tensor) -> None:
    """x += plus - minus; memory is read once and written once.

    The difference comes first: it is small, and exactly zero where there is none.
    """
    for piece, a, b in in_chunks(x, plus, minus):
        piece.add_(a - b)


def subtract_(x: Tensor, minus: Tensor, out: Tensor) -> None:
    """out = x - minus, rounded once to out's dtype."""
    for piece, a, b in in_chunks(out, x, minus):
        piece.copy_(a - b)


def consensus_distance(replicas: Sequence[Replica]) -> float:
    """sqrt(mean over workers of |x_i - mean x|^2): how far the workers are apart."""
    total = 0.0
    for flats in zip(*(replica.flats for replica in replicas), strict=True):
        stack = torch.stack([flat.double() for flat in flats])
        total += float((stack - stack.mean(0)).square().sum())
    return math.sqrt(total / len(replicas))


def _dense_stride(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own strides if it fills its memory without gaps (channels_last too), else contiguous ones."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return torch.empty(tensor.shape, device="meta").stride()
        expected *= size
    return tensor.stride()
