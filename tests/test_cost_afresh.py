"""Visits on a CPU, each few of them in a process of their own."""

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from offbeat.cost import afresh
from offbeat.cost.afresh import visits_afresh
from offbeat.cost.subject import Case, Subject
from offbeat.cost.visits import Visit
from offbeat.cost.zoo import learned_from, references
from offbeat.errors import OffbeatError

pytestmark = pytest.mark.timeout(90)
AT_ONCE = partial(visits_afresh, references=references()[:1], patience_seconds=0.0)


def plain() -> Subject:
    return next(learned_from("cpu"))


def noting(build: partial[nn.Module], path: Path) -> nn.Module:
    """Notes in which process the model is built, and with how many threads."""
    with path.open("a") as notes:
        notes.write(f"{os.getpid()} {torch.get_num_threads()}\n")
    return build()


def broken() -> nn.Module:
    raise ValueError("no such layer")


def killed() -> nn.Module:
    os.kill(os.getpid(), signal.SIGKILL)
    return nn.Identity()


def visited(cases: list[Case]) -> dict[int, Visit]:
    return {batch: visit for (_subject, batch), visit in AT_ONCE(cases)}


def test_each_few_visits_have_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afresh, "VISITS", 2)
    subject = plain()
    subject = replace(subject, model=partial(noting, subject.model, tmp_path / "notes"))
    found = visited([(subject, batch) for batch in (2, 3, 4)])
    processes, threads = zip(*(line.split() for line in (tmp_path / "notes").read_text().splitlines()), strict=True)
    assert processes[0] == processes[1] != processes[2]
    assert str(os.getpid()) not in processes
    assert set(threads) == {str(torch.get_num_threads())}
    assert set(found) == {2, 3, 4}
    assert all(visit.seconds > 0 and visit.reference_seconds > 0 for visit in found.values())


def test_a_visit_in_another_process_finds_the_operations_of_the_trace() -> None:
    subject = plain()
    (found,) = visited([(subject, 2)]).values()
    assert [kernel.call for kernel in found.kernels] == [op.kernel.call for op in subject.at(2).ops]


def test_what_a_gauge_has_seen_goes_on_in_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afresh, "VISITS", 1)
    seen = []
    received = afresh._received

    def told(results: object) -> tuple[int, Visit, tuple[float, ...]]:
        number, visit, looks = received(results)  # type: ignore[arg-type]
        seen.append(tuple(looks))
        return number, visit, tuple(looks)

    monkeypatch.setattr(afresh, "_received", told)
    visited([(plain(), 2), (plain(), 3)])
    first, second = seen
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_what_fails_in_the_process_is_told() -> None:
    with pytest.raises(OffbeatError, match=r"a step failed: ValueError\('no such layer'\)"):
        visited([(replace(plain(), model=broken), 2)])


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(OffbeatError, match="ended in the middle: was there too little memory"):
        visited([(replace(plain(), model=killed), 2)])


def test_no_process_is_left_where_visits_are_not_all_wanted(tmp_path: Path) -> None:
    subject = plain()
    subject = replace(subject, model=partial(noting, subject.model, tmp_path / "notes"))
    visits = AT_ONCE([(subject, batch) for batch in (2, 3, 4)])
    next(visits)
    visits.close()
    process = int((tmp_path / "notes").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
