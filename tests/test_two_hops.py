"""Sums in two hops: what a ring would give, the same bits on all ranks, and in its place among other messages."""

import math
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from workers import run_workers

from offbeat.connect import connect
from offbeat.errors import LostPeer
from offbeat.express import express_lane
from offbeat.layout import Layout
from offbeat.staging import Staging
from offbeat.strategies import make_strategy
from offbeat.torch_comm import TorchComm
from offbeat.two_hops import SHORT_NBYTES, TwoHops, is_short, lanes_beside

RANKS = 4
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32]
LENGTHS = [1, 3, 4, 4097]


def numbers(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (100 * torch.randn(length, generator=generator)).to(dtype)


def sums() -> dict[tuple[torch.dtype, int], Tensor]:
    """In a real worker: of all kinds, all under way at the same time."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    hops = TwoHops(*(dist.new_group(list(range(RANKS)), backend="gloo") for _ in range(2)))
    kinds = [(dtype, length) for dtype in DTYPES for length in LENGTHS]
    found = {kind: numbers(rank, kind[1], kind[0]) for kind in kinds}
    for finish in [hops.begin(x)[1] for x in found.values()]:
        finish()
    del hops
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def summed() -> list[dict[tuple[torch.dtype, int], Tensor]]:
    return run_workers(sums, RANKS)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ranks_have_the_sum_and_the_same_bits(
    dtype: torch.dtype, length: int, summed: list[dict[tuple[torch.dtype, int], Tensor]]
) -> None:
    own = [numbers(rank, length, dtype) for rank in range(RANKS)]
    exact = torch.stack(own).to(torch.float64).sum(0)
    wide = torch.stack(own).to(torch.float32 if dtype.itemsize == 2 else dtype).sum(0)
    found = summed[0][dtype, length]
    torch.testing.assert_close(found.double(), exact, rtol=_precision(dtype), atol=1e-3 if dtype.itemsize < 8 else 1e-9)
    if dtype.itemsize == 2 or not dtype.is_floating_point:
        assert torch.equal(found, wide.to(dtype)), "added up in float32, rounded once"
    assert all(torch.equal(each[dtype, length], summed[0][dtype, length]) for each in summed)


def _precision(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def test_the_long_the_single_number_and_the_table_go_round_the_ring() -> None:
    assert is_short(torch.zeros(SHORT_NBYTES // 4))
    assert not is_short(torch.zeros(SHORT_NBYTES // 4 + 1))
    assert not is_short(torch.tensor(0.0))
    assert not is_short(torch.zeros(2, 2))


def test_it_is_for_lanes_of_all_ranks_beside_the_first() -> None:
    layout = Layout.even(4, 2)
    lane = express_lane(layout)
    assert lanes_beside(layout, [layout.ranks, lane, (0, 1), (2, 3), (0, 2, 1)]) == [lane]
    pair = Layout.even(2, 2)
    assert lanes_beside(pair, [pair.ranks, express_lane(pair)]) == [], "a ring of two has two hops as well"


def staged_averages() -> dict[str, Any]:
    """In a real worker: short and long messages and control messages over two groups, by way of threads, as from a GPU;
    several under way at once, waited for in another order than they were sent in."""
    rank, world = int(os.environ["RANK"]), Layout.even(RANKS, RANKS)
    dist.init_process_group("gloo")
    connection = connect(make_strategy("lasgd"), device=torch.device("cpu"), layout=world)
    lanes = [world.ranks, express_lane(world)]
    made = [connection.process_groups.make(lane, "gloo") for lane in lanes]
    comm = TorchComm(
        rank,
        world,
        groups=connection.averaging,
        two_hops={lane: TwoHops(connection.averaging[lane], back) for lane, back in zip(lanes, made, strict=True)},
    )
    for lane in lanes:
        comm._stagings[lane] = Staging()
    seen: dict[str, Any] = {}

    def steps() -> Any:
        works = {}
        for turn in range(5):
            for which, lane in enumerate(lanes):
                for length in (10, 1000 * (1 + turn), SHORT_NBYTES // 4 + 1):
                    works[f"{turn} {which} {length}"] = comm.average(torch.arange(length) + float(rank + turn), lane)
                works[f"{turn} {which} control"] = comm.average(torch.tensor(rank + turn * 1.0), lane)
        for name in reversed(works):
            seen[name] = (yield works[name]).clone()

    comm.run(steps())
    comm.close()
    made.clear()
    connection.close(orderly=True)
    dist.destroy_process_group()
    return seen


def test_short_and_long_ones_keep_their_places() -> None:
    for seen in run_workers(staged_averages, RANKS):
        assert len(seen) == 5 * 2 * 4
        for name, mean in seen.items():
            wanted = math.fsum(range(RANKS)) / RANKS + int(name.split()[0])
            exact = torch.arange(len(mean)) + wanted if mean.ndim else torch.tensor(wanted)
            assert torch.equal(mean, exact.to(mean.dtype)), name


def lose_one() -> str:
    """In a real worker: the last rank leaves between the two hops of the others; what they are told."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    connection = connect(
        make_strategy("lasgd"), device=torch.device("cpu"), layout=(world := Layout.even(RANKS, RANKS))
    )
    lane = express_lane(world)
    hops = TwoHops(connection.averaging[lane], connection.process_groups.make(lane, "gloo"))
    comm = TorchComm(rank, world, groups=connection.averaging, two_hops={lane: hops})
    comm._stagings[lane] = Staging()
    told = ""
    if rank == RANKS - 1:
        hops.begin(torch.ones(8))[0].wait()
    else:

        def steps() -> Any:
            yield comm.average(torch.ones(8), lane)

        try:
            comm.run(steps())
        except LostPeer as lost:
            told = str(lost)
    comm.close()
    del hops
    comm._two_hops = {}
    try:
        connection.close(orderly=False)
    finally:
        dist.destroy_process_group()
    return told


def test_a_rank_that_leaves_between_the_hops_is_an_error_of_the_others() -> None:
    *others, last = run_workers(lose_one, RANKS)
    assert not last
    assert all("average over ranks" in told for told in others), others
