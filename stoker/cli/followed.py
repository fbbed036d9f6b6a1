"""How a command that goes on for long is followed: a table redrawn in place, or plain lines."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.live import Live


class Teller:
    """Tells what happens, a line each."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def says(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, markup=False)


class Lines(Teller):
    """And every few seconds how it stands."""

    every_s = 5.0

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to say how it stands, which it is not again for a while."""
        now = time.monotonic()
        if now - self._last < self.every_s:
            return False
        self._last = now
        return True

    def close(self) -> None:
        """Nothing is left open."""


class Screen(Teller):
    """And below that one table, of how it stands."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def draws(self, table: RenderableType) -> None:
        """In place of the last one."""
        self._live.update(table)

    def close(self) -> None:
        self._live.stop()
