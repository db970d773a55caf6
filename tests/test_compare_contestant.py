"""Contestants from a file: what a rival must be, and what is said of one that is not."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import SGD

from offbeat.compare.contest import Contest, run_contest
from offbeat.compare.contestant import CannotLoad, Setup, find_contestant
from offbeat.errors import BadInput
from offbeat.layout import Layout

RIVAL = """
from contextlib import contextmanager

@contextmanager
def train(model, optimizer, setup):
    yield model, optimizer
"""


def test_a_rival_without_that_function_is_told(tmp_path: Path) -> None:
    (tmp_path / "rival.py").write_text(RIVAL)
    with pytest.raises(BadInput, match="has no function nothing: choose among"):
        find_contestant(f"{tmp_path}/rival.py:nothing")


@pytest.mark.timeout(60)
def test_a_rival_whose_package_is_missing_is_listed_and_the_others_race(tmp_path: Path) -> None:
    (tmp_path / "missing.py").write_text(f"import no_such_package\n{RIVAL}")
    missing = f"{tmp_path}/missing.py:train:every=3"
    contest = Contest(strategies=(missing, "ddp"), links=(None,), workers=(1,), steps=3)
    outcomes = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    found = {outcome.entry.strategy: outcome.failure for outcome in outcomes}
    assert found["none"] is None
    assert found["ddp"] is None
    reason = r"ModuleNotFoundError: No module named 'no_such_package'\): install what it imports, or leave it out"
    assert re.search(rf"missing.py cannot be loaded \({reason}", str(found[missing]))


@pytest.mark.parametrize(
    ("line", "story"), [("raise RuntimeError('no\\nluck')", "RuntimeError: no luck"), ("exit(3)", "SystemExit: 3")]
)
def test_a_rival_whose_file_is_wrong_is_refused_before_the_first_lap(tmp_path: Path, line: str, story: str) -> None:
    (tmp_path / "wrong.py").write_text(f"{line}\n{RIVAL}")
    with pytest.raises(BadInput, match=rf"wrong.py cannot be loaded \({story}\): correct that file, or leave it out$"):
        Contest(strategies=(f"{tmp_path}/wrong.py:train", "ddp"), links=(None,), workers=(1,), steps=3)


STUCK = """
import threading, time
from contextlib import contextmanager

@contextmanager
def train(model, optimizer, setup):
    threading.Thread(target=time.sleep, args=(600,)).start()
    yield model, optimizer
    LINE
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise ValueError('out of luck')", "ended with status 1: .* ValueError: out of luck"),
        ("raise SystemExit(7)", "ended with status 7: it said nothing"),
        ("raise SystemExit", "ended with status 0 before its report"),
    ],
)
def test_a_rival_that_fails_does_not_wait_for_its_own_threads(tmp_path: Path, line: str, reason: str) -> None:
    """Nor for what is in flight, which may take as long as a lap may last."""
    (tmp_path / "stuck.py").write_text(STUCK.replace("LINE", line))
    contest = Contest(strategies=(f"{tmp_path}/stuck.py:train",), links=(None,), workers=(1,), steps=3)
    _, failed = run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert re.search(reason, str(failed.failure))


OWN = """
from contextlib import contextmanager
import torch

def settings(*about, **given):
    raise ValueError("every=0 must be\\nat least 1")

def needs_a_package(**given):
    import no_such_package

def raises(**given):
    raise KeyError(given["every"])

def ends(**given):
    raise SystemExit(3)

def without_manager(model, optimizer, setup):
    yield model, optimizer

@contextmanager
def of_two(model, optimizer):
    yield model, optimizer

@contextmanager
def plain(model, optimizer, setup):
    yield model, optimizer

@contextmanager
def yields_one(model, optimizer, setup):
    yield model

def returns(model, optimizer, setup):
    return model, optimizer

number = 3
"""


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("plain:every", r"name=value, and 'every' is not"),
        ("plain:=3", r"name=value, and '' is not"),
        ("plain:every=3", r"does not fit: .*plain\(\) got an unexpected keyword argument 'every'"),
        ("settings:every=0", r"does not fit: every=0 must be at least 1$"),
        ("raises:every=7", r"raises:every=7 does not fit \(KeyError: '7'\): correct its settings, or that file$"),
        ("ends:every=7", r"does not fit \(SystemExit: 3\)"),
        ("without_manager", r"under @contextmanager"),
        ("of_two", r"a function of \(model, optimizer, setup\)"),
        ("number", r"a function of \(model, optimizer, setup\)"),
    ],
)
def test_a_rival_that_does_not_follow_the_protocol_is_told(tmp_path: Path, rest: str, message: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(BadInput, match=message):
        find_contestant(f"{tmp_path}/own.py:{rest}")


def test_a_rival_that_imports_with_its_settings_is_told_as_any_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(CannotLoad, match=r"'no_such_package'\): install what it imports, or leave it out$"):
        find_contestant(f"{tmp_path}/own.py:needs_a_package:every=7")


@pytest.mark.parametrize(("name", "what"), [("yields_one", "it yielded Linear"), ("returns", "it returned tuple")])
def test_what_only_running_shows_of_a_rival_is_told_then(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    model, setup = nn.Linear(1, 1), cast(Setup, None)  # which it does not ask for
    with (
        pytest.raises(BadInput, match=what),
        find_contestant(f"{tmp_path}/own.py:{name}")(model, SGD([*model.parameters()]), setup),
    ):
        pass


PATIENT = """
from contextlib import contextmanager
import torch
import torch.distributed as dist

@contextmanager
def train(model, optimizer, setup):
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    print(setup.timeout_seconds, group.options._timeout.total_seconds(), file=open("FOLDER/seconds", "w"))
    yield model, optimizer
"""


@pytest.mark.timeout(120)
def test_nobody_gives_up_before_the_lap_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "patient.py").write_text(PATIENT.replace("FOLDER", str(tmp_path)))
    contest = Contest(
        strategies=(f"{tmp_path}/patient.py:train",), links=(None,), workers=(1,), steps=2, limit_seconds=777.0
    )
    run_contest(contest, watch=lambda _entry, _seconds: None, ended=lambda _outcome: None)
    assert (tmp_path / "seconds").read_text().split() == ["777.0", "777.0"]

    given: dict[str, Any] = {}

    @contextmanager
    def attach(*_args: Any, **named: Any) -> Iterator[Any]:
        given.update(named)
        yield SimpleNamespace(weights=None)

    monkeypatch.setattr("offbeat.compare.contestant.attach", attach)
    model = nn.Linear(1, 1)
    setup = Setup(0, Layout((0,)), 2, 2, 0, 777.0, [], [])
    with find_contestant("lasgd")(model, torch.optim.SGD(model.parameters()), setup):
        assert given["timeout_seconds"] == 777.0
