"""What a user reads where a disk cannot be written: what, where, why and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def explained(what: str, path: Path, then: str) -> Iterator[None]:
    """An OSError from inside leaves as one that says what could not be written, where, why and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        trouble = OSError(f"{what} could not be written: {path}: {reason}; make room or make it writable; {then}")
        trouble.errno = error.errno
        raise trouble from error
