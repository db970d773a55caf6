"""Parts: what every source returns."""

from dataclasses import dataclass

from ..task import Samples


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The train and test samples, and how many classes (or characters) the targets count."""

    train: Samples
    test: Samples
    classes: int
