"""Nobody spins while waiting for a GPU."""

import pytest
import torch

from offbeat.events import mark


def test_waiting_for_a_gpu_is_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[bool, list[object]]] = []

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            self.recorded: list[object] = []
            made.append((blocking, self.recorded))

        def record(self, stream: object) -> None:
            self.recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    stream = object()
    mark(stream)  # type: ignore[arg-type]
    assert made == [(True, [stream])]
