"""Lists on the command line: which flags take several values, and the runs that they make together."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from .errors import BadInput
from .options import options_of
from .strategies import STRATEGIES, make_strategy

Given = Mapping[str, Any]  # the flags of a command, by name

Number = TypeVar("Number", int, float)

NUMBERS = ("workers", "nodes", "batch", "learning_rate", "seed", "latency", "jitter")  # tuples already
TEXTS = ("link", "local_link")
SWEEP_ONLY = ("processes", "evaluate_every", "target_accuracy")  # each of them makes a sweep, also of one run


def whole_numbers(text: object) -> tuple[int, ...]:
    """The type of a flag: one, or several with commas between."""
    return _numbers(str(text), int, "a whole number, or several as in 4,16")


def numbers(text: object) -> tuple[float, ...]:
    return _numbers(str(text), float, "a number, or several as in 0.1,0.2")


def _numbers(text: str, kind: Callable[[str], Number], wanted: str) -> tuple[Number, ...]:
    found = []
    for part in text.split(","):
        try:
            found.append(kind(part))
        except ValueError:
            raise click.BadParameter(f"{part.strip()!r} does not fit: give {wanted}") from None
    return tuple(found)


def without_lists(given: Given) -> dict[str, Any] | None:
    """The flags of a single run; None where some have several values, or where only a sweep knows them."""
    if any(given[name] is not None for name in SWEEP_ONLY):
        return None
    values = _lists_of(given)
    if any(len(each) > 1 for each in values.values()):
        return None
    single = {name: each[0] for name, each in values.items() if each and name != "straggler"}
    return {name: value for name, value in {**given, **single}.items() if name not in SWEEP_ONLY}


def combinations(given: Given) -> list[dict[str, Any]]:
    """Fields of a `Setting` for every run: the product of all lists, seeds changing fastest."""
    lists = {name: each for name, each in _lists_of(given).items() if each}
    options = {name: lists.pop(name) for name in option_names() if name in lists}
    lists["strategy"] = _specs_with_options(lists["strategy"], options)
    order = ["strategy", *(name for name in lists if name not in ("strategy", "seed")), "seed"]
    return [dict(zip(order, values, strict=True)) for values in itertools.product(*(lists[name] for name in order))]


def option_names() -> list[str]:
    return list(dict.fromkeys(name for cls in STRATEGIES.values() for name in options_of(cls)))


def split_specs(text: str) -> tuple[str, ...]:
    """`ddp,lasgd:every=8,delay=2,gossip` are three: a part with '=' and no ':' before belongs to the spec before."""
    specs: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, _ = part.partition("=")
        if specs and equals and ":" not in name:
            specs[-1] += ("," if ":" in specs[-1] else ":") + part
        else:
            specs.append(part)
    return tuple(specs) or (text,)


def split_stragglers(texts: Sequence[str]) -> tuple[str, ...]:
    """One text per run: `none,0:2+1:3` are two. The flag may come again, for further ranks of one run."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if len(texts) > 1 and len(parts) > len(texts):
        raise BadInput(
            f"--straggler {' --straggler '.join(texts)} is both a list and several flags: "
            f"write a list in one flag, the ranks of one run as in 0:2+1:3"
        )
    return tuple(parts) if len(texts) <= 1 else ("+".join(parts),)


def _lists_of(given: Given) -> dict[str, tuple[Any, ...]]:
    """The values of every flag that may have several; none where it is not given."""
    texts = {
        name: tuple(part.strip() for part in given[name].split(","))
        for name in (*TEXTS, *option_names())
        if given[name] is not None
    }
    numbers = {name: given[name] or () for name in NUMBERS}
    return {
        "strategy": split_specs(given["strategy"]),
        **numbers,
        **texts,
        "straggler": split_stragglers(given["straggler"]),
    }


def _specs_with_options(specs: Iterable[str], options: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Every spec with every combination of the options given as flags that it takes."""
    found: list[str] = []
    taken: set[str] = set()
    for spec in specs:
        strategy = make_strategy(spec)
        own = {part.partition("=")[0] for part in spec.partition(":")[2].split(",")}
        for name in options:
            if name in own:
                value = ",".join(options[name])
                raise BadInput(f"--{_flag(name)} {value} and --strategy {spec} both set {name}: give it once")
        fitting = {name: values for name, values in options.items() if name in options_of(type(strategy))}
        taken.update(fitting)
        for values in itertools.product(*fitting.values()):
            parts = [spec.rstrip(","), *(f"{name}={value}" for name, value in zip(fitting, values, strict=True))]
            head = parts[0] if ":" in parts[0] or len(parts) == 1 else f"{parts[0]}:{parts.pop(1)}"
            found.append(",".join([head, *parts[1:]]))
    for name in options.keys() - taken:
        owners = [cls.name for cls in STRATEGIES.values() if name in options_of(cls)]
        raise BadInput(
            f"--{_flag(name)} {','.join(options[name])} does not fit any of {', '.join(specs)}: "
            f"leave it out, or add {' or '.join(owners)}"
        )
    return tuple(found)


def _flag(name: str) -> str:
    return name.replace("_", "-")
