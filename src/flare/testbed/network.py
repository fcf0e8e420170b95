"""The network of the testbed: a namespace for the server, one for each device, and a virtual link between them.

All names begin with `flare-testbed`, so that what a killed testbed left can be found and taken down by `clean`: the
namespaces are ours, and whatever runs in them was started there by a testbed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass

PREFIX = "flare-testbed"
SERVER = f"{PREFIX}-server"
"""The namespace of the SuperLink."""
PROBE = f"{PREFIX}-probe-{os.getpid()}"
"""A namespace that is made and removed at once, to see whether that is allowed."""
UPLINK = "uplink"
"""The interface of a device, in its namespace; what leaves through it is shaped."""
MAX_DEVICES = 200
_OURS = re.compile(rf"{PREFIX}-(server|probe-\d+|\d+)")
_TIMEOUT_S = 20.0
_POLITE_S = 5.0  # how long programs may take to end when they are asked to


def namespace(device: int) -> str:
    """The network namespace of a device."""
    return f"{PREFIX}-{device}"


def far_end(device: int) -> str:
    """The server's end of a device's link."""
    return f"node{device}"


def server_address(device: int) -> str:
    """Where a device finds the server."""
    return f"10.203.{device}.1"


def refuse_second() -> None:
    """ValueError where a testbed is up: there is one on a machine, and `clean` would take down the other's."""
    if found := [name for name in ours() if "probe" not in name]:
        raise ValueError(
            f"a testbed is up on this machine, or one was killed and left {found[0]}: wait for it, or take it down "
            "with flare testbed --clean"
        )


def build(num_devices: int) -> None:
    """Set up the network; OSError where the system refuses. What is half built is taken down by `clean`."""
    _add(SERVER)
    for device in range(num_devices):
        own = namespace(device)
        _add(own)
        ip("link", "add", UPLINK, "netns", own, "type", "veth", "peer", "name", far_end(device), "netns", SERVER)
        ip("-n", SERVER, "addr", "add", f"{server_address(device)}/30", "dev", far_end(device))
        ip("-n", own, "addr", "add", f"10.203.{device}.2/30", "dev", UPLINK)
        # One frame at a time: a bucket of tokens cannot let a part of a larger unit pass.
        ip("-n", own, "link", "set", UPLINK, "gso_max_segs", "1")
        ip("-n", SERVER, "link", "set", far_end(device), "up")
        ip("-n", own, "link", "set", UPLINK, "up")


def _add(name: str) -> None:
    ip("netns", "add", name)
    ip("-n", name, "link", "set", "lo", "up")


def ip(*words: str) -> str:
    """Run `ip`; what it said. OSError where it fails."""
    try:
        done = subprocess.run(
            ["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise OSError("the program ip is not here; install iproute2 (Linux only)") from None
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout


def ours() -> list[str]:
    """The namespaces of a testbed that there are, the server's last."""
    names = [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]
    return sorted((name for name in names if _OURS.fullmatch(name)), key=lambda name: (name == SERVER, name))


@dataclass(frozen=True)
class Cleaned:
    """What was taken down."""

    namespaces: list[str]
    processes: int


def clean() -> Cleaned:
    """End every program in the namespaces of a testbed, and remove them with their links."""
    names = ours()
    ended = _end_programs(names)
    for name in names:
        ip("netns", "delete", name)
    return Cleaned(names, ended)


def _end_programs(names: list[str]) -> int:
    """Ask the programs in the namespaces to end, and end those that do not; how many there were."""
    found: set[int] = set()
    for how, patience_s in ((signal.SIGTERM, _POLITE_S), (signal.SIGKILL, _POLITE_S)):
        there = _programs(names)
        found |= there
        for pid in there:
            _signal(pid, how)
        end = time.monotonic() + patience_s
        while _programs(names) and time.monotonic() < end:
            time.sleep(0.1)
    return len(found)


def _programs(names: list[str]) -> set[int]:
    return {int(pid) for name in names for pid in ip("netns", "pids", name).split()} - {os.getpid()}


def _signal(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return
