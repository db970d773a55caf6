"""LASGD on wires of given speeds, in virtual time."""

from typing import ClassVar

from torch import Tensor

from offbeat.layout import Layout, Ranks
from offbeat.sim.cluster import Cluster
from offbeat.sim.comm import SimComm
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.run import Run, run
from offbeat.sim.work import SimWork
from offbeat.strategies import make_strategy

STEP_SECONDS, NBYTES = 0.1, 1_200_000


def on_a_wire_of(
    steps_per_average: float, spec: str, *, steps: int = 200, stragglers: dict[int, float] | None = None
) -> Run:
    """Four workers on four nodes; an average of all x takes so many steps on the wire."""
    bytes_per_second = 2 * 3 / 4 * NBYTES / (steps_per_average * STEP_SECONDS)
    cluster = Cluster(
        layout=Layout.even(4, 4),
        step_seconds=STEP_SECONDS,
        link=Link(bytes_per_second=bytes_per_second, seconds=1e-5),
        stragglers=stragglers or {},
    )
    return run(make_strategy(spec), cluster, NoModel(4), [steps] * 4, seed=0, nbytes=NBYTES)


class LateOnTheWire(SimComm):
    """As on a GPU, where a snapshot waits for the kernels before it: averages begin one and a half steps later."""

    steps_late: ClassVar[float] = 1.5

    def average(self, x: Tensor, ranks: Ranks, out: Tensor | None = None) -> SimWork[Tensor]:
        if x.ndim > 0 and out is None:
            return super().average(x, ranks, out)
        out = x.clone() if out is None else out.copy_(x)
        outer: SimWork[Tensor] = SimWork("average")
        if x.ndim > 0:
            late.setdefault(self.rank, []).append(outer)

        def begin() -> None:
            inner = super(LateOnTheWire, self).average(out, ranks, out)
            outer.found_idle = inner.found_idle
            inner.then(lambda: outer.complete(inner.result()))

        self._world.clock.after(self.steps_late * STEP_SECONDS, begin)
        return outer


late: dict[int, list[SimWork[Tensor]]] = {}
