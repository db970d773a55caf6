"""The methods by name. A new one needs its file, its line here and its row in the test table."""

from collections.abc import Mapping
from typing import Any

from .. import options
from ..errors import BadInput, unknown
from ..strategy import Strategy
from .a2cid2 import A2CiD2
from .daso import DASO
from .ddp import DDP
from .diloco import DiLoCo
from .gossip import Gossip
from .lasgd import LASGD
from .local_sgd import LocalSGD
from .sgp import SGP

STRATEGIES: dict[str, type[Strategy]] = {
    cls.name: cls for cls in (Strategy, DDP, LocalSGD, DiLoCo, DASO, LASGD, Gossip, A2CiD2, SGP)
}


def make_strategy(spec: str, given: Mapping[str, Any] | None = None) -> Strategy:
    """`lasgd` or `lasgd:every=8,delay=2`, and further options by name."""
    name, _, rest = spec.partition(":")
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    cls = STRATEGIES[name]
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, text = part.partition("=")
        if not equals:
            raise BadInput(f"{part!r} in {spec!r} is not an option: write name=value, as in 'lasgd:every=8'")
        if key in values:
            raise BadInput(f"{key} is given twice in {spec!r}: give it once")
        values[key] = text
    for key, value in {**values, **(given or {})}.items():
        if key not in options.options_of(cls):
            takes = ", ".join(options.options_of(cls))
            owners = [other.name for other in STRATEGIES.values() if key in options.options_of(other)]
            if owners:
                raise BadInput(
                    f"{key}={value} does not fit {name}, which takes {takes}: "
                    f"leave it out, or choose {' or '.join(owners)}"
                )
            raise unknown(f"option of {name}", key, options.options_of(cls))
        values[key] = options.parse(cls, key, value) if isinstance(value, str) else value
    return cls(**values)
