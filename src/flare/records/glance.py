"""How far a run is, at a glance: its last lines, or some along the way, read without what lies between.

Each line that is read is checked against the check of the line before it, so that a line which was edited is found;
that all lines before are sound is not known without reading them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from flare.records.lines import read_line, told_check
from flare.records.regular_files import open_regular

MAX_LOOK_BYTES = 64 << 20
"""No more of a file is read at once, however long its lines may be."""
_BLOCK = 16 << 10
_MAX_LOOKED_AT = 40  # lines from the end, or from a place on the way, until one has what is looked for
_TEST = "test_accuracy"
_MAX_ROUND = 2**53  # of a run whose number of rounds any program can read


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
                if told.get(_TEST) is not None:
                    found[told["round"]] = float(told[_TEST])
                    break
    _, last = last_rounds(path, first_check, max_line_bytes)
    if last:
        found[last["round"]] = float(last[_TEST])
    return sorted(found.items())


def _backwards(file: BinaryIO, first_check: str | None, max_line_bytes: int) -> Iterator[dict[str, Any]]:
    """Whole lines from the last one on, as long as the line before each is in reach."""
    size = file.seek(0, os.SEEK_END)
    furthest = min(size, 2 * max_line_bytes + _BLOCK, MAX_LOOK_BYTES)  # a line, the one before, and one being written
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
            yield _sound(read_line(whole[place], None if first_check is None else before or ""))
            told += 1
        if begins:
            return
        if block >= furthest:
            if not told:
                raise ValueError(_too_long(block))
            return
        block = min(furthest, 4 * block)


def _onwards(file: BinaryIO, begin: int, first_check: str | None, max_line_bytes: int) -> Iterator[dict[str, Any]]:
    """The whole lines after a place of a file, a few of them."""
    longest = min(max_line_bytes, MAX_LOOK_BYTES)
    file.seek(begin)
    if begin and not _ends(file.readline(longest + 1), longest):  # the rest of a line
        return
    before = first_check if begin == 0 else None
    for looked_at in range(_MAX_LOOKED_AT):
        line = file.readline(longest + 1)
        if not _ends(line, longest):
            return
        if looked_at or begin == 0:
            yield _sound(read_line(line, None if first_check is None else before or ""))
        before = told_check(line)


def _ends(line: bytes, longest: int) -> bool:
    """Whether a line is whole, and not still being written; ValueError where it is longer than any."""
    if len(line) > longest:
        raise ValueError(_too_long(longest))
    return line.endswith(b"\n")


def _too_long(num_bytes: int) -> str:
    return f"its records are damaged: in {num_bytes} bytes of them no line ends, and no round of this run is so long"


def _sound(told: dict[str, Any]) -> dict[str, Any]:
    """A record whose numbers can be shown; ValueError where one of them is none."""
    index = told.get("round")
    if type(index) is not int or not 0 <= index < _MAX_ROUND:
        raise ValueError(f"its records are damaged: one says that it is round {_short(index)}")
    for name in ("clock_s", _TEST):
        value = told.get(name)
        if value is not None and not (type(value) in (int, float) and abs(value) <= sys.float_info.max):
            raise ValueError(f"its records are damaged: {name} of round {index} is {_short(value)}, which is no number")
    return told


def _short(value: Any) -> str:
    """A value in a message; of a huge number, of which the system would not write the digits, that it is one."""
    return "a number without end" if type(value) is int and abs(value) >= _MAX_ROUND else f"{value!r:.40}"
