"""The host is at most half a step ahead of its GPU."""

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


def test_it_waits_for_the_middle_of_the_backward_that_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    layers = [torch.nn.Linear(2, 2, bias=False) for _ in range(5)]
    order: list[str] = []
    for number, layer in enumerate(layers):
        layer.weight.register_post_accumulate_grad_hook(lambda _p, number=number: order.append(str(number)))  # type: ignore[misc]
    Event.made.clear()
    lead = Lead(torch.device("cuda", 0), [layer.weight for layer in layers])
    monkeypatch.setattr(Event, "record", lambda _event, _stream: order.append("mark"))
    for _ in range(3):
        order.clear()
        torch.nn.Sequential(*layers)(torch.ones(1, 2)).sum().backward()
        assert order == ["4", "3", "2", "mark", "1", "0"]
        lead.wait()
        assert Event.made[-1].reached, "the middle of this step"
        lead.mark()
    marks = len(Event.made)
    capturing = True
    torch.nn.Sequential(*layers)(torch.ones(1, 2)).sum().backward()
    assert len(Event.made) == marks, "what is captured into a graph is no place to wait for"
    capturing = False
    lead.close()
    torch.nn.Sequential(*layers)(torch.ones(1, 2)).sum().backward()
    assert len(Event.made) == marks


def test_a_cpu_is_never_ahead_of_itself() -> None:
    lead = Lead(torch.device("cpu"))
    lead.mark()
    lead.wait()
    assert lead._here is None, "no event is made where there is no CUDA"
