"""mark: a place in what a GPU has been given to do, that a thread can wait for without taking a core meanwhile."""

import torch


def mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """All that the stream has been given up to now. To wait for it is to sleep: a thread that spins takes a core from
    those that serve the wire."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
