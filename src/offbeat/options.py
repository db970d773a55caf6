"""Options of a strategy: dataclass fields that carry their bounds and help; checks and flags derive from them."""

import math
import types
from collections.abc import Iterable
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from .errors import BadInput, unknown


def option(
    default: Any, help: str, *, at_least: float | None = None, above: float | None = None, one_of: Iterable[str] = ()
) -> Any:
    """A keyword-only option with a default, a help line and the values it may take."""
    return field(default=default, metadata={"help": help, "at_least": at_least, "above": above, "one_of": (*one_of,)})


def options_of(cls: type) -> dict[str, Field[Any]]:
    """The options of a strategy class by name, in the order they were written; those that all strategies have last."""
    *_, root = (base for base in cls.__mro__ if is_dataclass(base))
    common = {f.name for f in fields(root)}
    ordered = sorted(fields(cls), key=lambda f: f.name in common)
    return {f.name: f for f in ordered if "help" in f.metadata}


def type_of(cls: type, name: str) -> tuple[type, bool]:
    """The plain type of an option, and whether None is allowed too."""
    hint = get_type_hints(cls)[name]
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kinds[0], True
    return hint, False


def parse(cls: type, name: str, text: str) -> Any:
    """The value of an option written as text, on the command line or in `lasgd:every=8`."""
    if name not in options_of(cls):
        raise unknown(f"option of {cls.__name__}", name, options_of(cls))
    kind, optional = type_of(cls, name)
    if optional and text.lower() == "none":
        return None
    try:
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, f"a {kind.__name__}")
        raise BadInput(f"{name}={text} does not fit: {name} is {wanted}") from None


def check(instance: Any) -> None:
    """Hold every option of a strategy against its type and bounds."""
    for name, f in options_of(type(instance)).items():
        value = getattr(instance, name)
        kind, optional = type_of(type(instance), name)
        if value is None and optional:
            continue
        if kind is float and type(value) is int:
            value = float(value)
            setattr(instance, name, value)
        if type(value) is not kind:
            raise BadInput(f"{name}={value!r} does not fit: {name} is of type {kind.__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(f"{name}={value} does not fit: {name} must be finite, such as {_example(f)}")
        low, above, one_of = f.metadata["at_least"], f.metadata["above"], f.metadata["one_of"]
        if low is not None and value < low:
            raise BadInput(f"{name}={value} does not fit: {name} must be at least {low}, such as {_example(f)}")
        if above is not None and value <= above:
            raise BadInput(f"{name}={value} does not fit: {name} must be above {above}, such as {_example(f)}")
        if one_of and value not in one_of:
            raise unknown(name, str(value), one_of)


def _example(f: Field[Any]) -> Any:
    return next(value for value in (f.default, f.metadata["at_least"], 1) if value is not None)
