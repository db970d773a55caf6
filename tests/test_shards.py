"""Shards: they partition each epoch, they are deterministic, and they share their permutations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.errors import BadInput
from offbeat.train.shards import Shard, permutation, stacked_indices


def epoch_of(shard: Shard, epoch: int) -> list[int]:
    steps = range(epoch * shard.steps_per_epoch, (epoch + 1) * shard.steps_per_epoch)
    return torch.cat([shard.indices(step) for step in steps]).tolist()


@given(
    workers=st.integers(1, 9),
    per_worker=st.integers(1, 30),
    rest=st.integers(0, 8),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 2**40),
)
def test_shards_of_an_epoch_partition_the_samples(
    workers: int, per_worker: int, rest: int, epoch: int, seed: int
) -> None:
    samples = workers * per_worker + rest % workers
    shards = [Shard(samples=samples, rank=r, workers=workers, batch=1, seed=seed) for r in range(workers)]
    seen = [index for shard in shards for index in epoch_of(shard, epoch)]
    assert sorted(seen) == list(range(samples))


@given(workers=st.integers(1, 5), per_worker=st.integers(1, 40), batch=st.integers(1, 16), rank=st.integers(0, 4))
def test_only_the_incomplete_last_batch_is_dropped(workers: int, per_worker: int, batch: int, rank: int) -> None:
    shard = Shard(samples=workers * per_worker, rank=rank % workers, workers=workers, batch=batch, seed=3)
    sizes = [len(shard.indices(step)) for step in range(shard.steps_per_epoch)]
    expected = [per_worker] if per_worker < batch else [batch] * (per_worker // batch)
    assert sizes == expected
    assert len(set(epoch_of(shard, 0))) == sum(sizes)


def test_order_depends_on_seed_and_epoch_alone() -> None:
    shard = Shard(samples=100, rank=1, workers=4, batch=5, seed=7)
    again = Shard(samples=100, rank=1, workers=4, batch=5, seed=7)
    late_first = [again.indices(step) for step in (9, 3, 0)]
    assert all(torch.equal(a, shard.indices(step)) for a, step in zip(late_first, (9, 3, 0), strict=True))
    assert shard.indices(0).dtype == torch.int64
    assert epoch_of(shard, 0) != epoch_of(shard, 1)
    other = Shard(samples=100, rank=1, workers=4, batch=5, seed=8)
    assert epoch_of(shard, 0) != epoch_of(other, 0)


def test_thousands_of_shards_share_one_permutation() -> None:
    permutation.cache_clear()
    shards = [Shard(samples=20_000, rank=r, workers=4096, batch=2, seed=0) for r in range(4096)]
    for shard in shards:
        shard.indices(0)
    assert permutation.cache_info().misses == 1


def test_writing_to_a_batch_changes_no_order() -> None:
    shard = Shard(samples=8, rank=0, workers=1, batch=8, seed=0)
    before = shard.indices(0)
    shard.indices(0).zero_()
    assert torch.equal(shard.indices(0), before)


def test_uneven_shards_may_differ_by_a_step() -> None:
    steps = [Shard(samples=9, rank=r, workers=2, batch=5, seed=0).steps_per_epoch for r in range(2)]
    sizes = [len(Shard(samples=9, rank=r, workers=2, batch=5, seed=0).indices(0)) for r in range(2)]
    assert (steps, sizes) == ([1, 1], [5, 4])
    assert [Shard(samples=9, rank=r, workers=2, batch=1, seed=0).steps_per_epoch for r in range(2)] == [5, 4]


def test_empty_shard_is_refused_on_every_rank() -> None:
    for rank in range(4):
        with pytest.raises(BadInput, match=r"3 samples .* 4 workers .*: use 3 workers or fewer"):
            Shard(samples=3, rank=rank, workers=4, batch=1, seed=0)


@pytest.mark.parametrize(
    ("rank", "workers", "batch", "seed"), [(4, 4, 1, 0), (-1, 4, 1, 0), (0, 4, 0, 0), (0, 4, 1, -1)]
)
def test_bad_numbers_are_refused(rank: int, workers: int, batch: int, seed: int) -> None:
    with pytest.raises(BadInput):
        Shard(samples=10, rank=rank, workers=workers, batch=batch, seed=seed)


@given(
    samples=st.integers(8, 200),
    workers=st.integers(1, 8),
    batch=st.integers(1, 40),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_stacked_indices_are_the_indices(
    samples: int, workers: int, batch: int, seed: int, data: st.DataObject
) -> None:
    shards = [Shard(samples=samples, rank=r, workers=workers, batch=batch, seed=seed) for r in range(workers)]
    shards = [shard for shard in shards if shard.size_of_batches == shards[-1].size_of_batches]
    steps = [data.draw(st.integers(0, 60)) for _ in shards]
    stacked = stacked_indices(shards, steps)
    for row, shard, step in zip(stacked, shards, steps, strict=True):
        assert torch.equal(row, shard.indices(step))
