"""Live: a display on a terminal that gives the cursor back, whatever happens."""

from rich import live


class Live(live.Live):
    def stop(self) -> None:
        """A second Ctrl-C may come meanwhile, and must not leave the terminal without its cursor."""
        try:
            super().stop()
        finally:
            self.console.show_cursor(True)
