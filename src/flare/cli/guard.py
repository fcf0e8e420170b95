"""What a user sees when something goes wrong: one clear line, and an exit code for scripts."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from flare.cli.console import say
from flare.plugins import loaded_files, told_as_plugins
from flare.text import one_line

P = ParamSpec("P")

BAD_INPUT = 2
FAULT = 1
INTERRUPTED = 130


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command, ending with one line on standard error instead of a traceback (FLARE_DEBUG=1 shows it).

    Bad input (ValueError), files that cannot be used (OSError) and errors of a plugin's own end with exit code 2,
    Ctrl-C with 130, a fault of the program with 1. A reader of our output that has seen enough (`| head`) is no error.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        for output in (sys.stdout, sys.stderr):
            if isinstance(output, io.TextIOWrapper):
                output.reconfigure(errors="replace")  # a terminal without µ shows ?, not an error
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_quietly()
        except SystemExit as end:
            own = told_as_plugins(end)
            if own is not None:
                _end(f"error: {own}", BAD_INPUT)
            if not isinstance(end.__context__, BrokenPipeError):  # how rich ends when its reader has gone
                raise
            _leave_quietly()
        except KeyboardInterrupt:
            _end("interrupted", INTERRUPTED)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            said = told_as_plugins(error) or error
            if isinstance(said, ValueError | OSError):
                _end(f"error: {said}", BAD_INPUT)
            whose = ", or of what a plugin gave it: " + ", ".join(loaded_files()) if loaded_files() else ""
            fault = f"a fault of flare{whose}; FLARE_DEBUG=1 shows where; please report it"
            _end(f"error: unexpected {type(error).__name__}: {error} ({fault})", FAULT)
        except BaseException as error:  # one of a plugin's own making
            if (own := told_as_plugins(error)) is None:
                raise
            _end(f"error: {own}", BAD_INPUT)

    return run


def _leave_quietly() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere


def _end(message: str, code: int) -> None:
    if os.environ.get("FLARE_DEBUG"):
        raise
    say(one_line(message), stderr=True)
    raise typer.Exit(code) from None
