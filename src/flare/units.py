"""dB, dBm, Hz, bit, metre and seconds: the only place where units are converted, read or written.

Everything inside the package is SI: watt, hertz, bit, second, metre. A name carries its unit as a suffix
(`power_dbm`, `bandwidth_hz`), so that a conversion is always a visible call to this module.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from flare.types import Floats


@overload
def db_to_linear(value_db: float) -> float: ...
@overload
def db_to_linear(value_db: Floats) -> Floats: ...
def db_to_linear(value_db: float | Floats) -> float | Floats:
    """A power ratio in dB as a plain ratio."""
    return 10.0 ** (value_db / 10.0)


def linear_to_db(ratio: Floats) -> Floats:
    """A plain power ratio in dB."""
    return 10.0 * np.log10(ratio)


@overload
def dbm_to_watt(power_dbm: float) -> float: ...
@overload
def dbm_to_watt(power_dbm: Floats) -> Floats: ...
def dbm_to_watt(power_dbm: float | Floats) -> float | Floats:
    """Power in dBm (decibel above a milliwatt) in watt."""
    return db_to_linear(power_dbm) * 1e-3


def watt_to_dbm(power_w: float) -> float:
    """Power in watt in dBm."""
    return 10.0 * math.log10(power_w * 1e3)


def dbm_per_mhz_to_watt_per_hz(density_dbm_per_mhz: float) -> float:
    """A noise power density in dBm/MHz in W/Hz; -114 dBm/MHz is 3.98e-21 W/Hz."""
    return dbm_to_watt(density_dbm_per_mhz) * 1e-6


THERMAL_NOISE_DBM_PER_MHZ = watt_to_dbm(1.380649e-23 * 290.0) + 60.0
"""Boltzmann's constant times 290 K: -113.98 dBm/MHz, or -173.98 dBm/Hz."""
MAX_BARE_TIME_S = 60.0
"""A time without a unit that is longer was probably meant in milliseconds."""
MAX_BARE_NOISE_OFFSET_DB = 30.0
"""A noise density without a unit that is further from thermal noise was probably meant in dBm/Hz."""

_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*\Z")
_MINUS = str.maketrans("\u2212", "-")  # the minus sign of papers


@dataclass(frozen=True)
class _Quantity:
    """What a text may say of a quantity.

    unit      what a bare number is in, and what the value is returned in
    sizes     units by how many of `unit` they are; where there are `levels`, by how many of its linear unit
    prefixes  of the units in `sizes`, those that make sense; minutes, hours and the like take none
    levels    units in decibel (in any case: dBm, dbm), by what is added to come to `unit`
    sure      from where to where a bare number is what its writer meant, as far as one can tell; None: nowhere
    """

    unit: str
    example: str
    sizes: Mapping[str, float]
    prefixes: str = ""
    levels: Mapping[str, float] = field(default_factory=dict)
    sure: tuple[float, float] | None = (-math.inf, math.inf)

    def value(self, number: float, unit: str) -> float | None:
        """The number in `self.unit`; None where the unit is unknown, nan where it cannot be in decibel."""
        if unit == "":
            return number
        for name, shift in self.levels.items():
            if unit.replace(" ", "").casefold() == name.casefold():
                return number + shift
        for name, size in self.sizes.items():
            prefix = unit.removesuffix(name)
            if unit.endswith(name) and (prefix == "" or (prefix in {*self.prefixes} and name not in _PLAIN)):
                linear = number * (size * _PREFIX[prefix])
                if not self.levels:
                    return linear
                return 10.0 * math.log10(linear) if 0.0 < linear < math.inf else math.nan
        return None


_PLAIN = {"min", "h"}  # units that take no prefix
_TIMES = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_QUANTITIES: dict[str, _Quantity] = {
    "bandwidth": _Quantity("Hz", "10MHz", {"Hz": 1.0}, "kKMGT", sure=None),
    "frequency": _Quantity("Hz", "2.5GHz", {"Hz": 1.0}, "kKMGT", sure=None),
    "time": _Quantity("s", "400ms", _TIMES, "numµ", sure=(-math.inf, MAX_BARE_TIME_S)),
    "duration": _Quantity("s", "10min", _TIMES, "numµ"),
    "data size": _Quantity(
        "bit", "10Mbit", {"bit": 1.0, "bits": 1.0, "B": 8.0, "byte": 8.0, "bytes": 8.0}, "kKMGT", sure=None
    ),
    "distance": _Quantity("m", "0.5km", {"m": 1.0}, "k"),
    "ratio": _Quantity("dB", "6dB", {}, levels={"dB": 0.0}),
    "power": _Quantity("dBm", "23dBm", {"W": 1e3}, "nuµmk", {"dBm": 0.0, "dBW": 30.0}),
    "noise density": _Quantity(
        "dBm/MHz",
        "-174dBm/Hz",
        {"W/Hz": 1e9},
        levels={"dBm/MHz": 0.0, "dBm/kHz": 30.0, "dBm/Hz": 60.0},
        sure=(
            THERMAL_NOISE_DBM_PER_MHZ - MAX_BARE_NOISE_OFFSET_DB,
            THERMAL_NOISE_DBM_PER_MHZ + MAX_BARE_NOISE_OFFSET_DB,
        ),
    ),
}
_SUFFIXES = {
    "bandwidth_hz": "bandwidth",
    "_hz": "frequency",
    "_s": "time",
    "seconds": "duration",
    "_bits": "data size",
    "_m": "distance",
    "_db": "ratio",
    "_dbm": "power",
    "_dbm_per_mhz": "noise density",
}  # how a name ends, and the quantity that it then is, in the unit that `parse` returns


def quantity_of(name: str) -> str | None:
    """The quantity that a name says by its unit: `deadline_s` is a "time"; None where it ends in no unit."""
    return next((quantity for suffix, quantity in _SUFFIXES.items() if name.endswith(suffix)), None)


def example_of(quantity: str) -> str:
    """How a value of the quantity may be written, such as `400ms`."""
    return _QUANTITIES[quantity].example


def parse(text: str, quantity: str) -> float:
    """Read `10MHz`, `400 ms`, `1.25MB` or `-174dBm/Hz`; a bare number is already in the unit that is returned.

    `quantity` is "bandwidth" or "frequency" (Hz), "time" or "duration" (s), "data size" (bit), "distance" (m), "ratio"
    (dB), "power" (dBm) or "noise density" (dBm/MHz). Raises ValueError with the text, the unit that was not understood
    and an example of what would be.
    """
    known = _QUANTITIES[quantity]
    wrong = f"'{text:.80}' is not a {quantity}"
    right = f"write for example {known.example} (a bare number is in {known.unit})"
    found = _NUMBER.match(text.translate(_MINUS))
    if found is None:
        raise ValueError(f"{wrong}: it does not start with a number; {right}")
    value = known.value(float(found[1]), found[2])
    if value is None:
        units = ", ".join([*known.levels, *known.sizes])
        raise ValueError(f"{wrong}: unknown unit '{found[2]:.80}', known are {units}; {right}")
    if math.isnan(value):
        raise ValueError(f"{wrong}: it has no value in {known.unit}, it must be a finite number above 0; {right}")
    if not math.isfinite(value):
        raise ValueError(f"{wrong}: the number is too large; {right}")
    return value


def doubt(text: str, quantity: str) -> str | None:
    """Where a text that `parse` has read is a bare number whose writer may have meant another unit: what it was taken
    for and how to write the unit, in words. None where there is nothing to doubt."""
    known = _QUANTITIES[quantity]
    found = _NUMBER.match(text.translate(_MINUS))
    if found is None or found[2]:
        return None
    value = float(found[1])
    if known.sure is not None and known.sure[0] <= value <= known.sure[1]:
        return None
    if known.levels:
        offset = value - THERMAL_NOISE_DBM_PER_MHZ
        taken = (
            f"{value:g} {known.unit}, {abs(offset):.0f} dB {'above' if offset > 0 else 'below'} thermal noise "
            f"({THERMAL_NOISE_DBM_PER_MHZ:.2f} dBm/MHz at 290 K)"
        )
    else:
        taken = human(value, known.unit)
    return f"is read as {taken}; write the unit, such as {known.example} ({found[1]:.40}{known.unit} if that is meant)"


_SCALES = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")]


_WHOLE = ("Hz", "bit")
"""Units without milli and what is below it; seconds have no kilo and what is above."""


def human(value: float, unit: str, digits: int = 4) -> str:
    """A number with its unit and an SI prefix, as a person writes it: `human(4e5, "Hz")` is "400 kHz"."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == 0.0:
        return f"0 {unit}"
    if unit == "s" and abs(value) >= 1e3 * (1.0 - 0.5 * 10.0**-digits):
        return f"{value:.0f} s" if abs(value) < 1e12 else f"{value:.{digits}g} s"
    for scale, prefix in _SCALES:
        if scale < 1.0 and unit in _WHOLE:
            break
        if abs(value) >= scale * (1.0 - 0.5 * 10.0**-digits):  # what rounds up to 1 of the next prefix
            return f"{value / scale:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"
