"""Roofline: the time of a kernel on a device of which only the speeds are known.

    t = t_launch + max(flops / (F e_c), bytes / (B e_m))

F is the device's FLOP/s in the kernel's type, B its bytes/s; e_c and e_m are the shares of these that large kernels
reach. Products of matrices run at F; all else at the vector units' rate, whatever the type.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import torch

from ..errors import BadInput
from .counts import bytes_of, flops_of
from .kernel import Kernel

MATRIX_KINDS = ("matmul", "convolution", "attention", "recurrent")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a data sheet says of a device."""

    name: str
    flops_per_second: Mapping[torch.dtype, float]  # of matrix products; float32 must be there
    tf32_flops_per_second: float | None = None  # of convolutions in float32, which torch does in TF32; None: as float32
    vector_flops_per_second: float | None = None  # of everything else; None: as matrix products in float32
    bytes_per_second: float  # of its memory
    launch_seconds: float  # from one kernel's end to the next one's start
    dispatch_seconds: float = 0.0  # of the host, per kernel, beside what the kernel takes; a GPU works meanwhile
    memory_bytes: int
    compute_efficiency: float = 1.0  # e_c: 1 where the rates above were measured
    memory_efficiency: float = 1.0  # e_m

    def __post_init__(self) -> None:
        if torch.float32 not in self.flops_per_second:
            raise BadInput(f"device {self.name} has no FLOP/s for float32, which every training step needs: give them")
        rates = {
            **{f"FLOP/s in {dtype}": rate for dtype, rate in self.flops_per_second.items()},
            "FLOP/s in TF32": 1.0 if self.tf32_flops_per_second is None else self.tf32_flops_per_second,
            "FLOP/s of vectors": 1.0 if self.vector_flops_per_second is None else self.vector_flops_per_second,
            "bytes/s": self.bytes_per_second,
            "bytes of memory": self.memory_bytes,
        }
        for what, value in rates.items():
            if not (isfinite(value) and value > 0):
                raise BadInput(f"{what} of device {self.name} cannot be {value}: give a number above 0")
        for what, seconds in (("launch", self.launch_seconds), ("dispatch", self.dispatch_seconds)):
            if not (isfinite(seconds) and seconds >= 0):
                raise BadInput(f"{what} seconds of device {self.name} cannot be {seconds}: give 0 or more")
        for efficiency in (self.compute_efficiency, self.memory_efficiency):
            if not 0 < efficiency <= 1:
                raise BadInput(f"an efficiency of device {self.name} cannot be {efficiency}: give a share in (0, 1]")

    def flops_rate(self, kernel: Kernel) -> float:
        """FLOP/s for this kernel; a type that the device was not measured in runs as float32."""
        if kernel.kind == "convolution" and kernel.dtype == torch.float32 and self.tf32_flops_per_second:
            return self.tf32_flops_per_second
        if kernel.kind in MATRIX_KINDS:
            return self.flops_per_second.get(kernel.dtype, self.flops_per_second[torch.float32])
        return self.vector_flops_per_second or self.flops_per_second[torch.float32]


def compute_seconds(kernel: Kernel, device: Device) -> float:
    """Seconds that the arithmetic alone takes."""
    return flops_of(kernel) / (device.flops_rate(kernel) * device.compute_efficiency)


def memory_seconds(kernel: Kernel, device: Device) -> float:
    """Seconds that reading and writing alone takes."""
    return bytes_of(kernel) / (device.bytes_per_second * device.memory_efficiency)


def op_seconds(kernel: Kernel, device: Device) -> float:
    """Seconds of one call."""
    return device.launch_seconds + max(compute_seconds(kernel, device), memory_seconds(kernel, device))


def memory_bound(kernel: Kernel, device: Device) -> bool:
    """Whether memory, not arithmetic, sets the kernel's time."""
    return memory_seconds(kernel, device) > compute_seconds(kernel, device)
