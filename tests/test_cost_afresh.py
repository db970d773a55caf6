"""Visits on a CPU, each few of them in a process of their own."""

import os
import pickle
import signal
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import nn

from offbeat.cost import afresh
from offbeat.cost.afresh import KILLED, visits_afresh
from offbeat.cost.failed import Failed
from offbeat.cost.random_layers import random_layers
from offbeat.cost.random_models import random_models
from offbeat.cost.subject import Case, Subject
from offbeat.cost.visits import Visit
from offbeat.cost.zoo import held_out, learned_from, references
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


def visited(cases: list[Case]) -> dict[int, Visit | Failed]:
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
    visits = [visit for visit in found.values() if isinstance(visit, Visit)]
    assert len(visits) == 3
    assert all(visit.seconds > 0 and visit.reference_seconds > 0 for visit in visits)


def test_a_visit_in_another_process_finds_the_operations_of_the_trace() -> None:
    subject = plain()
    (found,) = visited([(subject, 2)]).values()
    assert isinstance(found, Visit)
    assert [kernel.call for kernel in found.kernels] == [op.kernel.call for op in subject.at(2).ops]


def test_what_a_gauge_has_seen_goes_on_in_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(afresh, "VISITS", 1)
    seen, all_of = [], afresh._all_of

    def told(task: Any, *others: Any) -> Any:
        found, failure = all_of(task, *others)
        seen.append(found[-1][-1])
        return found, failure

    monkeypatch.setattr(afresh, "_all_of", told)
    visited([(plain(), 2), (plain(), 3)])
    first, second = seen
    assert second[: len(first)] == first
    assert len(second) > len(first)


@pytest.mark.parametrize("spare", [True, False])
def test_the_next_few_are_drawn_meanwhile_where_there_is_a_core_to_spare(
    spare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(afresh, "VISITS", 1)
    monkeypatch.setattr(afresh, "has_spare_core", lambda _threads: spare)
    story: list[str] = []

    def cases() -> Iterator[tuple[Subject, int]]:
        for batch in (2, 3):
            story.append(f"drawn {batch}")
            yield plain(), batch
        story.append("no more")
        raise ValueError("the source has run dry")

    def all_of_them() -> None:
        for (_subject, batch), _visit in AT_ONCE(cases()):
            story.append(f"visited {batch}")

    with pytest.raises(ValueError, match="run dry"):
        all_of_them()
    assert story == (
        ["drawn 2", "drawn 3", "visited 2", "no more", "visited 3"]
        if spare
        else ["drawn 2", "visited 2", "drawn 3", "visited 3", "no more"]
    )


def test_there_is_a_core_to_spare_where_not_all_compute() -> None:
    cores = len(os.sched_getaffinity(0))
    assert not afresh.has_spare_core(cores)
    assert afresh.has_spare_core(cores - 1)


def test_a_kill_in_the_middle_of_a_message_is_told_and_so_is_what_cannot_be_read() -> None:
    """Whatever comes, something is told: who waits for it has no other way to know."""
    for sent, told in ((struct.pack("!i", 100) + b"half of it", KILLED), (struct.pack("!i", 3) + b"not", None)):
        ours, theirs = Pipe(duplex=False)
        os.write(theirs.fileno(), sent)
        theirs.close()
        received: SimpleQueue[Any] = SimpleQueue()
        afresh._take(ours, received)
        found = received.get(timeout=5.0)
        assert found is told if told is not None else isinstance(found, Exception)
        ours.close()


def test_a_step_that_fails_takes_no_other_along(tmp_path: Path) -> None:
    noted = replace(plain(), model=partial(noting, plain().model, tmp_path / "notes"))
    found = visited([(noted, 2), (replace(plain(), model=broken), 3), (noted, 4)])
    assert found[3] == Failed("ValueError: no such layer")
    assert isinstance(found[2], Visit)
    assert isinstance(found[4], Visit)
    processes = {line.split()[0] for line in (tmp_path / "notes").read_text().splitlines()}
    assert len(processes) == 1, "of one process"


def test_a_step_that_kills_its_process_takes_no_other_along() -> None:
    found = visited([(plain(), 2), (replace(plain(), model=killed), 3), (plain(), 4)])
    assert found[3] == KILLED
    assert isinstance(found[2], Visit)
    assert isinstance(found[4], Visit)


def test_references_that_fail_are_told() -> None:
    with pytest.raises(OffbeatError, match=r"no step can be measured: .*no such layer"):
        list(visits_afresh([(plain(), 2)], references=[(replace(plain(), model=broken), 2)]))


def test_no_process_is_left_where_visits_are_not_all_wanted(tmp_path: Path) -> None:
    subject = plain()
    subject = replace(subject, model=partial(noting, subject.model, tmp_path / "notes"))
    visits = AT_ONCE([(subject, batch) for batch in (2, 3, 4)])
    next(visits)
    visits.close()
    process = int((tmp_path / "notes").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_what_is_begun_before_the_moment_is_finished_and_no_more() -> None:
    found = list(AT_ONCE([(plain(), batch) for batch in (2, 3, 4)], time.monotonic() - 1))
    assert [batch for (_subject, batch), _visit in found] == [2], "a process begins one at least"


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_all_that_a_calibration_visits_can_go_to_another_process(autocast: torch.dtype | None) -> None:
    random = [
        subject
        for drawn in (random_models, random_layers)
        for subject, _batch in islice(drawn(seed=0, platform="cpu", autocast=autocast), 3)
    ]
    for subject in (*learned_from("cpu", autocast), *held_out("cpu", autocast), *random):
        again = pickle.loads(pickle.dumps(subject))
        assert (again.name, again.autocast, again._traced) == (subject.name, autocast, {})
        with torch.device("meta"):
            ours, theirs = subject.model(), again.model()
        assert [type(each) for each in theirs.modules()] == [type(each) for each in ours.modules()]
