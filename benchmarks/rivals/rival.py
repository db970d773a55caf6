"""Rival: what every file here shares, the way its settings are given.

`train(model, optimizer, setup)` is the context around the loop; `train(every="8")` is the same with this setting.
Settings are keyword-only and have defaults; text is read as the type of the default, and what is misspelt, or none of
the values of a `Literal`, is refused.
Every rival has `trail` as well, as our strategies do: the mean of its weights over that share of the latest steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any, Literal, get_args, get_origin

from offbeat.trail import Trail

KINDS = {int: "a whole number", float: "a number", str: "text"}


class Followed:
    """A rival's optimizer, with a trail of the model behind it."""

    def __init__(self, stepper: Any, model: Any, trail: Trail) -> None:
        self._stepper, self._model, self._trail = stepper, model, trail
        self.zero_grad = stepper.zero_grad

    def step(self) -> None:
        self._stepper.step()
        self._trail.add_step([*self._floats().values()])  # asked for anew: some rivals replace them

    def handed_in(self) -> dict[str, Any]:
        weights = self._floats()
        return dict(zip(weights, self._trail.means, strict=True)) if self._trail.means else weights

    def _floats(self) -> dict[str, Any]:
        return {name: x for name, x in self._model.state_dict().items() if x.is_floating_point()}


def rival(body: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    own = contextmanager(body)
    defaults = {p.name: p.default for p in signature(body).parameters.values() if p.kind is p.KEYWORD_ONLY}
    defaults["trail"] = 0.0
    choices = {name: get_args(kind) for name, kind in body.__annotations__.items() if get_origin(kind) is Literal}

    @contextmanager
    def context(model: Any, optimizer: Any, setup: Any, *, trail: float = 0.0, **settings: Any) -> Iterator[Any]:
        with own(model, optimizer, setup, **settings) as (module, stepper):
            if trail:
                stepper = Followed(stepper, model, Trail(trail))
                setup.hands_in.append(stepper.handed_in)
            yield module, stepper

    def read(name: str, text: Any) -> Any:
        if name not in defaults:
            raise ValueError(f"there is no setting {name!r}: choose among {', '.join(defaults)}")
        known, kind = choices.get(name, ()), type(defaults[name])
        if known and text not in known:
            raise ValueError(f"there is no {name} {text!r}: choose among {', '.join(known)}")
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"{name}={text} must be {KINDS[kind]}, such as {defaults[name]}") from None

    def train(*about: Any, **settings: Any) -> Any:
        given = {name: read(name, text) for name, text in settings.items()}
        if given.get("trail"):
            Trail(given["trail"])  # refused now if it does not fit
        return context(*about, **given) if about else partial(train, **given)

    return train
