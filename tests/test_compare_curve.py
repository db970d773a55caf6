"""Snapshots, the curve of the mean of all workers, and when it reaches a target."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from offbeat.compare.measures import seconds_to
from offbeat.compare.snapshots import Album, Point, curve, flat_of, load_flat
from offbeat.train.task import Task
from offbeat.train.tasks import load_task


def keep(folder: Path, ranks: dict[int, list[tuple[float, int, float]]]) -> tuple[Task, Tensor]:
    """Snapshots of workers at such seconds and steps, the weights shifted by so much; the task, and the weights."""
    task = load_task("digits", seed=0)
    model = task.model()
    good = flat_of(model)
    for rank, album in ranks.items():
        kept = Album(folder, rank, len(ranks))
        for seconds, step, shift in album:
            load_flat(model, good + shift)
            kept.take(model, seconds=seconds, step=step)
        assert not list(folder.glob(f"{rank:05d}*")), "nothing is written on the clock"
        kept.write()
    return task, good


def test_time_to_a_target_lies_between_points_and_luck_does_not_count() -> None:
    points = [Point(float(k), 5, accuracy, 1.0) for k, accuracy in enumerate([0.5, 0.8, 0.7, 0.8, 0.9])]
    assert seconds_to(points, 0.75) == pytest.approx(2.5), "at 1.0 the next point does not have it"
    assert seconds_to(points, 0.65) == pytest.approx(0.5)
    assert seconds_to(points, 0.5) == 0.0
    assert seconds_to(points, 0.85) == pytest.approx(3.5), "nothing comes after the last"
    assert seconds_to(points, 0.95) is None
    assert seconds_to([Point(1.0, 5, None, 1.0)], 0.5) is None


def test_the_curve_is_that_of_the_mean_of_the_snapshots_nearest_in_time(tmp_path: Path) -> None:
    """The second rank is a moment later at every step; at step 8 their shifts cancel, in the end there are none."""
    task, good = keep(
        tmp_path,
        {0: [(1.0, 8, 0.5), (2.0, 16, 9.0), (3.0, 24, 0.0)], 1: [(1.1, 8, -0.5), (2.1, 16, -9.0), (3.1, 24, 0.0)]},
    )
    scratch = task.model()
    points = curve(tmp_path, task, scratch, 2)
    assert [point.steps for point in points] == [8, 16, 24], "never one step's weights with another's"
    assert [point.seconds for point in points] == pytest.approx([1.05, 2.1, 3.1]), (
        "not before they were there; who has trained to the end has at 2.1 what it had at 2.0"
    )
    torch.testing.assert_close(flat_of(scratch), good, rtol=0, atol=1e-6)
    losses = [point.loss for point in points]
    assert losses == pytest.approx([losses[2]] * 3, rel=0.05)


def test_a_slow_worker_gives_to_the_curve_what_it_had_nearest(tmp_path: Path) -> None:
    """The fast one trains for 3 seconds and waits; both hand in the final average when that is there."""
    fast = [(1.0, 8, 9.0), (2.0, 16, 9.0), (3.0, 24, 9.0), (6.7, 24, 0.0)]
    slow = [(2.2, 8, -9.0), (4.4, 16, -9.0), (6.6, 24, -9.0), (6.8, 24, 0.0)]
    for name, albums in (("behind", {0: fast, 1: slow}), ("ahead", {0: slow, 1: fast})):
        (tmp_path / name).mkdir()
        task, _ = keep(tmp_path / name, albums)
        points = curve(tmp_path / name, task, task.model(), 2)
        assert [(point.seconds, point.steps) for point in points] == [
            (pytest.approx(2.1), 12), (pytest.approx(4.4), 20), (pytest.approx(6.6), 24), (pytest.approx(6.8), 24),
        ], "around the slow one's, as long as it trains, with what the fast one had when it ended"  # fmt: skip
        losses = [point.loss for point in points]
        assert losses == pytest.approx([losses[-1]] * 4, rel=0.05), "never the final average before it was there"


def test_an_album_that_becomes_too_large_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_task("digits", seed=0).model()
    monkeypatch.setattr("offbeat.compare.snapshots.MOST_HELD_NBYTES", flat_of(model).nbytes)
    album = Album(tmp_path, 0, 1)
    for number, files in ((1, 0), (2, 2), (3, 2)):
        album.take(model, seconds=float(number), step=number)
        assert len(list(tmp_path.iterdir())) == files
    album.write()
    assert len(list(tmp_path.iterdir())) == 3


def test_flat_and_back() -> None:
    one, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    one(torch.randn(8, 4))
    load_flat(other, flat_of(one))
    assert torch.equal(one.running_mean, other.running_mean)  # type: ignore[arg-type]
