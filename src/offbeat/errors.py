"""What can go wrong, by name. Every message is one sentence: the value, the rule, the remedy."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class OffbeatError(Exception):
    """Any error that Offbeat raises on purpose."""


class BadInput(OffbeatError, ValueError):
    """The user gave something that cannot work; the command line prints it and exits with status 2."""


class LostPeer(OffbeatError):
    """A peer died, or made no progress for too long. An exchange without it may go on; a collective cannot."""

    def __init__(self, peer: int | None, reason: str) -> None:
        super().__init__(f"{'a rank' if peer is None else f'rank {peer}'} is lost: {reason}")
        self.peer = peer  # None: a collective failed, and does not tell because of whom


class Stopped(OffbeatError):
    """Raised inside a background process, at its pending pair or sleep, when it is asked to stop."""


def torch_story(error: Exception) -> str:
    """What torch.distributed says went wrong, in one line, without source files and good wishes."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.split(r"\. This |\. Is there |, remote=| GLHF", re.sub(r"^(\[[^\]]*\.\w+:\d+\]\s*)+", "", lines[0]))[
        0
    ].rstrip(" .!")


def unknown(what: str, given: str, known: Iterable[str]) -> BadInput:
    """`unknown("strategy", "lasdg", [...])`: names the value, suggests the nearest, lists the rest."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"there is no {what} {given!r}: {hint}choose one of {', '.join(names) or 'none'}")
