"""What a training step costs: its operations (`trace`), and their time on a device."""

from .kernel import Kernel, Spec
from .memory import Memory, largest_batch
from .op import Op
from .roofline import Device, op_seconds
from .trace import TracedStep, trace, trace_task

__all__ = [
    "Device",
    "Kernel",
    "Memory",
    "Op",
    "Spec",
    "TracedStep",
    "largest_batch",
    "op_seconds",
    "trace",
    "trace_task",
]
