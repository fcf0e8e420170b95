"""How far a run is, at a glance: its last lines, or some along the way, read without what lies between.

Each line that is read is checked against the check of the line before it, so that a line which was edited is found;
that all lines before are sound is not known without reading them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from flare.records.lines import read_line, told_check
from flare.records.regular_files import open_regular

_BLOCK = 16 << 10
_MAX_LOOKED_AT = 40  # lines from the end, or from a place on the way, until one has what is looked for
_TEST = "test_accuracy"


def last_rounds(path: Path, first_check: str | None, max_line_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last whole line of a file of records, and the last one with a test, of the last few; {}: there is none.

    `first_check` stands for the check before the first line; None: in format 1. ValueError where they are damaged.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        last: dict[str, Any] = {}
        for looked_at, told in enumerate(_backwards(file, first_check, max_line_bytes)):
            last = last or told
            if told.get(_TEST) is not None:
                return last, told
            if looked_at >= _MAX_LOOKED_AT:
                break
        return last, {}


def some_tests(path: Path, first_check: str | None, max_line_bytes: int, points: int) -> list[tuple[int, float]]:
    """Rounds with their test accuracy, about so many, evenly along the bytes of a file of records, and the last one.

    ValueError where one that was read is damaged.
    """
    found: dict[int, float] = {}
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for number in range(points):
            begin = size * number // points
            for told in _onwards(file, begin, first_check, max_line_bytes):
                if told.get(_TEST) is not None and isinstance(told.get("round"), int):
                    found[told["round"]] = float(told[_TEST])
                    break
    _, last = last_rounds(path, first_check, max_line_bytes)
    if last:
        found[int(last["round"])] = float(last[_TEST])
    return sorted(found.items())


def _backwards(file: BinaryIO, first_check: str | None, max_line_bytes: int) -> Iterator[dict[str, Any]]:
    """Whole lines from the last one on, as long as the line before each is in reach."""
    size = file.seek(0, os.SEEK_END)
    block, told = min(size, _BLOCK), 0
    while True:
        file.seek(size - block)
        lines = file.read(block).splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # still being written
        begins = block == size
        whole = lines if begins else lines[1:]  # the first may be the end of one
        for place in range(len(whole) - 1 - told, -1 if begins else 0, -1):
            before = first_check if place == 0 else told_check(whole[place - 1])
            yield read_line(whole[place], None if first_check is None else before or "")
            told += 1
        if begins or block > _MAX_LOOKED_AT * max_line_bytes:
            return
        block = min(size, 4 * block)


def _onwards(file: BinaryIO, begin: int, first_check: str | None, max_line_bytes: int) -> Iterator[dict[str, Any]]:
    """The whole lines after a place of a file, a few of them."""
    file.seek(begin)
    if begin:
        file.readline(max_line_bytes)  # the rest of a line
    before = first_check if begin == 0 else None
    for looked_at in range(_MAX_LOOKED_AT):
        line = file.readline(max_line_bytes + 1)
        if not line.endswith(b"\n"):
            return
        if looked_at or begin == 0:
            yield read_line(line, None if first_check is None else before or "")
        before = told_check(line)
