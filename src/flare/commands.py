"""Programs of the system (ip, tc, openssl), run to their end: what they said, or one error that says what is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

_LONGEST = 300  # characters of what a program says of its failure: the last ones


class CommandError(OSError):
    """A program ran and failed; the text is what it said of that."""


def run_command(command: Sequence[str], *, needs: str, timeout_s: float) -> str:
    """Run a program, and return what it wrote. OSError where it is not here (`needs` says what to install), does not
    end in time or may not be run; `CommandError` where it ends with an error."""
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError:
        raise OSError(f"the program {command[0]} is not here; install {needs}") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command)[:_LONGEST]}: no answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise CommandError(" ".join(done.stderr.split())[-_LONGEST:] or f"exit code {done.returncode}")
    return done.stdout


IPROUTE2 = "iproute2 (Linux only)"
"""What ip and tc are parts of."""
