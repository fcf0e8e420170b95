"""The network of the testbed: a namespace for the server, one for each device, and a virtual link between them.

All names begin with `flare-testbed`, so that what a killed testbed left can be found and taken down by `clean`. A name
says little, though: it may have been bound to another network since, that of the machine even. So the inode of each
namespace is noted when it is made, and only in namespaces that still are what was noted programs are ended: whatever
runs there was started by a testbed. One testbed at a time holds the lock of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from flare.commands import IPROUTE2, CommandError, run_command

PREFIX = "flare-testbed"
SERVER = f"{PREFIX}-server"
"""The namespace of the SuperLink."""
PROBE = f"{PREFIX}-probe-{os.getpid()}"
"""A namespace that is made and removed at once, to see whether that is allowed."""
UPLINK = "uplink"
"""The interface of a device, in its namespace; what leaves through it is shaped."""
MAX_DEVICES = 200
NOTES = Path("/run") / PREFIX
"""The folder of the lock, and of the inode of each namespace that a testbed made."""
_NAMED = Path("/run/netns")  # where `ip netns` keeps its names
_PROC = Path("/proc")
_OURS = re.compile(rf"{PREFIX}-(server|probe-\d+|\d+)")
TIMEOUT_S = 20.0
"""How long ip, tc and openssl may take."""
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


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of the machine; ValueError where a testbed has it, or the rights are missing."""
    try:
        NOTES.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = filelock.FileLock(NOTES / "lock")
        held.acquire(timeout=0.0)
    except filelock.Timeout:
        raise ValueError("a testbed is running on this machine: wait for it, or end it with Ctrl-C") from None
    except OSError as error:
        raise ValueError(
            f"the testbed cannot use {NOTES} ({error.strerror or error}): it needs Linux and the rights of root "
            "(CAP_NET_ADMIN and CAP_SYS_ADMIN)"
        ) from None
    try:
        yield
    finally:
        held.release()


def refuse_second() -> None:
    """ValueError where a testbed is up: there is one on a machine, and `clean` would take down the other's."""
    if found := [name for name in ours() if "probe" not in name]:
        raise ValueError(
            f"a testbed is up on this machine, or one was killed and left {found[0]}: wait for it, or take it down "
            f"with flare testbed --clean (or, if that leaves it, ip netns delete {found[0]})"
        )


def build(num_devices: int, made: list[str]) -> None:
    """Set up the network, and add the name of each namespace to `made` before it is there, so that one is not forgotten
    when this is interrupted; OSError where the system refuses."""
    add(SERVER, made)
    for device in range(num_devices):
        own = namespace(device)
        add(own, made)
        ip("link", "add", UPLINK, "netns", own, "type", "veth", "peer", "name", far_end(device), "netns", SERVER)
        ip("-n", SERVER, "addr", "add", f"{server_address(device)}/30", "dev", far_end(device))
        ip("-n", own, "addr", "add", f"10.203.{device}.2/30", "dev", UPLINK)
        # One frame at a time: a bucket of tokens cannot let a part of a larger unit pass.
        ip("-n", own, "link", "set", UPLINK, "gso_max_segs", "1")
        ip("-n", SERVER, "link", "set", far_end(device), "up")
        ip("-n", own, "link", "set", UPLINK, "up")


def add(name: str, made: list[str] | None = None) -> None:
    """Make a namespace, and note which one it is."""
    if made is not None:
        made.append(name)
    ip("netns", "add", name)
    NOTES.mkdir(mode=0o700, parents=True, exist_ok=True)
    (NOTES / name).write_text(f"{_inode(_NAMED / name)}\n")
    ip("-n", name, "link", "set", "lo", "up")


def delete(name: str) -> None:
    """Remove a namespace, and what was noted of it."""
    ip("netns", "delete", name)
    (NOTES / name).unlink(missing_ok=True)


def _inode(path: Path) -> int | None:
    """Which namespace a file stands for; None: it cannot be told."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def is_made_by_us(name: str) -> bool:
    """Whether a name stands for the namespace that a testbed made under it, and not for that of the machine or ours."""
    try:
        noted = int((NOTES / name).read_text())
    except (OSError, ValueError):
        return False
    return noted == _inode(_NAMED / name) and not _is_of_machine(name)


def _is_of_machine(name: str) -> bool:
    return _inode(_NAMED / name) in {None, *(_inode(_PROC / who / "ns" / "net") for who in ("1", "self"))}


def ip(*words: str) -> str:
    """Run `ip`; what it said. OSError where it fails."""
    try:
        return run_command(["ip", *words], needs=IPROUTE2, timeout_s=TIMEOUT_S)
    except CommandError as error:
        raise OSError(f"ip {' '.join(words)}: {error}") from None


def ours() -> list[str]:
    """The namespaces of a testbed that there are, the server's last."""
    names = [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]
    return sorted((name for name in names if _OURS.fullmatch(name)), key=lambda name: (name == SERVER, name))


@dataclass(frozen=True)
class Cleaned:
    """What was taken down."""

    namespaces: list[str]
    processes: int
    left: list[str] = field(default_factory=list)  # names of a testbed's kind that stand for what no testbed made


def clean(made: list[str] | None = None) -> Cleaned:
    """End every program in the namespaces of a testbed, and remove them with their links. `made` are the names that
    this process has given: no others are touched then. OSError at the end names what could not be taken down."""
    names = [name for name in ours() if made is None or name in made]
    sound = [name for name in names if is_made_by_us(name) or (made is not None and not _is_of_machine(name))]
    wrong: list[str] = []
    ended = _end_programs(sound, wrong)
    for name in sound:
        try:
            delete(name)
        except OSError as error:
            wrong.append(f"{name} is still there: {error}")
    still = set(ours())
    if wrong and any(name in still for name in sound):
        raise OSError(
            f"not all of the testbed could be taken down ({'; '.join(dict.fromkeys(wrong))}); "
            "try again with flare testbed --clean"
        )
    return Cleaned(sound, ended, [name for name in names if name not in sound])


def _end_programs(names: list[str], wrong: list[str]) -> int:
    """Ask the programs in the namespaces to end, and end those that do not; how many there were. What fails is added to
    `wrong`."""
    found: set[int] = set()
    for how, patience_s in ((signal.SIGTERM, _POLITE_S), (signal.SIGKILL, _POLITE_S)):
        there = _programs(names, wrong)
        found |= there
        for pid in there:
            try:
                _signal(pid, how)
            except OSError as error:
                wrong.append(f"program {pid} could not be ended: {error}")
        end = time.monotonic() + patience_s
        while _programs(names, wrong) and time.monotonic() < end:
            time.sleep(0.1)
    return len(found)


def _programs(names: list[str], wrong: list[str]) -> set[int]:
    found: set[int] = set()
    for name in names:
        try:
            found |= {int(pid) for pid in ip("netns", "pids", name).split()}
        except OSError as error:
            wrong.append(f"the programs in {name} are not known: {error}")
    return found - {os.getpid()}


def _signal(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return
