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
from flare.plugins import told_as_plugins
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
        except SystemExit as end:  # how rich ends when its reader has gone
            if not isinstance(end.__context__, BrokenPipeError):
                raise
            _leave_quietly()
        except KeyboardInterrupt:
            _end("interrupted", INTERRUPTED)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            own = told_as_plugins(error) or error
            if isinstance(own, ValueError | OSError):
                _end(f"error: {own}", BAD_INPUT)
            _end(f"error: unexpected {type(error).__name__}: {error} (a fault of flare; please report it)", FAULT)

    return run


def _leave_quietly() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere


def _end(message: str, code: int) -> None:
    if os.environ.get("FLARE_DEBUG"):
        raise
    say(one_line(message), stderr=True)
    raise typer.Exit(code) from None
