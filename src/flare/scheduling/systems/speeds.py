"""How fast a device computes and how long it then sends, where both cost energy and a second and a hertz have a price.

The conditions are those of `tran`, whose text has the symbols: given when the round ends and the price of a hertz (or
the bands themselves), each device has one speed f with  2 a f^3 = mu(end - c / f),  where mu(s) is what it would save
with a second more than the s seconds that it sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flare.scheduling.systems.lowered_power import LEAST_NATS, log_phi, nats_at, nats_slope
from flare.types import Floats, Indices
from flare.wireless.rate import LN2, bandwidth_and_slope

_CLOSE = 1e-13
_NEAR = 1e-6  # of a logarithm: only from here on is a small step the end


@dataclass(frozen=True, eq=False)
class Workers:
    """Devices that compute and send; arrays of shape (devices,). `capacitance` is a of a cycle's a f^2 joule."""

    cycles: Floats
    min_cpu_hz: Floats
    max_cpu_hz: Floats
    payload_bits: Floats
    snr_hz: Floats
    power_w: Floats
    capacitance: float


@dataclass(frozen=True, eq=False)
class Worth:
    """What a second more of sending is worth to devices that send for some time, and the bands that go with it.

    log_saved     ln mu, watt
    by_time       d ln mu / d ln s
    by_price      d ln mu / d ln price
    bandwidth_hz, band_by_time, band_by_price   the band, d ln b / d ln s and d ln b / d ln price
    """

    log_saved: Floats
    by_time: Floats
    by_price: Floats
    bandwidth_hz: Floats
    band_by_time: Floats
    band_by_price: Floats


@dataclass(frozen=True, eq=False)
class Response:
    """What devices do in a round that ends at a time, and how it changes with price and time; shape (devices,).

    saved_w    mu, what each would save with a second more
    band_by_price, saved_by_price   derivatives by ln price of the band (Hz) and of mu (W), T as it is
    band_by_time, saved_by_time     derivatives by the end, the price as it is
    """

    cpu_hz: Floats
    send_s: Floats
    bandwidth_hz: Floats
    saved_w: Floats
    band_by_price: Floats
    band_by_time: Floats
    saved_by_price: Floats
    saved_by_time: Floats


def at_price(workers: Workers, end_s: Floats, log_price: float, guess: Response | None = None) -> Response:
    """What each device does where a hertz costs `price` joule; the `guess` is what it does at another price or end."""
    shortest_s = workers.payload_bits * LN2 / workers.snr_hz  # on an endless band
    nats: Floats | None = None
    if guess is not None:  # u at full power is another, and a guess as well
        nats = np.fmax(workers.payload_bits * LN2 / (guess.send_s * guess.bandwidth_hz), LEAST_NATS)

    def worth(send_s: Floats) -> Worth:
        nonlocal nats
        log_y = log_price + np.log(workers.snr_hz) - np.log(workers.power_w) - np.log(send_s)
        nats = nats_at(log_y, nats)
        return _at_price(workers, send_s, log_price, nats)

    return _settled(workers, end_s, shortest_s, worth, guess)


def on_bands(
    workers: Workers, end_s: Floats, bandwidth_hz: Floats, shortest_s: Floats, guess: Response | None = None
) -> Response:
    """What each device does on a band that it has; `shortest_s` is how long it sends there at full power."""

    def worth(send_s: Floats) -> Worth:
        nats = workers.payload_bits * LN2 / (send_s * bandwidth_hz)
        log_saved = np.log(workers.power_w) + np.log(bandwidth_hz) - np.log(workers.snr_hz) + log_phi(nats)
        none = np.zeros(len(send_s))
        return Worth(log_saved, -nats_slope(nats), none, bandwidth_hz, none, none)

    return _with_pinned(workers, end_s, shortest_s, _settled(workers, end_s, shortest_s, worth, guess))


def _with_pinned(workers: Workers, end_s: Floats, shortest_s: Floats, found: Response) -> Response:
    """At full power and pressed for time, a second more is worth what slower computing saves: E = a c^3 / t^2 of the
    time t falls by 2 a f^3."""
    compute_s = workers.cycles / found.cpu_hz
    saved_w = 2.0 * workers.capacitance * found.cpu_hz**3
    at_once = end_s - compute_s <= shortest_s * (1.0 + 1e-9)
    pinned = at_once & (found.cpu_hz > workers.min_cpu_hz) & (saved_w > found.saved_w)
    return replace(
        found,
        saved_w=np.where(pinned, saved_w, found.saved_w),
        saved_by_time=np.where(pinned, -3.0 * saved_w / compute_s, found.saved_by_time),
    )


def _at_price(workers: Workers, send_s: Floats, log_price: float, nats: Floats) -> Worth:
    """The worth of time at a price of the band, with the best band, whose u is `nats`, and where that asks for too much
    power, with the least that does not."""
    inverse = 1.0 / nats_slope(nats)
    bandwidth_hz = workers.payload_bits * LN2 / (send_s * nats)
    log_saved = log_price + np.log(bandwidth_hz) - np.log(send_s)
    worth = Worth(log_saved, inverse - 2.0, 1.0 - inverse, bandwidth_hz, inverse - 1.0, -inverse)
    with np.errstate(over="ignore"):
        too_much = np.log(bandwidth_hz) - np.log(workers.snr_hz) + nats + np.log(-np.expm1(-nats)) > 0.0
    return _at_full_power(workers, send_s, log_price, worth, np.flatnonzero(too_much)) if too_much.any() else worth


def _at_full_power(workers: Workers, send_s: Floats, log_price: float, worth: Worth, at: Indices) -> Worth:
    """The worth with those `at` full power put in, whose band is that of Theorem 3."""
    bits, time_s, power_w = workers.payload_bits[at], send_s[at], workers.power_w[at]
    band_hz, slope = bandwidth_and_slope(bits, time_s, workers.snr_hz[at])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = bits * LN2 / (time_s * band_hz)
        filled = -np.expm1(-u)  # 1 - e^-u
        bend = (2.0 + u - nats_slope(u) - 2.0 * u / filled) / (u / filled - 1.0)  # d ln |db/ds| / d ln s
        paid_w = np.exp(log_price) * -slope
        saved_w = np.maximum(paid_w - power_w, 1e-15 * power_w)
        values = (
            np.log(saved_w),
            (saved_w + power_w) / saved_w * bend,
            (saved_w + power_w) / saved_w,
            band_hz,
            time_s * slope / band_hz,
            np.zeros(len(at)),
        )
    arrays = [getattr(worth, name).copy() for name in worth.__dataclass_fields__]
    for array, value in zip(arrays, values, strict=True):
        array[at] = value
    return Worth(*arrays)


def _settled(
    workers: Workers,
    end_s: Floats,
    shortest_s: Floats,
    worth_of: Callable[[Floats], Worth],
    guess: Response | None,
) -> Response:
    """Newton's method for the logarithm of each speed, inside a bracket that every evaluation narrows."""
    cycles, high = workers.cycles, np.log(workers.max_cpu_hz)
    with np.errstate(divide="ignore", invalid="ignore"):
        in_time = np.log(cycles) - np.log(end_s - shortest_s)
        log_2a = float(np.log(2.0 * workers.capacitance))  # minus infinity where computing takes no energy
    low = np.minimum(np.fmax(np.log(workers.min_cpu_hz), in_time), high)
    speed = high if guess is None else np.clip(np.log(guess.cpu_hz), low, high)
    under, over = low - 1.0, high + 1.0  # evaluated ends of the bracket; at first beyond its limits
    for _ in range(60):
        send_s, share, worth = _sending(cycles, end_s, speed, worth_of)
        with np.errstate(invalid="ignore", over="ignore"):
            miss = log_2a + 3.0 * speed - worth.log_saved
            under, over = np.where(miss < 0.0, speed, under), np.where(miss >= 0.0, speed, over)
            newton = np.minimum(np.maximum(speed - miss / (3.0 - share * worth.by_time), low), high)
        middle = 0.5 * (np.maximum(under, low) + np.minimum(over, high))
        at_limit = (newton == speed) & (((speed == low) & (miss >= 0.0)) | ((speed == high) & (miss <= 0.0)))
        close = at_limit | ((np.abs(newton - speed) <= _CLOSE) & (np.abs(miss) <= _NEAR))
        # Where the band becomes endless, mu does too, and Newton's steps are next to nothing.
        stuck = (np.abs(newton - speed) < 0.01 * (over - under)) & (np.abs(miss) > 1.0)
        step = np.where(close | ((under < newton) & (newton < over) & ~stuck), newton, middle)
        moved = float(np.abs(step - speed).max(initial=0.0))
        speed = step
        if moved <= _CLOSE:
            break
    speed = np.where(speed - low <= _CLOSE, low, np.where(high - speed <= _CLOSE, high, speed))  # or it counts as free
    send_s, share, worth = _sending(cycles, end_s, speed, worth_of)
    free = (speed > low) & (speed < high)
    cpu_hz = np.where(speed >= high, workers.max_cpu_hz, np.exp(speed))
    return _response(cpu_hz, send_s, np.where(free, share, 0.0), worth)


def _sending(
    cycles: Floats, end_s: Floats, speed: Floats, worth_of: Callable[[Floats], Worth]
) -> tuple[Floats, Floats, Worth]:
    """The time left to send at speeds (logarithms), d ln s / d ln f, and the worth of that time."""
    compute_s = cycles * np.exp(-speed)
    send_s = np.maximum(end_s - compute_s, 1e-100)
    return send_s, compute_s / send_s, worth_of(send_s)


def _response(cpu_hz: Floats, send_s: Floats, share: Floats, worth: Worth) -> Response:
    """The derivatives where a free speed follows mu: d ln f = d ln mu / 3, and s follows the speed."""
    held = 1.0 - share * worth.by_time / 3.0  # >= 1: a free speed makes up for part of a change of time
    time_by_price = share * worth.by_price / 3.0 / held  # d ln s
    time_by_end = 1.0 / send_s / held
    with np.errstate(over="ignore"):
        saved_w = np.exp(worth.log_saved)
    band = worth.bandwidth_hz
    return Response(
        cpu_hz=cpu_hz,
        send_s=send_s,
        bandwidth_hz=band,
        saved_w=saved_w,
        band_by_price=band * (worth.band_by_price + worth.band_by_time * time_by_price),
        band_by_time=band * worth.band_by_time * time_by_end,
        saved_by_price=saved_w * (worth.by_price + worth.by_time * time_by_price),
        saved_by_time=saved_w * worth.by_time * time_by_end,
    )
