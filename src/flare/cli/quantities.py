"""Options that are read with their unit, such as `--bandwidth 10MHz`, and warnings where a bare number is in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flare.cli.console import say
from flare.text import one_line
from flare.units import doubt, parse

_OPTIONS = {
    "--bandwidth": ("total_bandwidth_hz", "bandwidth"),
    "--deadline": ("deadline_s", "time"),
    "--payload": ("payload_bits", "data size"),
    "--block": ("block_hz", "bandwidth"),
    "--downlink-power": ("downlink_power_dbm", "power"),
    "--downlink-payload": ("downlink_bits", "data size"),
    "--noise": ("noise_dbm_per_mhz", "noise density"),
}


def settings_of(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """The settings that the texts of options mean; what is not given is left out. An error names the option."""
    settings = {}
    for option, text in texts.items():
        if text is not None:
            name, quantity = _OPTIONS[option]
            try:
                settings[name] = parse(text, quantity)
            except ValueError as error:
                raise ValueError(f"{option}: {error}") from None
    return settings


def warn_of_doubts(texts: Mapping[str, str | None]) -> None:
    """Say on standard error, a line each, which bare numbers may have been meant in another unit."""
    for option, text in texts.items():
        doubted = None if text is None else doubt(text, _OPTIONS[option][1])
        if doubted is not None:
            say(one_line(f"warning: {option} {text:.40} {doubted}"), stderr=True)
