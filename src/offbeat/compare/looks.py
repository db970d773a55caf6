"""Looks: the names and colours by which a contest's strategies and links are known, the same in every chart."""

from collections.abc import Sequence
from pathlib import PurePath

from ..report.table import counted
from .contest import ALONE

PALETTE = (
    "#2f7fb8", "#e08a1e", "#d64550", "#3a9d6e", "#8a5fbf", "#a67c52", "#d779b4", "#93982a", "#2aa5b5", "#6f7fd0",
)  # fmt: skip
ALONE_COLOUR = "#8a949e"


def labels_of(specs: Sequence[str]) -> list[str]:
    """A rival's file without its folders, where that says it all."""
    short = [PurePath(spec).name if ".py:" in spec else spec for spec in specs]
    return [label if short.count(label) == 1 else spec for spec, label in zip(specs, short, strict=True)]


def colours_of(specs: Sequence[str]) -> list[str]:
    """The same in every chart; grey for the one that all are measured by."""
    others = [spec for spec in specs if spec != ALONE]
    return [ALONE_COLOUR if spec == ALONE else PALETTE[others.index(spec) % len(PALETTE)] for spec in specs]


def place_name(link: str | None, workers: int) -> str:
    return f"{counted(workers, 'worker')}, {link_name(link)}"


def link_name(link: str | None) -> str:
    return link or "loopback (not shaped)"
