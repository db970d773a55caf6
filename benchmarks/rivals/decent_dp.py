"""decent-dp: each step mixes the parameters with one peer's, sent a step ago; update and sending are backward's hooks.

Best here: topology=ring (alternately left and right); one-peer-exp needs a power of two of workers.
"""

from inspect import signature
from pathlib import Path
from runpy import run_path
from typing import Literal

from decent_dp.ddp import DecentralizedDataParallel
from loguru import logger

rival = run_path(str(Path(__file__).with_name("rival.py")))["rival"]


class Idle:
    """Backward has made the step already, and cleared the gradients; the first step's are still needed then."""

    def step(self) -> None: ...

    def zero_grad(self) -> None: ...


@rival
def train(model, optimizer, _setup, *, topology: Literal["ring", "one-peer-exp", "complete"] = "ring"):
    logger.disable("decent_dp")
    kind = type(optimizer)
    given = {name: value for name, value in optimizer.defaults.items() if name in signature(kind).parameters}
    module = DecentralizedDataParallel(
        model,
        lambda named: kind([parameter for _, parameter in named], **given),
        topology=topology,
        sync_buffer_in_global_avg=True,
        _local_world_size=1,
    )
    yield module, Idle()
    module.global_avg(will_revert=False)  # as its users do before they evaluate or save
