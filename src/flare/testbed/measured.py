"""From moments and frames to what each device really took, beside what the schedule had predicted.

The times of one device in a round, in their order:

    sent      the server begins to send out its work
    began     the device begins with it                    until then: Flower's delivery
    trained   it has computed                              until then: computing
    first     the first frame of its update is on the link     until then: hand-over from ClientApp to SuperNode
    last      the last frame of its update is on the link      until then: the upload
    fetched   the server has the update in its hands       until then: Flower's last messages, and the server's polling

The update's frames are found without reading what they carry, so that TLS changes nothing: on each connection the
device's bytes between two answers of the server are one request; the requests of at least `LARGE_BYTES` carry arrays,
all others are Flower's own messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flare.rounds import RoundRecord
from flare.testbed.capture import Frames
from flare.testbed.moments import FETCHED, SENT, TRAINED, Moment
from flare.types import Floats

LARGE_BYTES = 4096
"""A request of at least so many bytes carries an array: Flower's other requests have a few hundred to two thousand."""
MIN_PAUSE_S = 0.05
"""A link that carries nothing for so long has nothing to carry: the device waits for an answer or for its processor."""


@dataclass(frozen=True)
class OnLink:
    """What a device sent while it uploaded: when, and how many bytes."""

    first_s: float
    last_s: float
    frames: int
    frame_bytes: int  # with all headers, from the first frame of the update to the last
    tcp_bytes: int  # what TCP carried of these
    other_bytes: int  # whole frames before and after: Flower's other messages
    pauses_s: float = 0.0  # how long the link stood idle between first and last, in pauses of at least MIN_PAUSE_S


@dataclass(frozen=True)
class Delivery:
    """An update of a selected device: what was predicted, and what was measured; nan where it did not come."""

    run: str
    round: int
    device: int
    bandwidth_hz: float
    payload_bits: float
    compute_s: float  # predicted
    upload_s: float  # predicted
    deadline_s: float
    sent_s: float
    began_s: float
    trained_s: float
    fetched_s: float
    busy_s: float  # how long this machine really computed
    link: OnLink
    guard_s: float = 0.0  # what the schedule left free of the deadline

    @property
    def rate_bps(self) -> float:
        """What the schedule granted."""
        return self.payload_bits / self.upload_s

    @property
    def finish_s(self) -> float:
        """When the device was predicted to be done, from its beginning."""
        return self.compute_s + self.upload_s

    @property
    def measured_compute_s(self) -> float:
        """How long it computed."""
        return self.trained_s - self.began_s

    @property
    def measured_upload_s(self) -> float:
        """From the first frame of the update to the last."""
        return self.link.last_s - self.link.first_s

    @property
    def measured_finish_s(self) -> float:
        """From the device's beginning until the server had the update in its hands: everything counts."""
        return self.fetched_s - self.began_s

    @property
    def delivery_s(self) -> float:
        """Until the device began: Flower's polling for work, and the start of its ClientApp."""
        return self.began_s - self.sent_s

    @property
    def hand_over_s(self) -> float:
        """From the end of computing to the first frame of the update."""
        return self.link.first_s - self.trained_s

    @property
    def protocol_s(self) -> float:
        """What the bytes took that were on the link beside the update's own, at the rate of the grant."""
        return 8.0 * (self.link.frame_bytes - self.payload_bits / 8.0) / self.rate_bps

    @property
    def fetch_s(self) -> float:
        """From the last frame of the update until the server had it."""
        return self.fetched_s - self.link.last_s

    @property
    def overhead_s(self) -> float:
        """All that comes to computing and the update's own bits, from the device's beginning on."""
        return self.hand_over_s + self.protocol_s + self.fetch_s

    @property
    def net_upload_s(self) -> float:
        """The upload less what other bytes took in it."""
        return self.measured_upload_s - self.protocol_s

    @property
    def net_finish_s(self) -> float:
        """The finish less the overhead."""
        return self.measured_finish_s - self.overhead_s

    @property
    def late_s(self) -> float:
        """How much later than predicted the server had the update."""
        return self.measured_finish_s - self.finish_s

    @property
    def beyond_guard(self) -> bool:
        """Whether it came later than the guard allows for: scheduled to the end, it would have missed the deadline."""
        return not self.late_s <= self.guard_s

    @property
    def came(self) -> bool:
        """Whether the server ever had the update."""
        return math.isfinite(self.fetched_s)

    @property
    def missed(self) -> bool:
        """Whether the server did not have the update by the deadline."""
        return not self.measured_finish_s <= self.deadline_s


def deliveries(
    run: str, records: Iterable[RoundRecord], moments: Iterable[Moment], frames: Frames, guard_s: float = 0.0
) -> list[Delivery]:
    """What each selected device delivered in each round of a run that was scheduled with this guard."""
    at = {(each.what, each.round, each.device): each for each in moments}
    by_device = {int(device): frames[frames["device"] == device] for device in np.unique(frames["device"])}
    found = []
    for record in records:
        rows = zip(record.selected, record.bandwidth_hz, record.compute_s, record.upload_s, strict=True)
        bits = dict(zip(record.sent, record.payload_bits, strict=True))
        for device, bandwidth_hz, compute_s, upload_s in rows:
            sent, trained, fetched = (at.get((what, record.round, device)) for what in (SENT, TRAINED, FETCHED))
            link = _NOT_SEEN
            if trained is not None and fetched is not None and device in by_device:
                link = on_link(by_device[device], trained.time_s, fetched.time_s, _rate_bps(bits.get(device), upload_s))
            found.append(
                Delivery(
                    run,
                    record.round,
                    device,
                    bandwidth_hz,
                    bits.get(device) or math.nan,
                    compute_s,
                    upload_s,
                    record.deadline_s,
                    sent_s=math.nan if sent is None else sent.time_s,
                    began_s=math.nan if trained is None else trained.began_s,
                    trained_s=math.nan if trained is None else trained.time_s,
                    fetched_s=math.nan if fetched is None or device not in bits else fetched.time_s,
                    busy_s=math.nan if trained is None else trained.busy_s,
                    link=link,
                    guard_s=guard_s,
                )
            )
    return found


def _rate_bps(bits: float | None, upload_s: float) -> float:
    return (bits or math.nan) / upload_s


_NOT_SEEN = OnLink(math.nan, math.nan, 0, 0, 0, 0)


def on_link(frames: Frames, after_s: float, before_s: float, rate_bps: float) -> OnLink:
    """What one device sent between two moments on a link of this rate. `frames` are those of its link, in the order of
    time."""
    begin, end = np.searchsorted(frames["time_ns"], [round(1e9 * after_s), round(1e9 * before_s)])
    window = frames[begin:end]
    large = [each for each in requests(window) if each.tcp_bytes >= LARGE_BYTES]  # a part of an array at least
    if not large:
        return _NOT_SEEN
    first, last = min(each.first_ns for each in large), max(each.last_ns for each in large)
    up = window[window["up"] == 1]
    during = up[(up["time_ns"] >= first) & (up["time_ns"] <= last)]
    carried = int(during["frame_bytes"].sum())
    return OnLink(
        first_s=1e-9 * first,
        last_s=1e-9 * last,
        frames=len(during),
        frame_bytes=carried,
        tcp_bytes=int(during["tcp_bytes"].sum()),
        other_bytes=int(up["frame_bytes"].sum()) - carried,
        pauses_s=_pauses_s(during, rate_bps),
    )


def _pauses_s(frames: Frames, rate_bps: float) -> float:
    """How long a link stood idle between frames: by how much longer one follows another than it takes itself."""
    since_s: Floats = 1e-9 * np.diff(frames["time_ns"].astype(np.int64)).astype(np.float64)
    idle_s = since_s - 8.0 * frames["frame_bytes"][1:] / rate_bps
    return float(idle_s[idle_s >= MIN_PAUSE_S].sum())


@dataclass(frozen=True)
class Request:
    """What a device sent on a connection between two answers of the server."""

    first_ns: int
    last_ns: int
    tcp_bytes: int


def requests(frames: Frames) -> Iterator[Request]:
    """The requests on the link of one device, connection by connection."""
    with_data = frames[frames["tcp_bytes"] > 0]
    for port in np.unique(with_data["port"]):
        yield from _requests_on(with_data[with_data["port"] == port])


def _requests_on(frames: Frames) -> Iterator[Request]:
    """The requests on one connection: runs of frames from the device, between frames from the server."""
    up = frames["up"] == 1
    run = np.cumsum(np.diff(up.astype(np.int8), prepend=0) == 1)  # counts the runs of frames from the device
    for number in np.unique(run[up]):
        those = frames[up & (run == number)]
        yield Request(int(those["time_ns"][0]), int(those["time_ns"][-1]), int(those["tcp_bytes"].sum()))


def by_round(delivered: Sequence[Delivery]) -> dict[int, list[Delivery]]:
    """The deliveries of each round."""
    rounds: dict[int, list[Delivery]] = {}
    for each in delivered:
        rounds.setdefault(each.round, []).append(each)
    return rounds


def last_s(those: Iterable[Delivery], finish: Callable[[Delivery], float]) -> float:
    """The finish of the last device of a round: infinite where an update never came, nan where one is not known."""
    finishes = [finish(each) if each.came else math.inf for each in those]
    return math.nan if any(map(math.isnan, finishes)) else max(finishes)
