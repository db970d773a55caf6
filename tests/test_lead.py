"""The host is at most one step ahead of its GPU."""

import pytest
import torch

from offbeat.lead import Lead


class Event:
    """Of a GPU that has done nothing yet; waiting for it takes it there."""

    made: list["Event"] = []  # noqa: RUF012

    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "waiting must not take a core from the threads that send"
        self.reached = False
        Event.made.append(self)

    def record(self, _stream: object) -> None:
        pass

    def synchronize(self) -> None:
        self.reached = True


def test_the_next_step_may_be_launched_while_the_latest_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    Event.made.clear()
    lead = Lead(torch.device("cuda", 0))
    for step in range(4):
        lead.wait()
        assert [event.reached for event in Event.made] == [True] * step, "all steps before this one"
        lead.mark()
        assert not Event.made[-1].reached, "nobody waits for the latest"


def test_a_cpu_is_never_ahead_of_itself() -> None:
    lead = Lead(torch.device("cpu"))
    lead.mark()
    lead.wait()
    assert lead._here is None, "no event is made where there is no CUDA"
