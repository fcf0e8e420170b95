"""The network that gives devices what a schedule grants them.

A strategy tells its radio of every schedule before work goes out, and takes the grants back when the round is over:

    FlareStrategy(config, radio=TcRadio({0: Link("eth1"), 1: Link("eth2")}))

`NoRadio` does nothing. `TcRadio` shapes a Linux network interface of each device to the granted rate by a token bucket
(`tc tbf`). A token bucket holds for what leaves an interface, so it must be the one through which the device sends its
updates: on the device itself, or in its network namespace. On the server's or a gateway's end of the link it would
slow the model on its way down, and not the update. In words, as in the settings of an app, they are "none" and
"tc:eth{device}" or "tc:cell-{device}/eth0", the interface after its namespace (`radio_named`). For any other network (a
base station's interface, a software-defined switch) write a class with the same two methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from flare.commands import IPROUTE2, CommandError, run_command
from flare.flower.faults import log
from flare.types import Floats

FRAME_BYTES = 1514
"""The longest frame of an interface with the usual MTU of 1500: what a token bucket must hold at least."""
MIN_BPS = 8.0
"""The least rate of a link: tc counts whole bytes a second."""
_LATE_S = 0.002  # how late a timer of the kernel may fire, and the bucket still lose nothing
_LONGEST_QUEUE_S = 0.25  # how long a packet may wait for its tokens, before it is dropped
_MIN_QUEUE_FRAMES = 10  # as many as TCP sends before it has heard anything
_TC_TIMEOUT_S = 10.0


class Radio(Protocol):
    """What gives devices their part of the band. An error that it raises ends the run, which can be continued.

    It may have a third method, `serves(device) -> bool`: devices that it does not serve are left out of the rounds.
    """

    def grant(self, device: int, bandwidth_hz: float, rate_bps: float) -> None:
        """From now on the device sends on so much bandwidth, at the rate that its channel has there."""

    def release(self, device: int) -> None:
        """The round is over, and the grant of the device with it."""


@final
class NoRadio:
    """Devices send as they can."""

    def grant(self, device: int, bandwidth_hz: float, rate_bps: float) -> None:
        """Nothing."""

    def release(self, device: int) -> None:
        """Nothing."""


@final
@dataclass(frozen=True)
class Link:
    """The network interface through which a device sends, and the network namespace that it is in, if in one."""

    interface: str
    namespace: str | None = None

    def __post_init__(self) -> None:
        for what, name in (("interface", self.interface), ("namespace", self.namespace)):
            sound = isinstance(name, str) and bool(name) and name.isprintable() and not set(name) & set(" /")
            if not (sound and not str(name).startswith("-")) and not (what == "namespace" and name is None):
                raise ValueError(f"the {what} of a link is {name!r:.40}; it must be the name of one, such as eth0")


@final
class TcRadio:
    """Shapes the interface of each device to its granted rate. Needs Linux, `tc` and the right to use it.

    Parameters
    ----------
    links : the interface of each device, or a function that says it.
    idle_bps : the rate of a device without a grant, for its small messages; None: not shaped.

    A rate counts whole Ethernet frames, headers included, as the bits that a radio would carry. The bucket is as small
    as it can be (`bucket_bytes`): what it holds at the start of an upload passes at once, and the upload seems so much
    faster.
    """

    def __init__(self, links: Mapping[int, Link] | Callable[[int], Link], *, idle_bps: float | None = None) -> None:
        if isinstance(links, Mapping):
            for device, link in links.items():
                if not isinstance(link, Link):
                    raise ValueError(f"the link of device {device} is {link!r:.60}; give a flare.flower.radio.Link")
            links = dict(links)
        elif not callable(links):
            raise ValueError(f"links is {links!r:.40}; it must have the Link of each device, or be a function of it")
        if idle_bps is not None:
            _checked_rate(idle_bps, "idle_bps")
        self._links, self._idle_bps = links, idle_bps

    def serves(self, device: int) -> bool:
        """Whether the device has a link."""
        return not isinstance(self._links, Mapping) or device in self._links

    def grant(self, device: int, bandwidth_hz: float, rate_bps: float) -> None:
        """Shape the device's interface to the rate, or to 8 bit/s, the least that tc can, where it is lower; ValueError
        where the device has no link, OSError where tc refuses."""
        if not isinstance(rate_bps, bool) and 0.0 < rate_bps < MIN_BPS:
            log.warning("device %d is granted %.3g bit/s; its link is shaped to %g", device, rate_bps, MIN_BPS)
            rate_bps = MIN_BPS
        self._shape(device, _checked_rate(rate_bps, f"the rate of device {device}"))

    def release(self, device: int) -> None:
        """Shape the device's interface to the rate without a grant, or no longer: it gets the queue of the system back,
        and one of the user's own is lost."""
        if self._idle_bps is not None:
            self._shape(device, self._idle_bps)
            return
        link = self._link(device)
        _tc(link, ["qdisc", "replace", "dev", link.interface, "root", "pfifo"])  # to delete where nothing is, fails
        _tc(link, ["qdisc", "delete", "dev", link.interface, "root"])

    def _shape(self, device: int, rate_bps: float) -> None:
        link = self._link(device)
        _tc(link, ["qdisc", "replace", "dev", link.interface, "root", *token_bucket(rate_bps)])

    def _link(self, device: int) -> Link:
        if not isinstance(self._links, Mapping):
            return self._links(device)
        if device not in self._links:
            known = ", ".join(map(str, sorted(self._links))) or "none"
            raise ValueError(f"the radio has no link of device {device} (it has those of: {known}); give it in `links`")
        return self._links[device]


@final
class Grants:
    """What a radio was told and was not taken back yet."""

    def __init__(self, radio: Radio) -> None:
        self._radio = radio
        self._devices: list[int] = []

    @property
    def bind(self) -> bool:
        """Whether the network gives each device its grant, and no more."""
        return not isinstance(self._radio, NoRadio)

    def serves(self, device: int) -> bool:
        """Whether the radio can give the device anything."""
        says = getattr(self._radio, "serves", None)
        return True if says is None else bool(says(device))

    def give(self, devices: Sequence[int], bandwidth_hz: Floats, rate_bps: Floats) -> None:
        """Take back what holds, and grant each device its share."""
        self.take_back()
        for device, each_hz, each_bps in zip(devices, bandwidth_hz.tolist(), rate_bps.tolist(), strict=True):
            self._devices.append(device)
            self._radio.grant(device, each_hz, each_bps)

    def take_back(self) -> None:
        """Release every device, also where the radio fails at some of them; then its first error is raised."""
        first: BaseException | None = None
        while self._devices:
            try:
                self._radio.release(self._devices.pop(0))
            except BaseException as error:  # a Ctrl-C too must leave no device with its grant
                first = first or error
        if first is not None:
            raise first


def radio_of(given: Radio | str) -> Radio:
    """The radio that a strategy is given, an object or a text; ValueError where it is none."""
    if isinstance(given, str):
        return radio_named(given)
    if not all(callable(getattr(given, name, None)) for name in ("grant", "release")):
        raise ValueError(
            f'radio is {given!r:.40}; it must be "none", "tc:eth{{device}}", or an object with grant and release'
        )
    return given


def radio_named(text: str) -> Radio:
    """The radio that a text means: "none", or "tc:" and the interface of a device, after its namespace and a slash if
    it is in one; `{device}` stands for the number of the device. ValueError where it means none."""
    kind, _, where = text.partition(":")
    namespace, slash, interface = where.rpartition("/")
    if text == "none":
        return NoRadio()
    if kind != "tc" or "{device}" not in where or not interface or bool(slash) != bool(namespace):
        raise ValueError(
            f'radio is "{text:.60}"; it must be "none", or "tc:" with the interface of each device, such as '
            '"tc:eth{device}" or "tc:namespace-{device}/eth0"'
        )

    def link(device: int) -> Link:
        named = [part.replace("{device}", str(device)) for part in (interface, namespace)]
        return Link(named[0], named[1] or None)

    link(0)  # refuses names that cannot be
    return TcRadio(link)


def bucket_bytes(rate_bps: float) -> int:
    """The size of the token bucket: two frames, and what passes while a timer of the kernel is late.

    With less, tokens are lost whenever the kernel looks at the bucket late, and the link is slower than its rate; with
    more, more of an upload passes before the rate holds.
    """
    return 2 * FRAME_BYTES + math.ceil(rate_bps * _LATE_S / 8.0)


def queue_bytes(rate_bps: float) -> int:
    """How much may wait for tokens. What is more is dropped before it takes any, which TCP sees and mends at once.

    A queue of seconds is worse: TCP takes packets for lost that wait in it, and sends all of them a second time.
    """
    return max(_MIN_QUEUE_FRAMES * FRAME_BYTES, math.ceil(rate_bps * _LONGEST_QUEUE_S / 8.0))


def token_bucket(rate_bps: float) -> list[str]:
    """The words by which `tc` makes a link of this rate."""
    return [
        "tbf",
        *("rate", f"{round(rate_bps)}bit"),
        *("burst", f"{bucket_bytes(rate_bps)}b"),
        *("limit", f"{queue_bytes(rate_bps)}b"),
    ]


def _checked_rate(rate_bps: float, what: str) -> float:
    if isinstance(rate_bps, bool) or not isinstance(rate_bps, int | float) or not MIN_BPS <= rate_bps < 1e12:
        raise ValueError(f"{what} is {rate_bps!r:.40}; it must be a number of bit/s from 8 to 1e12")
    return float(rate_bps)


def _tc(link: Link, words: Sequence[str]) -> None:
    """Run tc; OSError with what it said where it fails."""
    command = ["tc", *([] if link.namespace is None else ["-n", link.namespace]), *words]
    where = link.interface if link.namespace is None else f"{link.interface} in namespace {link.namespace}"
    try:
        run_command(command, needs=IPROUTE2, timeout_s=_TC_TIMEOUT_S)
    except CommandError as error:
        raise OSError(
            f"tc cannot shape {where}: {error}; it needs the right to set up networks (root, CAP_NET_ADMIN)"
        ) from None
    except OSError as error:
        raise OSError(f"the radio cannot shape {where}: {error}") from None
