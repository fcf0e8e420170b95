"""Recorded cells: gains, processor speeds and local steps for each round and device, from a CSV or NPZ file.

CSV   columns round, device (both counted from 0, each pair once, in any order) and some of gain_db, cpu_hz, tau.
NPZ   some of the arrays gain_db, cpu_hz, tau, each of shape (rounds, devices).
"""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flare.reading import open_small
from flare.types import Floats
from flare.wireless.npz import read_arrays

MAX_CSV_BYTES = 1 << 28
"""Some eight million rows; more of them belong into an NPZ file."""

Allowed = Callable[[Floats], NDArray[np.bool_]]

_QUANTITIES: dict[str, tuple[Allowed, str]] = {
    "gain_db": (lambda db: np.abs(db) <= 1000.0, "a power gain in dB, between -1000 and 1000"),
    "cpu_hz": (lambda hz: (hz >= 1.0) & (hz <= 1e15), "a speed in Hz, between 1 and 1e15"),
    "tau": (
        lambda tau: (tau >= 1.0) & (tau <= 1e9) & (tau == np.rint(tau)),
        "a whole number of local steps, between 1 and 1e9",
    ),
}
_INDEX: tuple[Allowed, str] = (
    lambda index: (index >= 0.0) & (index < 2.0**53) & (index == np.rint(index)),
    "a whole number, counted from 0",
)
_COLUMNS = {"round": _INDEX, "device": _INDEX, **_QUANTITIES}


@dataclass(frozen=True, eq=False)
class Trace:
    """What a file says: some of gain_db, cpu_hz and tau, each of shape (rounds, devices)."""

    path: Path
    num_rounds: int
    num_devices: int
    values: dict[str, Floats]

    def round(self, index: int, *, repeat: bool) -> dict[str, Floats]:
        """The recorded quantities of one round, each of shape (devices,); with `repeat`, the end meets the start."""
        if index >= self.num_rounds and not repeat:
            raise ValueError(
                f"{self.path}: round {index} is not in the trace, which has rounds 0 to {self.num_rounds - 1}; "
                "run fewer rounds, or set wireless.trace_repeat = true to start it again"
            )
        return {name: values[index % self.num_rounds] for name, values in self.values.items()}


def read_trace(path: str | Path) -> Trace:
    """Read a trace; the ending of its name, .csv or .npz, says which kind it is.

    Raises ValueError with file, line and column (CSV) or array and index (NPZ), why, and what would be right.
    """
    path = Path(path)
    readers = {".csv": _read_csv, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: a trace is a CSV or NPZ file; its name must end in .csv or .npz")
    values = readers[path.suffix.lower()](path)
    for each in values.values():
        each.setflags(write=False)  # rounds are handed out as views
    num_rounds, num_devices = next(iter(values.values())).shape
    return Trace(path, num_rounds, num_devices, values)


def _read_csv(path: Path) -> dict[str, Floats]:
    header, table, lines = _csv_table(path)
    for name, column in zip(header, table.T, strict=True):
        allowed, words = _COLUMNS[name]
        bad = np.flatnonzero(~allowed(column))
        if bad.size:
            row = bad[0]
            raise ValueError(f"{path}, line {lines[row]}, column {name}: {column[row]:g} is not {words}")
    index = table[:, [header.index("round"), header.index("device")]].astype(np.int64)
    order, shape = _csv_order(path, index, lines)
    return {
        name: table[order, header.index(name)].reshape(shape) for name in _QUANTITIES if name in header
    }  # (rounds, devices)


def _csv_table(path: Path) -> tuple[list[str], Floats, NDArray[np.int64]]:
    """The names of the columns, the numbers below them, shape (rows, columns), and the line of each row."""
    numbers, lines = array("d"), array("q")
    with open_small(path, MAX_CSV_BYTES) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            header = [name.strip() for name in next((row for row in reader if row), [])]
            _check_header(path, reader.line_num, header)
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: has {len(row)} cells, the header has {len(header)}; "
                        "give one for each column"
                    )
                try:
                    numbers.extend(map(float, row))
                except ValueError:
                    raise _not_a_number(path, reader.line_num, header, row) from None
                lines.append(reader.line_num)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: is not valid CSV ({error})") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is not UTF-8 text ({error}); save it as CSV in UTF-8") from None
    if not lines:
        raise ValueError(f"{path}: has a header and no rows; give one row for each round and device")
    return header, np.array(numbers).reshape(-1, len(header)), np.array(lines)


def _check_header(path: Path, line: int, header: list[str]) -> None:
    known = ", ".join(_COLUMNS)
    if not header:
        raise ValueError(f"{path}: is empty; its first line must name the columns: {known}")
    for name in header:
        if name not in _COLUMNS:
            raise ValueError(f"{path}, line {line}: unknown column '{name}'; the columns are {known}")
        if header.count(name) > 1:
            raise ValueError(f"{path}, line {line}: column {name} is there twice; give it once")
    for name in ("round", "device"):
        if name not in header:
            raise ValueError(f"{path}, line {line}: column {name} is missing; add it, counted from 0")
    if not set(header) & set(_QUANTITIES):
        raise ValueError(f"{path}, line {line}: no column to read; give at least one of {', '.join(_QUANTITIES)}")


def _not_a_number(path: Path, line: int, header: list[str], row: list[str]) -> ValueError:
    for name, cell in zip(header, row, strict=True):
        try:
            float(cell)
        except ValueError:
            what = f"'{cell}'" if cell.strip() else "an empty cell"
            return ValueError(f"{path}, line {line}, column {name}: {what} is not {_COLUMNS[name][1]}")
    raise AssertionError("every cell is a number")


def _csv_order(
    path: Path, index: NDArray[np.int64], lines: NDArray[np.int64]
) -> tuple[NDArray[np.intp], tuple[int, int]]:
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


def _read_npz(path: Path) -> dict[str, Floats]:
    values = read_arrays(path, list(_QUANTITIES))
    if not values:
        raise ValueError(f"{path}: holds no array; give at least one of {', '.join(_QUANTITIES)}")
    (first, one), *others = values.items()
    for name, other in others:
        if other.shape != one.shape:
            raise ValueError(
                f"{path}, array {name}: has shape {other.shape}, array {first} {one.shape}; "
                "all must have the same shape (rounds, devices)"
            )
    for name, array_ in values.items():
        allowed, words = _QUANTITIES[name]
        bad = np.argwhere(~allowed(array_))
        if len(bad):
            index, device = bad[0]
            raise ValueError(
                f"{path}, array {name}, index [{index}, {device}]: {array_[index, device]:g} is not {words}"
            )
    return values
