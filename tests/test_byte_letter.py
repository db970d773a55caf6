"""A wire of 8 bits: what is sent adds up exactly, and nothing is lost."""

import pytest
import torch
from torch import Tensor

from offbeat.byte_letter import BLOCK, ByteLetter

RANKS = (0, 1, 2)
EVERYBODY = [2, 8, 63]


class Wire:
    """Adds up what all ranks have sent, when the last of them has."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def add_up(self, x: Tensor, ranks: tuple[int, ...], out: Tensor) -> None:
        assert x.dtype == torch.int8
        assert int(x.int().abs().max()) <= 127 // len(ranks), "the sum would not fit"
        self.waiting.append((x.clone(), out))
        if len(self.waiting) == len(ranks):
            total = sum(x.int() for x, _ in self.waiting)
            for _, place in self.waiting:
                place.copy_(total)
            self.waiting.clear()


def letters(xs: list[Tensor], momentum: float = 0.0) -> list[ByteLetter]:
    """A letter for each rank; they begin with the same reference, zeros."""
    return [ByteLetter([(x, torch.zeros_like(x))], momentum) for x in xs]


def turn(wire: Wire, all_letters: list[ByteLetter], *, training: bool = True) -> None:
    for letter in all_letters:
        letter.send(wire, tuple(range(len(all_letters))), training)  # type: ignore[arg-type]
    for letter in all_letters:
        letter.merge()


@pytest.mark.parametrize("size", [1, BLOCK, 3 * BLOCK + 5, (1 << 16) + 7])
@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e4])
def test_ranks_come_together_at_their_mean(size: int, scale: float) -> None:
    torch.manual_seed(0)
    xs = [scale * torch.randn(size, dtype=torch.float64) for _ in RANKS]
    mean = torch.stack(xs).mean(0)
    wire, all_letters = Wire(), letters(xs)
    for _ in range(40):
        turn(wire, all_letters)
        torch.testing.assert_close(torch.stack(xs).mean(0), mean, rtol=1e-12, atol=1e-12 * scale)
    for x in xs:
        torch.testing.assert_close(x, mean, rtol=0, atol=1e-3 * scale)


def test_blocks_of_very_different_size_keep_their_digits() -> None:
    torch.manual_seed(0)
    sizes = torch.tensor([1e-6, 1.0, 1e3], dtype=torch.float64).repeat_interleave(BLOCK)
    xs = [sizes * torch.randn(3 * BLOCK, dtype=torch.float64) for _ in RANKS]
    mean = torch.stack(xs).mean(0)
    wire, all_letters = Wire(), letters(xs)
    for _ in range(40):
        turn(wire, all_letters)
    for x in xs:
        assert float(((x - mean) / sizes).abs().max()) < 1e-3


@pytest.mark.parametrize("ranks", EVERYBODY)
@pytest.mark.parametrize("learning", [1, 2])
def test_ranks_that_stand_still_do_not_silence_those_that_learn(ranks: int, learning: int) -> None:
    """As where some have finished, or have no gradient in a block."""
    torch.manual_seed(0)
    xs = [torch.ones(BLOCK + 9, dtype=torch.float64) for _ in range(ranks)]
    wire, all_letters = Wire(), [ByteLetter([(x, x.clone())]) for x in xs]
    for _ in range(80):  # alone, one would be 9e-3 away
        for x in xs[:learning]:
            x += 1e-3 * torch.randn_like(x)
        turn(wire, all_letters)
    distance = max(float((x - y).square().mean().sqrt()) for x in xs for y in xs[:1])
    assert distance < 5e-3, "a few steps"


@pytest.mark.parametrize("ranks", EVERYBODY)
def test_after_a_silence_they_soon_hear_each_other(ranks: int) -> None:
    xs = [torch.ones(BLOCK, dtype=torch.float64) for _ in range(ranks)]
    wire, all_letters = Wire(), [ByteLetter([(x, x.clone())]) for x in xs]
    for _ in range(60):
        turn(wire, all_letters)
    for rank, x in enumerate(xs):
        x += 0.1 * (-1) ** rank
    before = float((xs[0] - xs[1]).abs().max())
    for _ in range(25):
        turn(wire, all_letters)
    assert float((xs[0] - xs[1]).abs().max()) < before / 2


def test_an_outlier_arrives() -> None:
    xs = [torch.zeros(BLOCK, dtype=torch.float64) for _ in RANKS]
    wire, all_letters = Wire(), [ByteLetter([(x, x.clone())]) for x in xs]
    xs[0][5] = 3.0
    for _ in range(40):
        turn(wire, all_letters)
    for x in xs:
        assert float(x[5]) == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen_by_all(value: float) -> None:
    xs = [torch.ones(BLOCK + 3) for _ in RANKS]
    wire, all_letters = Wire(), [ByteLetter([(x, x.clone())]) for x in xs]
    turn(wire, all_letters)
    assert all(bool(x.isfinite().all()) for x in xs)
    xs[1][7] = value
    turn(wire, all_letters)
    assert not any(bool(x.isfinite().any()) for x in xs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_references_and_steps_stay_the_same_on_all_ranks(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    xs = [torch.ones(3 * BLOCK, dtype=dtype) for _ in RANKS]
    wire, all_letters = Wire(), [ByteLetter([(x, x.clone())]) for x in xs]
    for _ in range(30):
        for x in xs:
            x += (0.01 * torch.randn(len(x))).to(dtype)
        turn(wire, all_letters)
    first = all_letters[0]._chunks[0]
    for letter in all_letters[1:]:
        assert torch.equal(letter._chunks[0].reference, first.reference)
        assert torch.equal(letter._chunks[0].exponents, first.exponents)


def test_it_says_whether_somebody_still_trains() -> None:
    wire, all_letters = Wire(), letters([torch.ones(4) for _ in RANKS])
    turn(wire, all_letters, training=True)
    assert all(letter.some_train for letter in all_letters)
    turn(wire, all_letters, training=False)
    assert not any(letter.some_train for letter in all_letters)


def test_momentum_moves_all_ranks_alike() -> None:
    xs = [torch.zeros(5, dtype=torch.float64) for _ in RANKS]
    wire, all_letters = Wire(), letters(xs, momentum=0.5)
    for _ in range(60):
        for x in xs:
            x += 1.0
        turn(wire, all_letters)
    # Each turn adds 1, and half of a velocity that comes to 1 / (1 - 1/2) of what a turn adds in all: 1 + v / 2 = v.
    before = xs[0].clone()
    for x in xs:
        x += 1.0
    turn(wire, all_letters)
    assert torch.equal(xs[0], xs[1])
    assert float((xs[0] - before).mean()) == pytest.approx(2.0, rel=0.05)
