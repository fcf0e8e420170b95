"""The broadcast before a round: as `flare schedule` is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from flare.config import PLAIN, WirelessConfig
from flare.scheduling import RoundProblem, Schedule
from flare.types import Floats
from flare.wireless.rate import downlink_snr_hz


class Downlink(StrEnum):
    """Whether the time counts in which devices are sent the model."""

    NONE = "none"
    BROADCAST = "broadcast"


def broadcast_of(
    wireless: WirelessConfig,
    downlink: Downlink | None,
    given: Mapping[str, Any],
    problem: RoundProblem,
    power_w: Floats | None,
) -> Callable[[Schedule], Schedule]:
    """What adds the broadcast to the schedules of a round; where none counts, it leaves them as they are.

    `given` is what `--downlink-power` and `--downlink-payload` say, `power_w` what the devices send with. ValueError
    where a broadcast is asked for of which something is not known.
    """
    if (wireless.downlink if downlink is None else downlink) == Downlink.NONE:
        if given:
            option = "--downlink-power" if "downlink_power_dbm" in given else "--downlink-payload"
            raise ValueError(f"{option} is of a broadcast, and none counts; add --downlink broadcast")
        return lambda schedule: schedule
    if power_w is None:
        raise ValueError(
            "--downlink broadcast: a table with snr_hz does not tell what the base station is heard with; give "
            "power_dbm and gain_db (or distance_m) of each device instead"
        )
    bits = given["downlink_bits"] if "downlink_bits" in given else _payload_bits(wireless, problem)
    power_dbm = given.get("downlink_power_dbm", wireless.downlink_power_dbm)
    if not -200.0 <= power_dbm <= 200.0:
        raise ValueError(f"--downlink-power is {power_dbm:g} dBm; it must be from -200 to 200")
    if not bits > 0.0:
        raise ValueError(f"--downlink-payload is {bits:g} bit; it must be greater than 0")
    heard_hz = downlink_snr_hz(problem.snr_hz, power_w, power_dbm)
    return lambda schedule: schedule.with_broadcast(bits, heard_hz)


def _payload_bits(wireless: WirelessConfig, problem: RoundProblem) -> float:
    """The size of the model, as long as an update that is not coded; ValueError where that is not known."""
    if wireless.downlink_codec != PLAIN:
        raise ValueError(
            f'wireless.downlink_codec is "{wireless.downlink_codec}", and what it makes of a model is known only in a '
            "run; say how long the broadcast is: add --downlink-payload 5Mbit"
        )
    bits = problem.payload_bits
    if (bits != bits[0]).any():
        raise ValueError(
            "--downlink broadcast: the updates of the devices differ in length, so that the size of the model is not "
            "known; add --downlink-payload 10Mbit"
        )
    return float(bits[0])
