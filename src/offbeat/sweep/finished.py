"""Finished: one run of a sweep that is over, with its curve."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import BadInput
from ..sim.curve import Point
from .setting import Setting


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What came of a setting. None: only the clock ran, or the notion does not apply."""

    setting: Setting
    accuracy: float | None  # of the averaged model at the end, on all test samples
    loss: float | None  # likewise
    seconds: float  # virtual
    steps_per_second: float  # virtual, mean over workers
    computing_share: float  # of the time, mean over workers
    waiting_share: float
    bytes_sent: int  # all workers
    consensus_distance: float | None  # after the last step, before the final average
    curve: tuple[Point, ...]
    real_seconds: float  # that it took to simulate

    @property
    def seconds_to_target(self) -> float | None:
        """Virtual seconds until a point of the curve has the setting's target accuracy; None: not reached."""
        target = self.setting.target_accuracy
        if target is None:
            return None
        moments = [*((point.seconds, point.accuracy) for point in self.curve), (self.seconds, self.accuracy)]
        return next((seconds for seconds, accuracy in moments if accuracy is not None and accuracy >= target), None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **own,
            "setting": self.setting.as_dict(),
            "seconds_to_target": self.seconds_to_target,
            "curve": [{field.name: getattr(point, field.name) for field in fields(point)} for point in self.curve],
        }

    @classmethod
    def from_dict(cls, setting: Setting, record: Mapping[str, Any]) -> "Finished":
        """What `as_dict` wrote, read for a setting that is the same run."""
        try:
            own = {field.name: _number(record[field.name]) for field in fields(cls) if field.name not in _NO_NUMBERS}
            names = [field.name for field in fields(Point)]
            curve = tuple(Point(**{name: _number(point[name]) for name in names}) for point in record["curve"])
            return cls(setting=setting, curve=curve, **own)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"a run of an earlier sweep cannot be read ({type(error).__name__}: {error}): "
                f"it was written by another version, so give --out another folder"
            ) from None


_NO_NUMBERS = ("setting", "curve")


def _number(value: Any) -> Any:
    """JSON has no NaN and no infinity: they come as strings."""
    return float(value) if isinstance(value, str) else value
