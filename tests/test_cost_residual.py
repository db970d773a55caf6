"""The ways to learn a curve: that each finds it, writes it down, and is what it is named after."""

import json
from math import sqrt

import numpy as np
import pytest

from offbeat.cost import gaussian
from offbeat.cost.gaussian import Gaussian, learn_gaussian
from offbeat.cost.learn import WAYS
from offbeat.cost.residual import Way, from_dict, learn, learn_trees


@pytest.fixture(autouse=True)
def _shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration learns longer: what is found here is simpler than a device."""
    monkeypatch.setattr("offbeat.cost.residual.STEPS", 400)


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(gaussian, "PLACES", 60)
    return 60


def curve(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Of two features; a third tells nothing and a fourth is always the same."""
    x = np.random.default_rng(seed).uniform(-3, 3, (rows, 4))
    x[:, 3] = 7.0
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1]


def written(model: object) -> object:
    return from_dict(json.loads(json.dumps(model.as_dict())))  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_learns_a_curve_and_writes_it_down(way: Way) -> None:
    x, y = curve(600)
    model = learn(way, x[:500], y[:500], np.ones(500), 0)
    assert np.abs(model(x[500:]) - y[500:]).mean() < 0.15
    assert np.abs(written(model)(x) - model(x)).mean() < 0.001, "rounded"  # type: ignore[operator]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_data_and_seed_give_the_same_model(way: Way) -> None:
    x, y = curve(200)
    one, other = (learn(way, x, y, np.ones(200), 3) for _ in range(2))
    assert json.dumps(one.as_dict()) == json.dumps(other.as_dict())


def test_trees_are_those_of_sklearn() -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    from offbeat.cost.residual import DEPTH, ROWS_OF_A_TREE, SHRINKAGE, TREES

    x = np.random.default_rng(0).uniform(-3, 3, (200, 3))
    y = x[:, 0] ** 2
    theirs = GradientBoostingRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=SHRINKAGE,
        subsample=ROWS_OF_A_TREE,
        loss="huber",
        random_state=1,
    ).fit(x, y, sample_weight=np.ones(200))
    assert np.allclose(learn_trees(x, y, np.ones(200), 1)(x), theirs.predict(x))


def test_a_gaussian_process_is_the_mean_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As written out: k(x, X) (k(X, X) + noise)^-1 (y - start), with the lengths, size and noise that it found."""
    found: list[float] = []
    likeliest = gaussian._likeliest

    def spy(*given: object) -> object:
        lengths, size, noise = likeliest(*given)  # type: ignore[arg-type]
        found.append(noise)
        return lengths, size, noise

    monkeypatch.setattr(gaussian, "_likeliest", spy)
    x, y = curve(150)
    model = learn_gaussian(x, y, np.ones(150), 0)

    def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = sqrt(5) * np.linalg.norm((a[:, None] - b[None])[..., model.columns] / model.lengths, axis=-1)
        return np.asarray(model.size * (1 + r + r**2 / 3) * np.exp(-r))

    new = curve(40, seed=1)[0]
    among = alike(x, x) + found[0] * np.eye(150)
    expected = model.start + alike(new, x) @ np.linalg.solve(among, y - model.start)
    assert np.abs(model(new) - expected).max() < 1e-3


def test_what_tells_nothing_counts_little_in_a_gaussian_process() -> None:
    x, y = curve(400)
    model = learn_gaussian(x, y, np.ones(400), 0)
    assert list(model.columns) == [0, 1, 2], "never what is always the same"
    assert model.lengths[2] > 2 * model.lengths[:2].max()


def test_few_places_stand_for_many_rows(few_places: int) -> None:
    x, y = curve(600)
    model = learn_gaussian(x[:500], y[:500], np.ones(500), 0)
    assert len(model.places) == len(model.weights) == few_places < 500
    assert np.abs(model(x[500:]) - y[500:]).mean() < 0.05


def test_rows_that_weigh_nothing_teach_nothing() -> None:
    x, y = curve(300)
    wrong = np.where(x[:, 0] > 0, y + 3.0, y)
    model = learn_gaussian(x, np.where(np.arange(300) % 2 == 0, y, wrong), 1.0 - np.arange(300) % 2, 0)
    assert np.abs(model(x) - y).mean() < 0.1


def test_a_class_in_which_all_is_the_same_has_its_mean() -> None:
    model = learn_gaussian(np.ones((9, 3)), np.full(9, 0.25), np.ones(9), 0)
    assert isinstance(written(model), Gaussian)
    assert np.allclose(written(model)(np.zeros((2, 3))), 0.25)  # type: ignore[operator]
