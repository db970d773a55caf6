"""What strategies say that they keep beside x, counted."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from table import ROWS, Row
from torch import Tensor

from offbeat.layout import Layout
from offbeat.replica import Replica
from offbeat.sim.cluster import Cluster
from offbeat.sim.learners import NoModel
from offbeat.sim.network import Link
from offbeat.sim.run import run
from offbeat.strategies import make_strategy
from offbeat.strategy import Plan, Strategy

NUMBERS = 1 << 20  # so many that gossip cuts them into as many parts as of any large model
MORE = ["lasgd:wire_dtype=bfloat16,momentum=0.5", "lasgd:momentum=0.5", "lasgd:wire_dtype=int8", "none:trail=0.1",
        "gossip:fragments=1,trail=0.5", "diloco:wire_dtype=float16"]  # fmt: skip


class Large(NoModel):
    """Timing only, of an x that is as large as it says."""

    def __init__(self, workers: int) -> None:
        self.replicas = [Replica((torch.zeros(NUMBERS),)) for _ in range(workers)]


def storages(start: Strategy) -> dict[int, int]:
    """Bytes of the tensors that can be reached from a strategy, by address; not by way of the world that it is in."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting: deque[Any] = deque([start])
    while waiting:
        each = waiting.popleft()
        if id(each) in seen or type(each).__module__.startswith("offbeat.sim"):
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, Mapping):
            waiting.extend(each.values())
        elif isinstance(each, (list, tuple, set, deque)):
            waiting.extend(each)
        elif type(each).__module__.startswith("offbeat"):
            waiting.extend(vars(each).values() if hasattr(each, "__dict__") else ())
    return found


@pytest.mark.parametrize("spec", [*(row.spec for row in ROWS), *MORE])
def test_a_strategy_keeps_as_many_copies_of_x_as_it_says(spec: str) -> None:
    strategy, most = make_strategy(spec), 0.0
    cluster = Cluster(
        layout=Layout.even(4, 2),
        step_seconds=0.1,
        link=Link(bytes_per_second=4 * NUMBERS, seconds=1e-4),  # an average takes some steps
    )

    def look(meter: Any, _now: float) -> None:
        nonlocal most
        own = {flat.untyped_storage().data_ptr() for flat in meter.strategy.replica.flats}
        kept = sum(nbytes for address, nbytes in storages(meter.strategy).items() if address not in own)
        most = max(most, kept / (4 * NUMBERS))

    run(strategy, cluster, Large(4), [24] * 4, seed=0, plan=Plan(24, 6), watch=look)
    window_of_a_gpu = 0.34 if strategy.meets_peers else 0.0
    assert strategy.copies - window_of_a_gpu - 0.02 <= most <= strategy.copies + 0.02


def test_rows_of_all_kinds_are_counted() -> None:
    assert {0.0, 1.0, 2.0} <= {row.make().copies for row in [*ROWS, Row("none:trail=0.1", None, True)]}
