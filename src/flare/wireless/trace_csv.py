"""Recorded cells from CSV files, in three forms that people have.

long      columns round, device (both counted from 0, each pair once, in any order) and some of gain_db, cpu_hz, tau, h
wide      a row a round, a column a device: gain_db_0, gain_db_1, ...; also cpu_hz_0, tau_0, h_0, ... beside them, and
          a column round, where the rows are not in order
matrix    the same without a head, as MATLAB's writematrix makes it; the end of the file's name says what the numbers
          are: campus_gain_db.csv, campus_h.csv

A coefficient h is written as MATLAB, numpy or pandas write it: 1e-5+2e-6i, (1e-5+2e-6j), -3e-6i, 4e-5.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from flare.reading import open_small
from flare.types import Floats
from flare.wireless.recorded import COEFFICIENTS, QUANTITIES, Complexes, Recorded, known_name

MAX_CSV_BYTES = 1 << 28
"""Some eight million rows of the long form; more of them belong into an NPZ file."""
MAX_LINE = 1 << 24
"""Characters of a line: a million devices in the wide form."""

_INDEX = "a whole number, counted from 0"
_COLUMNS = ("round", "device", *QUANTITIES)
_WIDE = re.compile(r"(.+)_(\d{1,9})\Z")


def read_csv(path: Path) -> Recorded:
    """The recorded quantities in the file; ValueError with file, line and column where something is wrong."""
    with open_small(path, MAX_CSV_BYTES) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
        rows = _rows(path, file)
        line, first = next(rows, (0, []))
        if not first:
            raise ValueError(f"{path}: is empty; its first line must name the columns: {', '.join(_COLUMNS)}")
        if all(_is_number(cell) for cell in first):
            quantity = _quantity_of_name(path, line, first)
            header = [f"{quantity}_{device}" for device in range(len(first))]
            return _wide(_Table.read(path, header, itertools.chain([(line, first)], rows)), named=False)
        header = [_column(name.strip()) for name in first]
        if any(_wide_column(name) for name in header) and not set(header) & set(_COLUMNS[1:]):
            _check_wide_header(path, line, header)
            return _wide(_Table.read(path, header, rows), named=True)
        _check_long_header(path, line, header)
        return _long(_Table.read(path, header, rows))


def _rows(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with its line."""
    reader = csv.reader(_lines(path, file))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: is not valid CSV ({error})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); save it as CSV in UTF-8") from None


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise ValueError(f"{path}, line {number}: has more than {MAX_LINE} characters; store it as NPZ")
        if not line:
            return
        yield line


# --- heads ------------------------------------------------------------------------------------------------------------


def _column(name: str) -> str:
    """The name of a column with `H`, alone or of a device, as `h`."""
    match = _WIDE.match(name)
    if match is not None and known_name(match[1]) is not None:
        return f"{known_name(match[1])}_{int(match[2])}"
    return known_name(name) or name


def _wide_column(name: str) -> tuple[str, int] | None:
    """Quantity and device of a column in the wide form; None where it is none."""
    match = _WIDE.match(name)
    return (match[1], int(match[2])) if match is not None and match[1] in QUANTITIES else None


def _check_long_header(path: Path, line: int, header: list[str]) -> None:
    for name in header:
        if name not in _COLUMNS:
            wide = ", or gain_db_0, gain_db_1, ... with a row a round"
            raise ValueError(
                f"{path}, line {line}: unknown column '{name:.80}'; the columns are {', '.join(_COLUMNS)}{wide}"
            )
    _refuse_twice(path, line, header)
    for name in ("round", "device"):
        if name not in header:
            raise ValueError(f"{path}, line {line}: column {name} is missing; add it, counted from 0")
    if not set(header) & set(QUANTITIES):
        raise ValueError(f"{path}, line {line}: no column to read; give at least one of {', '.join(QUANTITIES)}")


def _check_wide_header(path: Path, line: int, header: list[str]) -> None:
    devices: dict[str, set[int]] = {}
    for name in header:
        column = _wide_column(name)
        if column is not None:
            devices.setdefault(column[0], set()).add(column[1])
        elif name != "round":
            raise ValueError(
                f"{path}, line {line}: unknown column '{name:.80}'; beside {next(filter(_wide_column, header))} there "
                "may be a column for each device and quantity, such as gain_db_1, and a column round"
            )
    _refuse_twice(path, line, header)
    num_devices = max(max(each) for each in devices.values()) + 1
    for quantity, there in devices.items():
        if len(there) < num_devices:
            missing = next(device for device in range(num_devices) if device not in there)
            raise ValueError(
                f"{path}, line {line}: column {quantity}_{missing} is missing; devices are counted from 0, and the "
                f"last is {num_devices - 1}"
            )


def _refuse_twice(path: Path, line: int, header: list[str]) -> None:
    seen: set[str] = set()
    for name in header:
        if name in seen:
            raise ValueError(f"{path}, line {line}: column {name} is there twice; give it once")
        seen.add(name)


def _quantity_of_name(path: Path, line: int, first: list[str]) -> str:
    """What a matrix without a head holds, by the end of the file's name."""
    if len(first) > 1 and [cell.strip() for cell in first] == [str(device) for device in range(len(first))]:
        raise ValueError(
            f"{path}, line {line}: reads 0, 1, 2, ..., which seem to be names of columns; name them gain_db_0, "
            "gain_db_1, ..., or leave the line out"
        )
    stem = path.stem.lower()
    for quantity in QUANTITIES:
        if stem == quantity or stem.endswith((f"_{quantity}", f"-{quantity}")):
            return quantity
    raise ValueError(
        f"{path}, line {line}: has numbers where the columns should be named; write gain_db_0,gain_db_1,... above, "
        f"or end the file's name in what they are, such as {path.stem}_gain_db.csv or {path.stem}_h.csv"
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


def _complex(cell: str) -> complex:
    """A coefficient as MATLAB (1+2i), numpy ((1+2j), and 1+-2j) or a person (1 + 2i) writes it."""
    text = "".join(cell.split()).replace("+-", "-")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return complex(text[:-1] + "j" if text.endswith(("i", "I")) else text)


def _is_number(cell: str) -> bool:
    try:
        _complex(cell)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class _Table:
    """The numbers of a file, shape (rows, columns), and the line of each row."""

    path: Path
    header: list[str]
    numbers: Floats | Complexes
    lines: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path, header: list[str], rows: Iterator[tuple[int, list[str]]]) -> _Table:
        """All rows; ValueError with line and column where a cell is no number."""
        readers: list[Callable[[str], complex]] = [
            _complex if _quantity(name) == COEFFICIENTS else float for name in header
        ]
        with_complex = _complex in readers
        numbers, lines = array("d"), array("q")
        for line, row in rows:
            if len(row) != len(header):
                raise ValueError(
                    f"{path}, line {line}: has {len(row)} cells, the first line has {len(header)}; "
                    "give one for each column"
                )
            try:
                if with_complex:
                    for read, cell in zip(readers, row, strict=True):
                        number = complex(read(cell))
                        numbers.extend((number.real, number.imag))
                else:
                    numbers.extend(map(float, row))
            except ValueError:
                raise _not_a_number(path, line, header, readers, row) from None
            lines.append(line)
        if not lines:
            raise ValueError(f"{path}: has a header and no rows; give one row for each round and device")
        table = np.array(numbers).view(np.complex128) if with_complex else np.array(numbers)
        return cls(path, header, table.reshape(-1, len(header)), np.array(lines))

    def columns(self, names: list[str]) -> Floats | Complexes:
        """Some columns, shape (rows, names); real unless they are coefficients."""
        position = {name: at for at, name in enumerate(self.header)}
        chosen = self.numbers[:, [position[name] for name in names]]
        return chosen if _quantity(names[0]) == COEFFICIENTS else chosen.real

    def whole(self, name: str) -> NDArray[np.int64]:
        """A column of whole numbers, counted from 0."""
        column = self.columns([name])[:, 0].real
        wrong = np.flatnonzero(~((column >= 0.0) & (column < 2.0**53) & (column == np.rint(column))))
        if wrong.size:
            line = self.lines[wrong[0]]
            raise ValueError(f"{self.path}, line {line}, column {name}: {column[wrong[0]]:g} is not {_INDEX}")
        return column.astype(np.int64)


def _quantity(column: str) -> str:
    wide = _wide_column(column)
    return column if wide is None else wide[0]


def _not_a_number(
    path: Path, line: int, header: list[str], readers: list[Callable[[str], complex]], row: list[str]
) -> ValueError:
    for name, read, cell in zip(header, readers, row, strict=True):
        try:
            read(cell)
        except ValueError:
            what = f"'{cell:.80}'" if cell.strip() else "an empty cell"
            words = "a coefficient such as 1e-5+2e-6i" if read is _complex else _words(name)
            return ValueError(f"{path}, line {line}, column {name}: {what} is not {words}")
    raise AssertionError("every cell is a number")


def _words(column: str) -> str:
    quantity = _quantity(column)
    return QUANTITIES[quantity][1] if quantity in QUANTITIES else _INDEX


# --- the forms --------------------------------------------------------------------------------------------------------


def _wide(table: _Table, *, named: bool) -> Recorded:
    order = np.arange(len(table.lines))
    if "round" in table.header:
        rounds = table.whole("round")
        order = np.argsort(rounds, kind="stable")
        wrong = np.flatnonzero(rounds[order] != np.arange(len(rounds)))
        if wrong.size:
            raise ValueError(
                f"{table.path}, line {table.lines[order[wrong[0]]]}, column round: {rounds[order[wrong[0]]]} stands "
                f"where round {wrong[0]} should; give each of the rounds 0 to {len(rounds) - 1} one row"
            )
    quantities = list(dict.fromkeys(_quantity(name) for name in table.header if name != "round"))
    num_devices = sum(_quantity(name) == quantities[0] for name in table.header)
    values = {
        quantity: table.columns([f"{quantity}_{device}" for device in range(num_devices)])[order]
        for quantity in quantities
    }

    def place(name: str, index: int, device: int) -> str:
        column = f"column {name}_{device}" if named else f"column {device + 1}"
        return f"line {table.lines[order[index]]}, {column} (round {index}, device {device})"

    return Recorded(values, place)


def _long(table: _Table) -> Recorded:
    index = np.stack([table.whole("round"), table.whole("device")], axis=1)
    order, (num_rounds, num_devices) = _order(table.path, index, table.lines)
    values = {
        name: table.columns([name])[order, 0].reshape(num_rounds, num_devices)
        for name in QUANTITIES
        if name in table.header
    }
    return Recorded(
        values, lambda name, index, device: f"line {table.lines[order[index * num_devices + device]]}, column {name}"
    )


def _order(path: Path, index: NDArray[np.int64], lines: NDArray[np.int64]) -> tuple[NDArray[np.intp], tuple[int, int]]:
    """The order that sorts the rows by round, then device, and the shape (rounds, devices); each pair must be there."""
    num_rounds, num_devices = (int(last) + 1 for last in index.max(axis=0))
    order = np.lexsort((index[:, 1], index[:, 0]))  # stable: of two equal pairs, the upper line comes first
    ordered = index[order]
    twice = np.flatnonzero((ordered[1:] == ordered[:-1]).all(axis=1))
    if twice.size:
        first, second = order[twice[0]], order[twice[0] + 1]
        raise ValueError(
            f"{path}, line {lines[second]}, columns round, device: round {index[second, 0]}, device "
            f"{index[second, 1]} is on line {lines[first]} already; give each pair once"
        )
    expected = np.stack(np.divmod(np.arange(len(index)), num_devices), axis=1)  # (rows, round and device)
    differs = np.flatnonzero((ordered != expected).any(axis=1))
    present = int(differs[0]) if differs.size else len(index)
    if present < num_rounds * num_devices:
        missing_round, missing_device = divmod(present, num_devices)
        raise ValueError(
            f"{path}, line {lines[-1]} is the last, and there is none for round {missing_round}, device "
            f"{missing_device}; columns round, device must hold each pair of rounds 0 to {num_rounds - 1} and devices "
            f"0 to {num_devices - 1}"
        )
    return order, (num_rounds, num_devices)
