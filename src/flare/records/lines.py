"""One JSON object a line: written so that a reader in any language understands it, read without holding it all."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TEXT_OR_NOT_FINITE = re.compile(r'("(?:[^"\\]|\\.)*")|NaN|-?Infinity')


def to_line(record: dict[str, Any]) -> bytes:
    """A record as one line: keys in their order, floats with all their digits, and null for what is no number.

    Arrays and scalars of numpy and torch are written as the numbers they hold.
    """
    line = _ENCODER.encode(record)
    if "NaN" in line or "Infinity" in line:  # JSON has neither
        line = _TEXT_OR_NOT_FINITE.sub(lambda found: found[1] or "null", line)
    return line.encode() + b"\n"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file one by one; a last line that is still being written is passed over."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is damaged: {error}") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}: line {number} is damaged: it must be a JSON object")
            yield record


def measure(path: Path, most: int | None = None) -> tuple[int, int]:
    """How many whole lines a file begins with, `most` at most, and of how many bytes they are."""
    lines = num_bytes = 0
    with path.open("rb") as file:
        for line in itertools.islice(file, most):
            if line.endswith(b"\n"):
                lines += 1
                num_bytes += len(line)
    return lines, num_bytes


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be recorded; record numbers, text, lists and arrays")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
