"""Op: one operation of a training step: a kernel, and where in the step and in which module it is called."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .counts import bytes_of, flops_of
from .kernel import Kernel

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")

LOSS = "(loss)"  # the module path of the loss function's operations: no module can have this name
OPTIMIZER = "(optimizer)"


@dataclass(frozen=True)
class Op:
    """One operation of a step. Views and other bookkeeping cost nothing and are no operations."""

    kernel: Kernel
    phase: Phase
    path: str  # of the innermost module, as in named_modules(); in backward, of the module whose forward it undoes
    completes: tuple[str, ...] = ()  # the parameters whose gradients are final after it

    @property
    def kind(self) -> str:
        return self.kernel.kind

    @cached_property
    def flops(self) -> int:
        return flops_of(self.kernel)

    @cached_property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return bytes_of(self.kernel)
