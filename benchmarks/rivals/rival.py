"""Rival: what every file here shares, the way its settings are given.

`train(model, optimizer, setup)` is the context around the loop; `train(every="8")` is the same with this setting.
Settings are keyword-only and have defaults; text is read as the type of the default, and a misspelt one is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any


def rival(body: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    context = contextmanager(body)
    defaults = {p.name: p.default for p in signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY}

    def train(*about: Any, **settings: Any) -> Any:
        unknown = settings.keys() - defaults.keys()
        if unknown:
            raise TypeError(f"no setting {', '.join(sorted(unknown))}: choose among {', '.join(defaults) or 'none'}")
        given = {name: type(defaults[name])(value) for name, value in settings.items()}
        return context(*about, **given) if about else partial(train, **given)

    return train
