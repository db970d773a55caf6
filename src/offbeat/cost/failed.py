"""Failed: what of a calibration could not be measured on this device, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..report.table import counted

LONGEST = 160  # characters of a reason


@dataclass(frozen=True)
class Failed:
    """In place of what would have been found."""

    why: str

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Its first line: what follows is often a trace of C++."""
        first = next(iter(str(error).strip().splitlines()), "")
        said = f"{type(error).__name__}: {first}" if first else type(error).__name__
        return cls(said if len(said) <= LONGEST else said[: LONGEST - 3] + "...")


def failures_sentence(failed: Mapping[str, str]) -> str:
    """One line on all of them, by what the first says."""
    name, why = next(iter(failed.items()))
    more = f", and {counted(len(failed) - 1, 'other')}" if len(failed) > 1 else ""
    return f"left out, as it failed here: {name} ({why}){more}"
