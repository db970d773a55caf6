"""Rates as people write them."""

import re
from math import isfinite

from ..errors import BadInput

_RATE = re.compile(r"(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?:(?P<prefix>[kmgt]?)(?P<unit>bit|b/s))?", re.IGNORECASE)
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def parse_rate(text: str) -> float:
    """Bytes per second: `100mbit` (kbit, mbit, gbit, tbit), `12MB/s` (kB/s, MB/s, GB/s). A unit must be there."""
    found = _RATE.fullmatch(text.strip())
    try:
        if found is None or not found["unit"] or found["unit"].startswith("b/"):  # Mb/s could be either
            raise ValueError
        rate = float(found["number"]) * _PREFIX[(found["prefix"] or "").lower()]
    except ValueError:
        rate = 0.0
    else:
        rate /= 8 if found["unit"].lower() == "bit" else 1
    if not (isfinite(rate) and rate > 0):
        raise BadInput(
            f"{text!r} is not a rate: give a positive number with kbit, mbit, gbit, kB/s, MB/s or GB/s, "
            "such as 100mbit or 12MB/s"
        )
    return rate
