"""Recorded cells for tests: files that are written, and files that are refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from flare.wireless.trace import read_trace


def write_csv(folder: Path, text: str, name: str = "trace.csv", *, encoding: str = "utf-8") -> Path:
    """A CSV file with this text."""
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def refused(path: Path, says: str) -> None:
    """Check that a file is refused at once, for little memory, with a short error that names it and matches `says`."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=says) as raised:
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert str(raised.value).startswith(str(path))
    assert len(str(raised.value)) < len(str(path)) + 400
