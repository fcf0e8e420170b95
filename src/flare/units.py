"""dB, dBm, Hz, bit and seconds: the only place where units are converted, read or written.

Everything inside the package is SI: watt, hertz, bit, second, metre. A name carries its unit as a suffix
(`power_dbm`, `bandwidth_hz`), so that a conversion is always a visible call to this module.
"""

from __future__ import annotations

import math
import re
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


_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*\Z")
# Quantity -> (units and their size in the SI unit, prefixes that make sense, an example for messages).
_QUANTITIES: dict[str, tuple[dict[str, float], str, str]] = {
    "bandwidth": ({"Hz": 1.0}, "kKMGT", "10MHz"),
    "time": ({"s": 1.0, "sec": 1.0, "min": 60.0}, "numµ", "400ms"),
    "data size": ({"bit": 1.0, "bits": 1.0, "B": 8.0, "byte": 8.0, "bytes": 8.0}, "kKMGT", "10Mbit"),
}


def parse(text: str, quantity: str) -> float:
    """Read `10MHz`, `400 ms` or `1.25MB` in SI units; a bare number is already in the SI unit.

    `quantity` is one of "bandwidth" (Hz), "time" (s) and "data size" (bit). Raises ValueError with the text, the
    unit that was not understood and an example of what would be.
    """
    units, prefixes, example = _QUANTITIES[quantity]
    found = _NUMBER.match(text)
    if found is None:
        raise ValueError(f"'{text}' is not a {quantity}: it does not start with a number; write for example {example}")
    number, unit = float(found[1]), found[2]
    factor = _factor(unit, units, prefixes)
    if factor is None:
        known = ", ".join(units)
        raise ValueError(
            f"'{text}' is not a {quantity}: unknown unit '{unit}'; write for example {example} (units: {known})"
        )
    value = number * factor
    if not math.isfinite(value):
        raise ValueError(f"'{text}' is not a {quantity}: the number is too large; write for example {example}")
    return value


def _factor(unit: str, units: dict[str, float], prefixes: str) -> float | None:
    if unit == "":
        return 1.0
    for name, size in units.items():
        prefix = unit.removesuffix(name)
        if unit.endswith(name) and (prefix == "" or prefix in prefixes):
            return size * _PREFIX[prefix]
    return None


_SCALES = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")]


def human(value: float, unit: str, digits: int = 4) -> str:
    """A number with its unit and an SI prefix, as a person writes it: `human(4e5, "Hz")` is "400 kHz"."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == 0.0:
        return f"0 {unit}"
    for scale, prefix in _SCALES:
        if abs(value) >= scale * (1.0 - 0.5 * 10.0**-digits):  # what rounds up to 1 of the next prefix
            return f"{value / scale:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"
