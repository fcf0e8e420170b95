"""A table of devices from a CSV file.

Each row is a device, each column a quantity in the unit of its name. `tau` is always there. Computing is given as
`compute_s`, or as `cpu_hz` with `cycles_per_sample`; the radio as `snr_hz`, or as `power_dbm` with `gain_db` (a power
gain) or `distance_m`. With `gain_db` or `snr_hz` a `distance_m` only places the device in a picture. `name` is kept.
What may be there beside: `weight` of a device in the objective, `payload_bits` of its update and `deadline_s` of its
own.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from flare.config.guard import NO_GUARD, Guard
from flare.reading import read_capped, read_small
from flare.scheduling.problem import ABSURD, RoundProblem
from flare.text import did_you_mean
from flare.types import Floats
from flare.units import MAX_BARE_TIME_S, db_to_linear, dbm_per_mhz_to_watt_per_hz, dbm_to_watt, human
from flare.wireless.compute import time_and_energy
from flare.wireless.rate import snr_hz
from flare.wireless.recorded import QUANTITIES

MAX_TABLE_BYTES = 1 << 28
"""A table of a million devices is smaller."""
MIN_PLAUSIBLE_BITS = 1000.0
"""An update of fewer bits was perhaps meant in another unit."""
MAX_TIMES_LATER = 10.0
"""A device's own deadline that is so many times the round's was perhaps meant in another unit."""
_Rule = tuple[Callable[[Any], Any], str]
_POSITIVE: _Rule = (
    lambda x: 1.0 / ABSURD <= x <= ABSURD,
    f"must be greater than 0 (at least {1.0 / ABSURD:g}), at most {ABSURD:g}",
)
_DECIBEL: _Rule = (lambda x: -1000.0 <= x <= 1000.0, "must lie between -1000 and 1000 decibel")
_GAIN_DB = QUANTITIES["gain_db"]
COLUMNS: dict[str, _Rule] = {
    "tau": (lambda x: 1.0 <= x <= ABSURD, f"must be at least 1 local step, at most {ABSURD:g}"),
    "compute_s": (lambda x: 0.0 <= x <= ABSURD, f"must be at least 0, at most {ABSURD:g}"),
    "cpu_hz": _POSITIVE,
    "cycles_per_sample": _POSITIVE,
    "snr_hz": _POSITIVE,
    "power_dbm": _DECIBEL,
    "gain_db": (_GAIN_DB[0], f"must be {_GAIN_DB[1]}"),
    "distance_m": (lambda x: 1.0 <= x <= 1e9, "must be at least 1 metre, and finite"),
    "weight": _POSITIVE,
    "payload_bits": _POSITIVE,
    "deadline_s": _POSITIVE,
}


@dataclass(frozen=True)
class Surroundings:
    """What the physical columns need beside themselves; `path_gain` turns distances in metre into power gains."""

    batch_size: int
    noise_dbm_per_mhz: float
    capacitance: float
    path_gain: Callable[[Floats], Floats]


@dataclass(frozen=True)
class DeviceTable:
    """The devices of a round, arrays of shape (devices,)."""

    names: list[str]
    tau: Floats
    compute_s: Floats
    snr_hz: Floats
    distance_m: Floats | None
    power_w: Floats | None  # None where the table says snr_hz
    compute_energy_j: Floats | None  # None where the table says compute_s
    source: str  # the file that they are from
    weight: Floats | None = None
    payload_bits: Floats | None = None
    due_s: Floats | None = None  # deadlines of the devices' own
    cpu_hz: Floats | None = None  # None where the table says compute_s

    def remarks(self, deadline_s: float | None) -> list[str]:
        """What is taken as it is, and is perhaps not meant; `deadline_s` is that of the round, where it is given."""
        whole = "it counts as it is, but devices do whole steps"
        found = self._remark("tau", self.tau, self.tau != np.rint(self.tau), "a fraction of a local step", whole)
        if self.payload_bits is not None:
            small = f"less than {MIN_PLAUSIBLE_BITS:g} bit"
            read = "it is read as bit; check the unit of the column"
            found += self._remark(
                "payload_bits", self.payload_bits, self.payload_bits < MIN_PLAUSIBLE_BITS, small, read
            )
        if self.due_s is not None:
            late_s, read = MAX_BARE_TIME_S, "it is read as seconds; check the unit of the column"
            if deadline_s is not None:
                late_s = MAX_TIMES_LATER * deadline_s
                read = f"it is read as seconds, and changes nothing where the round ends after {deadline_s:g} s"
            found += self._remark("deadline_s", self.due_s, self.due_s > late_s, f"more than {late_s:g} s", read)
        return found

    def _remark(self, column: str, values: Floats, odd: NDArray[np.bool_], what: str, words: str) -> list[str]:
        """A line about the devices whose value is odd; none where there are none."""
        devices = np.flatnonzero(odd)
        if devices.size == 0:
            return []
        many = f"{devices.size} devices have" if devices.size > 1 else "one device has"
        such = f"such as {values[devices[0]]:g} of {self.names[devices[0]]!r:.80}"
        return [f"{self.source}: {many} {what} in {column}, {such}; {words}"]

    def problem(
        self,
        *,
        total_bandwidth_hz: float,
        gamma: float,
        payload_bits: float | None,
        deadline_s: float | None,
        guard: Guard = NO_GUARD,
    ) -> RoundProblem:
        """The round that these devices and the base station's settings make. A payload is not needed where the table
        has them; nor is a deadline: the latest of the devices' own is then that of the round. The guard is left free
        of every deadline, also of those of devices; ValueError where one of them is no longer than it."""
        payload = self.payload_bits if payload_bits is None else payload_bits
        if deadline_s is None and self.due_s is not None:
            deadline_s = float(self.due_s.max())
        if payload is None or deadline_s is None:
            raise ValueError("payload_bits and deadline_s must be given where the table has no such column")
        if not deadline_s > 0.0:
            raise ValueError(f"the deadline is {human(deadline_s, 's')}; it must be greater than 0")
        due_s, usable_s = self._due_before(guard), guard.left_of(deadline_s)
        if usable_s <= 0.0:
            raise ValueError(
                f"guard: nothing of the deadline of {human(deadline_s, 's')} is left; the guard must be shorter"
            )
        return RoundProblem(
            *(self.tau, self.compute_s, self.snr_hz, payload, total_bandwidth_hz, usable_s, gamma),
            weight=self.weight,
            due_s=due_s,
        )

    def _due_before(self, guard: Guard) -> Floats | None:
        """When each device must be done itself, with the guard left free of that; None where they have no such time."""
        if self.due_s is None:
            return None
        due_s = np.array([guard.left_of(each) for each in self.due_s.tolist()])
        late = np.flatnonzero(due_s <= 0.0)
        if late.size:
            own = f"the {human(float(self.due_s[late[0]]), 's')} that device {self.names[late[0]]!r:.80} has"
            raise ValueError(
                f"guard: nothing of {own} (deadline_s) is left; take a shorter one, or leave the device out"
            )
        return due_s


def table_of(
    names: list[str], values: Mapping[str, Sequence[float]], surroundings: Surroundings, source: str = "devices"
) -> DeviceTable:
    """A table of columns that somebody else read: one name and one value of each column for each device, every value
    within the rule of its column in `COLUMNS`. ValueError where columns are missing, or two say the same."""
    _complete(source, set(values))
    return _devices(
        source, names, {column: np.array(one, dtype=np.float64) for column, one in values.items()}, surroundings
    )


def read_table(source: Path | BinaryIO, surroundings: Surroundings, name: str = "standard input") -> DeviceTable:
    """Read devices from a CSV file, or from an open stream, which is called `name`; ValueError with file, line,
    column, reason and remedy where it cannot be used. No more than `MAX_TABLE_BYTES` are read of either."""
    path = source if isinstance(source, Path) else name
    try:
        content = read_small(source, MAX_TABLE_BYTES) if isinstance(source, Path) else _rest(source, name)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}); save it as CSV in UTF-8"
        ) from None
    lines = _rows(str(path), text)
    _, header = next(lines, (0, []))
    columns = _header(str(path), [cell.strip() for cell in header])
    names, values = _cells(str(path), columns, lines)
    return _devices(str(path), names, values, surroundings)


def _rest(stream: BinaryIO, name: str) -> bytes:
    """All that comes from a stream; ValueError where that is more than a table has."""
    try:
        return read_capped(stream, name, MAX_TABLE_BYTES)
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror})") from None


def _rows(path: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with their line numbers."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: not a CSV row: {error}") from None


def _header(path: str, columns: list[str]) -> list[str]:
    if not columns:
        raise ValueError(f"{path}: empty; it needs a line of column names and a line for each device")
    known = ["name", *COLUMNS]
    if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
        raise ValueError(f"{path}, line 1: the columns are not separated by commas; save the file with commas")
    for place, column in enumerate(columns):
        if column in columns[:place]:
            raise ValueError(f"{path}, line 1: column {column!r} stands twice; remove one")
        if column not in known:
            hint = did_you_mean(column, known)
            raise ValueError(f"{path}, line 1: unknown column {column!r}{hint} Columns: {', '.join(known)}")
    _complete(f"{path}, line 1", set(columns))
    return columns


def _complete(where: str, have: set[str]) -> None:
    """ValueError where the columns do not say what computing and sending take, or say it twice."""
    _need(where, have, "tau")
    if "compute_s" in have:
        _refuse(where, have, "compute_s", ("cpu_hz", "cycles_per_sample"))
    else:
        _need(where, have, "cpu_hz", "compute_s")
        _need(where, have, "cycles_per_sample", "compute_s")
    if "snr_hz" in have:
        _refuse(where, have, "snr_hz", ("power_dbm", "gain_db"))
    else:
        _need(where, have, "power_dbm", "snr_hz")
        if not have & {"gain_db", "distance_m"}:
            raise ValueError(f"{where}: no column 'gain_db' or 'distance_m'; add one of them, or use 'snr_hz'")


def _need(where: str, have: set[str], column: str, instead: str | None = None) -> None:
    if column not in have:
        other = f", or give '{instead}' instead" if instead else ""
        raise ValueError(f"{where}: no column '{column}'; add it{other}")


def _refuse(where: str, have: set[str], column: str, others: tuple[str, ...]) -> None:
    for other in others:
        if other in have:
            raise ValueError(f"{where}: '{column}' and '{other}' say the same twice; remove one of them")


def _cells(
    path: str, columns: list[str], lines: Iterator[tuple[int, list[str]]]
) -> tuple[list[str], dict[str, Floats]]:
    names: list[str] = []
    first_line: dict[str, int] = {}
    numbers: dict[str, list[float]] = {column: [] for column in columns if column != "name"}
    for line, row in lines:
        if len(row) != len(columns):
            raise ValueError(f"{path}, line {line}: {len(row)} cells where the header has {len(columns)} columns")
        name = str(len(names))
        for column, cell in zip(columns, row, strict=True):
            if column == "name":
                name = cell.strip()
            else:
                numbers[column].append(_number(path, line, column, cell.strip()))
        if not name:
            raise ValueError(f"{path}, line {line}, column name: the device has no name; give it one")
        if name in first_line:
            raise ValueError(
                f"{path}, line {line}, column name: {name!r:.80} is already the device of line {first_line[name]}; "
                "names must differ"
            )
        first_line[name] = line
        names.append(name)
    if not names:
        raise ValueError(f"{path}: no devices below the column names; add a line for each device")
    return names, {column: np.array(values) for column, values in numbers.items()}


def _number(path: str, line: int, column: str, cell: str) -> float:
    where = f"{path}, line {line}, column {column}"
    if not cell:
        own = "; a device without a deadline of its own has that of the round" if column == "deadline_s" else ""
        raise ValueError(f"{where}: empty; give a number{own}")
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{where}: {cell!r:.80} is not a number; write it plainly in the column's unit") from None
    allowed, rule = COLUMNS[column]
    if math.isnan(value) or not allowed(value):
        raise ValueError(f"{where}: {cell:.80} is out of range; {column} {rule}")
    return value


def _devices(path: str, names: list[str], values: dict[str, Floats], around: Surroundings) -> DeviceTable:
    power_w = dbm_to_watt(values["power_dbm"]) if "power_dbm" in values else None
    energy_j = None
    if "compute_s" not in values:
        work = (values["tau"], values["cycles_per_sample"], around.batch_size, values["cpu_hz"], around.capacitance)
        with np.errstate(over="ignore"):
            values["compute_s"], energy_j = time_and_energy(*work)
    if power_w is not None:
        gain = db_to_linear(values["gain_db"]) if "gain_db" in values else around.path_gain(values["distance_m"])
        with np.errstate(over="ignore", under="ignore"):
            values["snr_hz"] = snr_hz(power_w, gain, dbm_per_mhz_to_watt_per_hz(around.noise_dbm_per_mhz))
    for column in ("compute_s", "snr_hz"):
        absurd = np.flatnonzero(~(values[column] <= ABSURD) | ((values["snr_hz"] <= 0.0) & (column == "snr_hz")))
        if absurd.size:
            raise ValueError(
                f"{path}: device {names[absurd[0]]!r:.80} comes to {column} = {values[column][absurd[0]]:g}; "
                "check the units of its columns"
            )
    columns = (values["tau"], values["compute_s"], values["snr_hz"], values.get("distance_m"))
    asked = (values.get("weight"), values.get("payload_bits"), values.get("deadline_s"))
    return DeviceTable(names, *columns, power_w, energy_j, path, *asked, cpu_hz=values.get("cpu_hz"))
