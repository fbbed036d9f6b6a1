"""`stoker COMMAND`: finds the command, and turns errors into words and exit codes."""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import os
import sys
import threading
import warnings
from contextlib import suppress
from types import ModuleType
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from stoker import __version__
from stoker.cli.commands import COMMANDS
from stoker.cli.wake import wake_gpu
from stoker.errors import StokerError

_ERRORS = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def run(arguments: list[str] | None = None) -> None:
    """`main`, as the process that it is. Python takes half a second to take torch apart at its end,
    so it is left as it is, once everybody who wants to do something at the end has done it."""
    try:
        main(arguments)
    except SystemExit as ended:
        others = [thread for thread in threading.enumerate() if not thread.daemon]
        if len(others) > 1 or not isinstance(ended.code, int):
            raise
        atexit._run_exitfuncs()
        code = ended.code
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # whoever read it has left
            code = code or 141
        except OSError as error:
            code = code or 1
            print(f"error: What was said could not be written: {error}.", file=sys.stderr)
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def main(arguments: list[str] | None = None) -> None:
    """The `stoker` command. Leaves with 0; 1 for a failure; 2 for a mistake in what was typed."""
    warnings.showwarning = _show_warning
    try:
        code = _dispatch(sys.argv[1:] if arguments is None else arguments)
    except StokerError as error:
        for line in getattr(error, "problems", [str(error)]):
            _ERRORS.print("[bold red]error:[/]", escape(line))
        for note in getattr(error, "__notes__", []):
            _ERRORS.print(escape(note))
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read us has left; say nothing more
        code = 141
    sys.exit(code)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _overview()
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"stoker {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(COMMANDS)}."
        _ERRORS.print(f"[bold red]error:[/] There is no command {escape(repr(name))}. {hint}")
        return 2
    command = COMMANDS[name]
    if command.trains:
        wake_gpu(rest)  # before torch is imported
    function = getattr(_import(command.module), command.function)
    return int(function(rest))


def _import(module: str) -> ModuleType:
    """A command's module and all it needs. What imports make is no garbage: it is not looked
    through while it grows, a twelfth of the time that torch takes, nor ever again."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def _overview() -> None:
    console = Console(highlight=False)
    console.print("[bold]stoker[/] trains reinforcement-learning agents and keeps the GPU fed.\n")
    for name, command in COMMANDS.items():
        console.print(
            f"  [bold]{name:<8}[/] {command.summary}\n           [dim]{command.examples[0]}[/]"
        )
    console.print("\n`stoker COMMAND --help` lists a command's flags.")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Stoker's own warnings and the user's, in a line; what torch says of its compiler is not."""
    if issubclass(category, UserWarning) and "/torch/_" not in filename:
        plain = Text.from_ansi(str(message)).plain  # Gymnasium colours its own, for a file as well
        _ERRORS.print("[bold yellow]warning:[/]", escape(plain))
