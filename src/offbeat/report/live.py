"""Live: a display on a terminal that gives the cursor back, whatever happens."""

import sys
from collections.abc import Callable

from rich import live
from rich.console import Console, RenderableType


class Live(live.Live):
    def stop(self) -> None:
        """A second Ctrl-C may come meanwhile, and must not leave the terminal without its cursor."""
        try:
            super().stop()
        finally:
            self.console.show_cursor(True)


def live_on(
    console: Console, render: Callable[[], RenderableType], *, times_per_second: float = 4, transient: bool = False
) -> Live | None:
    """A display that is not started yet; None where the console is no terminal on which one could be drawn."""
    # FORCE_COLOR makes rich take a file for a terminal, hence the question to the file itself.
    if not console.file.isatty() or console.is_dumb_terminal:
        return None
    return Live(
        get_renderable=render,
        console=console,
        refresh_per_second=times_per_second,
        transient=transient,
        # Prints to a terminal go above the display; those to a pipe or file must stay what they are.
        redirect_stdout=sys.stdout.isatty(),
    )
