"""Status and Result: how a worker is doing, and how a run ended; both worlds write them, as valid JSON.

JSON has no NaN and no infinity, and a training that diverges has both: they are written as the strings
"nan", "inf" and "-inf", and read back as the floats that they were.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import BadInput

NOT_FINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, kw_only=True)
class Status:
    """One worker at one moment."""

    rank: int
    step: int  # steps done
    steps: int  # steps planned
    seconds: float  # since the run began
    loss: float  # mean training loss since the last status
    steps_per_second: float
    computing_share: float  # of the time so far
    waiting_share: float
    bytes_sent: int
    averages: int  # averages merged, or exchanges done, so far
    delay: float | None  # mean steps from the snapshot to the merge of an average; None: does not apply
    notes: dict[str, float]  # what else the strategy reports, such as the interval it chose

    def as_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = _jsonable(asdict(self))
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Status":
        return cls(**_fields_of(cls, record))


@dataclass(frozen=True, kw_only=True)
class Result:
    """The end of a run: what `--json` holds."""

    task: str
    strategy: str
    options: dict[str, Any]  # of the strategy, all of them
    world: Literal["real", "virtual"]
    compute: str  # how long a step takes, and who says so: "real", or what was emulated, given or measured
    workers: int
    nodes: int
    seed: int
    accuracy: float | None  # of the averaged model on the test samples; None: timing only, or no classes
    loss: float | None  # likewise; None: timing only
    steps_per_second: float  # mean over workers
    computing_share: float  # mean over workers
    bytes_sent: int  # all workers
    seconds: float  # of training, start to finish; virtual seconds in the virtual world
    per_worker: tuple[Status, ...]

    def as_dict(self) -> dict[str, Any]:
        record: dict[str, Any] = _jsonable(asdict(self))
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Result":
        return cls(**_fields_of(cls, record))


def to_json(value: Any, indent: int | None = None) -> str:
    """Valid JSON on one line (unless indented), whatever floats the value holds."""
    return json.dumps(_jsonable(value), indent=indent, allow_nan=False)


def _jsonable(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(float(value))
        case Mapping():
            return {key: _jsonable(each) for key, each in value.items()}
        case list() | tuple():
            return [_jsonable(each) for each in value]
    return value


def _fields_of(cls: type[Status] | type[Result], record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass from a record of JSON: all of them, no others, each of its type."""
    names = {field.name for field in fields(cls)}
    if odd := names.symmetric_difference(record):
        known = "lacks" if odd <= names else "does not know" if not odd & names else "differs in"
        raise BadInput(f"a {cls.__name__} {known} {', '.join(sorted(odd))}: was it written by another version?")
    hints = get_type_hints(cls)
    try:
        return {name: _read(hints[name], record[name], name) for name in names}
    except TypeError as error:
        raise BadInput(f"{error} in a {cls.__name__}: was it written by another version?") from error


def _read(kind: Any, value: Any, name: str) -> Any:
    """`value` as the type `kind`, or a TypeError; a float may come as an integer or as the name of no number."""
    if isinstance(kind, UnionType):
        return None if value is None else _read(get_args(kind)[0], value, name)
    if kind is float and (value in NOT_FINITE or type(value) in (int, float)):
        return float(value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(get_args(kind)[0].from_dict(each) for each in value)
    if get_origin(kind) is dict and isinstance(value, dict):
        return value
    if kind in (int, str) and type(value) is kind:
        return value
    raise TypeError(f"{name} is {value!r}, not {getattr(kind, '__name__', kind)},")
