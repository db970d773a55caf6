"""What strategies keep beside parameters, gradients and optimizer state, counted in bytes while they train."""

from collections import deque
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from offbeat.comm import Steps
from offbeat.layout import Layout
from offbeat.replica import Replica
from offbeat.sim.clock import Clock
from offbeat.sim.cluster import ETHERNET, INSIDE_A_NODE
from offbeat.sim.comm import SimComm, World
from offbeat.sim.network import Network
from offbeat.sim.work import SimProcess
from offbeat.strategies import make_strategy
from offbeat.strategy import Plan, Strategy

ELEMENTS, WORKERS, STEPS = 1 << 20, 4, 12  # 4 MiB of float32
SMALL = 0.02  # flags and the like, in times the parameters


def tensors_of(thing: object, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that can be reached from an object through its attributes and containers."""
    if id(thing) in seen or isinstance(thing, SimComm | World | Layout | str | int | float):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        return
    for part in (
        *(thing.values() if isinstance(thing, dict) else ()),
        *(thing if isinstance(thing, list | tuple | set | deque) else ()),
        *(vars(thing).values() if hasattr(thing, "__dict__") else ()),
    ):
        yield from tensors_of(part, seen)


def held(strategy: Strategy, replica: Replica) -> float:
    """Bytes of memory that the strategy holds and the replica does not, in times the replica's."""
    own = {flat.untyped_storage().data_ptr() for flat in replica.flats}
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_of(strategy, set())
    }
    return sum(nbytes for address, nbytes in storages.items() if address not in own) / replica.nbytes


def most_held(spec: str, elements: int = ELEMENTS) -> float:
    """The most that a strategy held after any step of a short run in which much is in flight."""
    clock, layout = Clock(), Layout.even(WORKERS, 2)
    world = World.of(layout, clock, Network(layout, clock, link=ETHERNET, local=INSIDE_A_NODE))
    replicas = [Replica((torch.zeros(elements),)) for _ in range(WORKERS)]
    most = 0.0

    def train(rank: int) -> Steps:
        nonlocal most
        strategy, comm = make_strategy(spec), SimComm(rank, world, 0)
        strategy.prepare(Plan(steps=STEPS, steps_per_epoch=4))
        yield from strategy.start(replicas[rank], comm)
        for step in range(1, STEPS + 1):
            yield comm.sleep(0.02)
            strategy.observe(1.0)
            yield from strategy.at_boundary(step)
            most = max(most, held(strategy, replicas[rank]))
        yield from strategy.finish()
        most = max(most, held(strategy, replicas[rank]))

    for rank in range(WORKERS):
        SimProcess(f"rank {rank}", train(rank), clock)
    clock.run()
    return most


@pytest.mark.parametrize(
    ("spec", "times"),
    [
        ("ddp", 0),
        ("ddp:trail=0.1", 1),
        ("local_sgd", 0),
        ("lasgd", 2),
        ("lasgd:fragments=8", 2),
        ("lasgd:fragments=4,wire_dtype=bfloat16", 2),
        ("lasgd:fragments=4,wire_dtype=int8", 2),
        ("lasgd:fragments=4,momentum=0.5", 4),
        ("daso", 2),
        ("daso:wire_dtype=bfloat16", 2),
        ("diloco", 2),
        ("diloco:fragments=4,delay=3", 2),
        ("sgp", 2),
        ("diloco:wire_dtype=bfloat16", 2.5),  # one of them is the state of the outer optimizer
        ("gossip", 3),
        ("gossip:fragments=1", 3),
        ("a2cid2", 4),
        ("a2cid2:fragments=1", 4),
        ("a2cid2:fragments=2", 4),
    ],
)
@pytest.mark.parametrize("elements", [1 << 20, 9616])
def test_memory_beside_x_is_bounded(spec: str, times: float, elements: int) -> None:
    assert most_held(spec, elements) <= times + SMALL


def test_the_count_sees_what_is_held() -> None:
    assert most_held("lasgd:fragments=1") > 1.9
    assert most_held("a2cid2") > 3
