"""The examples run as their docstrings say, and `shard` gives every worker its part."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import ROOT, run_command
from torch.utils.data import IterableDataset, TensorDataset

from offbeat.errors import BadInput
from offbeat.shard import shard

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def how_to_run(example: Path) -> list[str]:
    """The indented lines of the docstring."""
    docstring = example.read_text().split('"""')[1]
    return [line.strip() for line in docstring.splitlines() if line.startswith("    ")]


COMMANDS = [line for example in EXAMPLES for line in how_to_run(example)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_docstring_says_how_to_run_it(example: Path) -> None:
    assert any(f"examples/{example.name}" in line for line in how_to_run(example))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith("offbeat")])
def test_script(line: str) -> None:
    said = run_command(line, ROOT)
    accuracies = re.findall(r"accuracy ([\d.]+)%", said)
    assert len(accuracies) == 2, said
    assert len(set(accuracies)) == 1, "workers end with different models"
    assert float(accuracies[0]) > 85


@pytest.mark.timeout(120)
@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("offbeat")])
def test_task(line: str, tmp_path: Path) -> None:
    run_command(f"{line} --quiet --json {tmp_path / 'result.json'}", ROOT)
    assert json.loads((tmp_path / "result.json").read_text())["accuracy"] > 0.9


# --- shard ---


def place(monkeypatch: pytest.MonkeyPatch, rank: int, workers: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(workers))


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


@pytest.mark.parametrize(("samples", "workers"), [(10, 1), (10, 2), (10, 3), (11, 4), (4, 4)])
def test_parts_are_disjoint_complete_and_even(monkeypatch: pytest.MonkeyPatch, samples: int, workers: int) -> None:
    parts = []
    for rank in range(workers):
        place(monkeypatch, rank, workers)
        parts.append([int(number) for (number,) in shard(numbers(samples))])
    assert sorted(number for part in parts for number in part) == list(range(samples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_alone_everything_is_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert [int(number) for (number,) in shard(numbers(5))] == [0, 1, 2, 3, 4]


def test_too_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, 0, 4)
    with pytest.raises(BadInput, match="3 samples leave some of 4 workers without any"):
        shard(numbers(3))


def test_streams_cannot_be_sharded() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(BadInput, match="Stream has no len"):
        shard(Stream())
