"""Every frame on the links of the testbed, with the time at which the kernel saw it.

    ip netns exec flare-testbed-server python -m flare.testbed.capture FILE

listens at the server's end of all links. A frame's time is the kernel's own, taken when it arrived: how busy the
machine is, and when this program gets to read it, does not change it. Of a frame the sizes and ports are kept, nothing
of what it carries.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.reading import open_small

FRAME = np.dtype(
    [
        ("time_ns", "<u8"),
        ("device", "<u2"),
        ("up", "u1"),  # 1: from the device to the server
        ("pad", "u1"),
        ("port", "<u2"),  # the device's: it tells its connections apart
        ("pad2", "<u2"),
        ("frame_bytes", "<u4"),
        ("tcp_bytes", "<u4"),  # what TCP carries in it, its headers apart
    ]
)
"""A frame on a link, in the file."""
Frames = NDArray[Any]
_ETH_P_ALL, _ETH_P_IP, _TCP, _OUTGOING = 0x0003, 0x0800, 6, 4
_SO_TIMESTAMPNS = 35
_PACKET_STATISTICS = 6
_SOL_PACKET = 263
_HEAD_BYTES = 94  # Ethernet, IP and TCP with all their options
_BUFFER_BYTES = 32 << 20
FLUSH_S = 0.5
"""A frame is in the file after about so long."""
MAX_FILE_BYTES = 1 << 31
"""A file of frames has no more: about 90 million of them."""
_READ_AT_ONCE = 1 << 20  # frames
_MIN_FRAME_BYTES, _MAX_FRAME_BYTES = 14, 14 + 0xFFFF  # Ethernet's header, with the longest packet of IP
_MAX_TIME_NS = 10**19  # some centuries after 1970, as of moments
_SERVER_END = re.compile(r"node(\d+)")


def read_frames(path: Path) -> Frames:
    """The frames in a file, in the order of time; one that was half written when the program was killed is left out.
    ValueError where there is none, or the file holds something else."""
    parts: list[Frames] = []
    with open_small(path, MAX_FILE_BYTES) as file:
        while len(content := file.read(_READ_AT_ONCE * FRAME.itemsize)) >= FRAME.itemsize:
            part = np.frombuffer(content[: len(content) // FRAME.itemsize * FRAME.itemsize], dtype=FRAME)
            _refuse_other(part, path, _READ_AT_ONCE * len(parts))
            parts.append(part)
    if not parts:
        raise ValueError(f"{path} holds no frame: nothing was seen on the links, or it is damaged")
    frames = np.concatenate(parts)
    return frames[np.argsort(frames["time_ns"], kind="stable")]


def _refuse_other(frames: Frames, path: Path, before: int) -> None:
    """ValueError where one of them, with so many `before` them in the file, is none that `capture` wrote."""
    sound = (frames["up"] <= 1) & (frames["pad"] == 0) & (frames["pad2"] == 0) & (frames["time_ns"] <= _MAX_TIME_NS)
    sound &= (frames["frame_bytes"] >= _MIN_FRAME_BYTES) & (frames["frame_bytes"] <= _MAX_FRAME_BYTES)
    sound &= frames["tcp_bytes"] <= frames["frame_bytes"]
    if not sound.all():
        number = before + int(np.argmin(sound)) + 1
        raise ValueError(f"{path} is damaged: entry {number} is no frame on a link; put the file of the testbed back")


@dataclass(frozen=True)
class Segment:
    """What the headers of a frame say: the ports, the length of the frame, and how much of it TCP carries."""

    source: int
    destination: int
    frame_bytes: int
    tcp_bytes: int


def parsed(head: bytes) -> Segment | None:
    """What the first bytes of a frame say; None where it carries no TCP over IPv4."""
    if len(head) < 54 or struct.unpack_from("!H", head, 12)[0] != _ETH_P_IP or head[23] != _TCP:
        return None
    ip_bytes, ip_total = 4 * (head[14] & 0x0F), struct.unpack_from("!H", head, 16)[0]
    at = 14 + ip_bytes
    if len(head) < at + 13:
        return None
    source, destination = struct.unpack_from("!HH", head, at)
    return Segment(source, destination, 14 + ip_total, max(0, ip_total - ip_bytes - 4 * (head[at + 12] >> 4)))


def capture(path: Path) -> int:
    """Write frames into the file until SIGTERM; how many were lost."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    sock.settimeout(FLUSH_S)
    names: dict[str, int | None] = {}
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    with path.open("wb") as out:
        flushed = time.monotonic()
        while not stopped:
            if time.monotonic() - flushed > FLUSH_S:
                out.flush()
                flushed = time.monotonic()
            try:
                head, told, _, address = sock.recvmsg(_HEAD_BYTES, 64)
            except TimeoutError:
                continue
            _keep(out, head, told, address, names)
    _, lost = struct.unpack("II", sock.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    return int(lost)


def _keep(out: Any, head: bytes, told: Any, address: Any, names: dict[str, int | None]) -> None:
    """Write a frame, if it is of TCP on the link of a device."""
    interface, up = address[0], address[2] != _OUTGOING
    if interface not in names:
        found = _SERVER_END.fullmatch(interface)
        names[interface] = None if found is None else int(found[1])
    device, segment = names[interface], parsed(head)
    if device is None or segment is None or not told:
        return
    seconds, nanoseconds = struct.unpack("qq", told[0][2][:16])
    port = segment.source if up else segment.destination
    row = (seconds * 10**9 + nanoseconds, device, up, 0, port, 0, segment.frame_bytes, segment.tcp_bytes)
    out.write(np.array([row], dtype=FRAME).tobytes())


if __name__ == "__main__":
    missed = capture(Path(sys.argv[1]))
    if missed:
        print(f"{missed} frames were not seen", file=sys.stderr)
        sys.exit(1)
