"""Trace: what every rank did and when, written by both worlds; every table, plot and report reads it."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

from .layout import Ranks

Kind = Literal["compute", "communicate", "wait", "mark"]  # mark: a moment at which a strategy decided something
KINDS: tuple[Kind, ...] = get_args(Kind)
SAME_INSTANT = 1e-9  # seconds: the end of one event and the start of the next, rounded apart


class Event(NamedTuple):
    kind: Kind
    name: str  # "step", "average", "gradients", "swap", ...
    rank: int
    start: float  # seconds since the run began
    seconds: float
    nbytes: int = 0  # sent by this rank
    peers: Ranks = ()

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Event":
        return cls(**{**record, "peers": tuple(record["peers"])})


class Trace:
    """The totals of one rank since the start, and its latest events (at most `keep`, so that a long run fits)."""

    def __init__(self, rank: int, keep: int = 20_000) -> None:
        self.rank = rank
        self.events: deque[Event] = deque(maxlen=keep)
        self.seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self.bytes_sent = 0

    def add(self, kind: Kind, name: str, start: float, seconds: float, nbytes: int = 0, peers: Ranks = ()) -> None:
        # tuple.__new__ is what Event() calls after a frame of Python, and this is in every step's path
        self.events.append(tuple.__new__(Event, (kind, name, self.rank, start, seconds, nbytes, peers)))
        self.seconds[kind] += seconds
        self.bytes_sent += nbytes


def chrome(events: Iterable[Event], node_of: Ranks) -> dict[str, Any]:
    """The Chrome trace format, which Perfetto opens: a process per rank, a track per kind of event.

    Events of a track must not overlap, and averages in flight may: those that do get further tracks of their kind.
    """
    names: dict[tuple[int, int], str] = {}
    rows: list[dict[str, Any]] = []
    busy_until: dict[tuple[int, int], float] = {}
    for event in sorted(events, key=lambda event: event.start):
        track = KINDS.index(event.kind)
        while busy_until.get((event.rank, track), -math.inf) > event.start + SAME_INSTANT:
            track += len(KINDS)
        busy_until[event.rank, track] = event.start + event.seconds
        names[event.rank, track] = event.kind
        rows.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.kind,
                "pid": event.rank,
                "tid": track,
                "ts": event.start * 1e6,
                "dur": event.seconds * 1e6,
                "args": {"nbytes": event.nbytes, "peers": list(event.peers)},
            }
        )
    ranks = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} (node {node})"}}
        for rank, node in enumerate(node_of)
    ]
    tracks = [
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}
        for (rank, track), name in sorted(names.items())
    ]
    return {"traceEvents": [*ranks, *tracks, *rows], "displayTimeUnit": "ms"}
