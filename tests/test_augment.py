"""Images that are moved and mirrored, and learning rates that rise and fall."""

from itertools import product

import pytest
import torch

from offbeat.errors import BadInput
from offbeat.train.augment import MOST_PIXELS, augmented, check_images
from offbeat.train.schedule import CONSTANT, ONE_CYCLE, rate_factor


def test_every_augmented_image_is_a_shifted_and_perhaps_mirrored_original() -> None:
    torch.manual_seed(0)
    images = torch.rand(64, 3, 12, 10)
    moved = augmented(images)
    assert moved.shape == images.shape
    seen = set()
    for image, found in zip(images, moved, strict=True):
        padded = torch.nn.functional.pad(image, (MOST_PIXELS,) * 4)
        ways = product(range(2 * MOST_PIXELS + 1), range(2 * MOST_PIXELS + 1), ([], [2]))
        matches = {
            (down, right, bool(flips))
            for down, right, flips in ways
            if torch.equal(padded[:, down : down + 12, right : right + 10].flip(flips), found)
        }
        assert len(matches) == 1
        seen |= matches
    assert {mirror for _, _, mirror in seen} == {False, True}
    assert len({down for down, _, _ in seen}) > 5
    assert len({right for _, right, _ in seen}) > 5


def test_augmenting_follows_the_seed() -> None:
    images = torch.rand(8, 1, 8, 8)
    torch.manual_seed(3)
    one, two = augmented(images), augmented(images)
    torch.manual_seed(3)
    assert torch.equal(augmented(images), one)
    assert not torch.equal(one, two)


def test_only_images_can_be_augmented() -> None:
    check_images(torch.rand(2, 1, 8, 8))
    with pytest.raises(BadInput, match=r"inputs of shape \(64,\) are no images .* leave out --augment"):
        check_images(torch.rand(2, 64))


def test_one_cycle_rises_in_a_fifth_and_falls_to_nearly_nothing() -> None:
    factors = [rate_factor(ONE_CYCLE, step, 100) for step in range(1, 101)]
    assert factors[0] == pytest.approx(0.05)
    assert factors[19] == 1.0
    assert max(factors) == 1.0
    assert factors[-1] == pytest.approx(1 / 81)
    assert factors[:20] == sorted(factors[:20])
    assert factors[19:] == sorted(factors[19:], reverse=True)
    assert all(0 < rate_factor(ONE_CYCLE, step, steps) <= 1 for steps in (1, 2, 7) for step in range(1, steps + 1))
    assert rate_factor(CONSTANT, 1, 10) == rate_factor(CONSTANT, 10, 10) == 1.0
