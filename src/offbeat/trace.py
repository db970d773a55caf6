"""Trace: what every rank did and when, written by both worlds; every table, plot and report reads it."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from .layout import Ranks

Kind = Literal["compute", "communicate", "wait"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    name: str  # "step", "average", "gradients", "swap", ...
    rank: int
    start: float  # seconds since the run began
    seconds: float
    nbytes: int = 0  # sent by this rank
    peers: Ranks = ()

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Event":
        return cls(**{**record, "peers": tuple(record["peers"])})


class Trace:
    """The totals of one rank since the start, and its latest events (at most `keep`, so that a long run fits)."""

    def __init__(self, rank: int, keep: int = 20_000) -> None:
        self.rank = rank
        self.events: deque[Event] = deque(maxlen=keep)
        self.seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self.count: Counter[str] = Counter()
        self.bytes_sent = 0

    def add(self, kind: Kind, name: str, start: float, seconds: float, nbytes: int = 0, peers: Ranks = ()) -> None:
        self.events.append(Event(kind, name, self.rank, start, seconds, nbytes, peers))
        self.seconds[kind] += seconds
        self.count[name] += 1
        self.bytes_sent += nbytes


def chrome(events: Iterable[Event], node_of: Ranks) -> dict[str, Any]:
    """The Chrome trace format, which Perfetto opens: a process per rank, a track per kind of event."""
    track = {kind: number for number, kind in enumerate(KINDS)}
    rows: list[dict[str, Any]] = []
    for rank, node in enumerate(node_of):
        rows.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank} (node {node})"}})
        rows += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": kind}}
            for kind, tid in track.items()
        ]
    rows += [
        {
            "ph": "X",
            "name": event.name,
            "cat": event.kind,
            "pid": event.rank,
            "tid": track[event.kind],
            "ts": event.start * 1e6,
            "dur": event.seconds * 1e6,
            "args": {"nbytes": event.nbytes, "peers": list(event.peers)},
        }
        for event in events
    ]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}
