"""One training run in virtual time: every worker a process, every step real (or timed only)."""

import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..comm import Steps
from ..report.meter import Meter
from ..report.status import Status
from ..strategy import Plan, Strategy
from ..trace import Trace
from .clock import Clock
from .cluster import Cluster
from .comm import SimComm, World
from .gradients import Gradients
from .learners import Learners
from .network import Network
from .shape import usual_shape
from .work import SimProcess, SimWork

Watch = Callable[[Meter, float], None]  # called after every step of a worker, with the virtual time


@dataclass(frozen=True)
class Run:
    """What is left of a run: its length in virtual seconds, each worker's last status and trace."""

    seconds: float
    statuses: Sequence[Status]
    traces: Sequence[Trace]


def run(
    strategy: Strategy,
    cluster: Cluster,
    learners: Learners,
    steps: Sequence[int],
    *,
    seed: int,
    nbytes: int | None = None,
    plan: Plan | None = None,
    watch: Watch | None = None,
) -> Run:
    """Train `steps[rank]` steps on every rank. `nbytes`: bytes of the parameters, where `learners` has no model."""
    layout, clock = cluster.layout, Clock()
    network = Network(layout, clock, link=cluster.link, local=cluster.local, swaps=cluster.swaps)
    own_bytes = learners.replicas[0].nbytes
    scale = 1.0 if nbytes is None else nbytes / own_bytes
    world = World.of(
        layout,
        clock,
        network,
        groups=strategy.groups(layout),
        meets_peers=strategy.meets_peers,
        bytes_scale=scale,
        keep=max(200, 200_000 // layout.workers),
    )
    shape = cluster.shape or usual_shape(int(own_bytes * scale))
    gradients = Gradients(clock, network, world.traces, shape, learners.apply)
    meters = []
    for rank in layout.ranks:
        own = copy.deepcopy(strategy)
        if plan is not None:
            own.prepare(plan)
        meter = Meter(rank, steps[rank], world.traces[rank], own)
        meters.append(meter)
        worker = _Worker(
            rank, own, cluster, world, learners, gradients, meter, steps[rank], seed, shape.optimizer_share, watch
        )
        process = SimProcess(f"rank {rank}", worker.train(), clock, world.traces[rank])
        world.processes.append(process)
    with paused_collector():
        clock.run()
    stuck = [f"{p.name} waits for {p.waits_for.name}" for p in world.processes if p.waits_for is not None]
    if stuck:
        raise RuntimeError(f"nothing can happen any more at {clock.now:.6f} s: {'; '.join(stuck[:8])}")
    return Run(clock.now, [meter.status(clock.now) for meter in meters], world.traces)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Python's cycle collector walks through all events kept, again and again: with thousands of workers that is most
    of the time. A simulation makes few cycles, and they are collected when it is over."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class _Worker:
    rank: int
    strategy: Strategy
    cluster: Cluster
    world: World
    learners: Learners
    gradients: Gradients
    meter: Meter
    steps: int
    seed: int
    optimizer_share: float  # of a step's compute, after the gradients are averaged
    watch: Watch | None

    def train(self) -> Steps:
        rank, strategy, clock = self.rank, self.strategy, self.world.clock
        yield from strategy.start(self.learners.replicas[rank], SimComm(rank, self.world, self.seed))
        pace = self.cluster.pace(rank, self.seed)
        ranks = strategy.gradient_ranks(self.cluster.layout, rank)
        step = 0
        while step < self.steps:
            step += 1
            alone = len(ranks) == 1 or not strategy.averages_gradients(step)
            seconds = pace.next_step()
            self.learners.begin(rank, step - 1, alone=alone)
            if alone:
                yield self._compute(seconds)
                loss = self.learners.end(rank)
            else:
                averaged, complete = self.gradients.begin(rank, ranks, seconds)
                yield self._compute(seconds * (1 - self.optimizer_share))
                loss = self.learners.end(rank)
                complete()
                yield averaged
                if self.optimizer_share:
                    yield self._compute(seconds * self.optimizer_share)
            self.meter.step(loss, clock.now)
            strategy.observe(loss)
            yield from strategy.at_boundary(step)
            if self.watch is not None:
                self.watch(self.meter, clock.now)
        while len(ranks) > 1 and strategy.averages_gradients(step + 1):
            if not (yield self.gradients.follow(rank, ranks)):
                break
            step += 1
            yield from strategy.after_step(step)
        yield from strategy.finish()
        yield from strategy.hand_in()

    def _compute(self, seconds: float) -> SimWork[None]:
        work: SimWork[None] = SimWork("compute")
        self.world.clock.after(seconds, lambda: work.complete(None))
        return work
