"""rounds.jsonl: one JSON object a line, each line sealed so that damage and changes by hand show.

The last key of a line, "check", holds 16 hexadecimal digits: the SHA-256 of the digits of the line before, followed
by the line's own bytes up to the comma before "check". For the first line, the first 16 digits of the configuration's
SHA-256 stand for the line before. So a line that was edited, deleted, doubled, moved or brought from another run does
not fit to the line before it. A last line without its line end is one that is still being written.

The checks are no signature: who rewrites a line and all checks after it is not found out by them. Nor do they show that
lines are missing at the end. The manifest of a run that has ended does: it has the number of its rounds and the last
check. A run that is going on merely seems to have come less far.

Folders of format 1 have no "check"; of their lines only the round numbers can be checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from flare.records.old_format import FORMAT_1, renamed

_DIGITS = 16
_SHA256 = hashlib.sha256()  # of nothing: a copy of it is there sooner than a new one
_BEFORE_CHECK = b',"check":"'
_AFTER_CHECK = b'"}\n'
_SEAL = len(_BEFORE_CHECK) + _DIGITS + len(_AFTER_CHECK)
_TEXT_OR_NOT_FINITE = re.compile(r'("(?:[^"\\]|\\.)*")|NaN|-?Infinity')


@dataclass(frozen=True)
class Mark:
    """A place between two lines: so many rounds and bytes come before it, and the last of them has this check.

    `check` is None in a folder of format 1.
    """

    rounds: int
    num_bytes: int
    check: str | None


def first_mark(manifest: Mapping[str, Any]) -> Mark:
    """The place before the first line of a run: by its configuration, but in format 1."""
    return Mark(0, 0, None if manifest["format_version"] == FORMAT_1 else manifest["config_sha256"][:_DIGITS])


def max_line_bytes(num_devices: int) -> int:
    """No line is longer. A round writes some ten numbers, of 25 digits at most, for each device that sends."""
    return (16 << 20) + 1024 * num_devices


def to_json(record: dict[str, Any]) -> bytes:
    """A record as compact JSON: keys in their order, floats with all their digits, and null for what is no number.

    Arrays and scalars of numpy and torch are written as the numbers they hold.
    """
    text = _ENCODER.encode(record)
    if "NaN" in text or "Infinity" in text:  # JSON has neither
        text = _TEXT_OR_NOT_FINITE.sub(lambda found: found[1] or "null", text)
    return text.encode()


def seal(record: dict[str, Any], mark: Mark) -> tuple[bytes, Mark]:
    """The line of the round that comes after `mark`, and the mark after it.

    Raises ValueError where the record is of another round, or has a "check" of its own.
    """
    assert mark.check is not None
    if record.get("round") != mark.rounds:
        raise ValueError(
            f'{mark.rounds} rounds are recorded, and the next record says "round": {record.get("round")}; '
            f"append the record of round {mark.rounds}"
        )
    line, check = sealed(record, mark.check)
    return line, Mark(mark.rounds + 1, mark.num_bytes + len(line), check)


def sealed(record: dict[str, Any], before: str) -> tuple[bytes, str]:
    """The line of a record of any kind, which comes after the line with the check `before`, and its own check;
    `read_line` reads it. Raises ValueError where the record has a "check" of its own."""
    if "check" in record:
        raise ValueError('the key "check" is taken by the checksum of the line; record it under another name')
    body = to_json(record)[:-1]
    check = _check(before, body)
    return b"".join((body, _BEFORE_CHECK, check.encode(), _AFTER_CHECK)), check


def read_lines(file: BinaryIO, path: Path, mark: Mark, max_bytes: int) -> Iterator[tuple[dict[str, Any], Mark]]:
    """The records of a file one by one, each with the mark after it; `mark` is the one before the first.

    A last line that is still being written is passed over. Raises ValueError at the first line that is not as it was
    written; never more than `max_bytes` of it are in memory.
    """
    while line := file.readline(max_bytes + 1):
        if not line.endswith(b"\n") and len(line) <= max_bytes:
            return
        try:
            record, check = _opened(line, mark, max_bytes)
        except ValueError as error:
            raise ValueError(f"{path}: line {mark.rounds + 1} is damaged: {error}") from None
        mark = Mark(mark.rounds + 1, mark.num_bytes + len(line), check)
        yield record, mark


def _opened(line: bytes, mark: Mark, max_bytes: int) -> tuple[dict[str, Any], str | None]:
    """The record in a line and the line's check; ValueError that says what is wrong with the line."""
    if len(line) > max_bytes:
        raise ValueError(f"it is longer than {max_bytes} bytes, which no round of this run is")
    if mark.check is None:
        return renamed(_record(line, mark.rounds)), None
    body, seal = line[:-_SEAL], line[-_SEAL:]
    if not (seal.startswith(_BEFORE_CHECK) and seal.endswith(_AFTER_CHECK)):
        raise ValueError('it does not end in a "check" of its bytes, so that flare did not write it like this')
    check = _check(mark.check, body)
    if seal[len(_BEFORE_CHECK) : -len(_AFTER_CHECK)] != check.encode():
        _record(body + b"}", mark.rounds)  # may say more
        raise ValueError("its check is wrong: the line was edited, or is of another run")
    return _record(body + b"}", mark.rounds), check


def told_check(line: bytes) -> str | None:
    """The check that a whole line ends in, believed as it stands; None where it has none, as in format 1."""
    seal = line[-_SEAL:]
    if not (seal.startswith(_BEFORE_CHECK) and seal.endswith(_AFTER_CHECK)):
        return None
    return seal[len(_BEFORE_CHECK) : -len(_AFTER_CHECK)].decode("ascii", "replace")


def read_line(line: bytes, before: str | None) -> dict[str, Any]:
    """The record in a whole line somewhere in a file, where `before` is the check of the line before it (None: in
    format 1). ValueError where the line is not as it was written after that one."""
    if before is None:
        return renamed(_parsed(line))
    check, body = told_check(line), line[:-_SEAL]
    if check != _check(before, body):
        raise ValueError("its check is wrong: the line was edited, or is of another run")
    return _parsed(body + b"}")


def _record(content: bytes, index: int) -> dict[str, Any]:
    record = _parsed(content)
    if record.get("round") != index:
        raise ValueError(
            f"it is round {record.get('round')!r:.20} where round {index} must be: a line is missing, doubled or moved"
        )
    return record


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("it must be a JSON object")
    return record


def _check(before: str, body: bytes) -> str:
    digest = _SHA256.copy()
    digest.update(before.encode() + body)
    return digest.hexdigest()[:_DIGITS]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be recorded; record numbers, text, lists and arrays")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
