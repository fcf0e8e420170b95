"""Bring the testbed up, carry out the runs, and take everything down again."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from flare.atomic import write_whole
from flare.reading import read_small
from flare.records import RunFolder
from flare.records.run import read_rounds
from flare.rounds import RoundRecord
from flare.testbed import network, rights
from flare.testbed.capture import FLUSH_S, read_frames
from flare.testbed.measured import LARGE_BYTES, Delivery, deliveries
from flare.testbed.moments import read_moments
from flare.testbed.programs import Programs
from flare.testbed.settings import CALIBRATION, CALIBRATION_POLICY, Settings

GUARD_FACTOR = 1.5
"""The guard is the longest overhead of the calibration times this: a few rounds do not show the worst of many."""
Say = Callable[[str], None]
MAX_FACTS_BYTES = 1_000_000
FACTS = "testbed.json"
"""The file of what was run, on what machine and when."""
_NAME = re.compile(r"(?=[.+-]*\w)[\w.+-]{1,200}")  # of a run, which is a folder: not "." or ".."


@dataclass(frozen=True)
class Results:
    """What was delivered in each run of a testbed, by its name, and which of the runs are compared."""

    delivered: dict[str, list[Delivery]]
    compared: list[str]


def run_testbed(settings: Settings, folder: Path, say: Say) -> Results:
    """Carry out the comparison. ValueError where this machine does not allow it, or the folder is not empty.

    The network is taken down however this ends, but for a kill that asks nobody: then `network.clean` does it.
    """
    rights.refuse()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; give a new folder for the files of the testbed")
    folder = folder.resolve()
    if not str(folder).isprintable() or set(str(folder)) & set("'\"\\"):
        raise ValueError(f"{str(folder)!r:.200} has quotes, backslashes or unprintable characters; give another folder")
    with network.alone():
        network.refuse_second()
        return _run_alone(settings, folder, say)


def _run_alone(settings: Settings, folder: Path, say: Say) -> Results:
    """Carry out the comparison on a machine on which no other testbed is."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = Programs(folder, settings.tls)
    began, load = time.time(), os.getloadavg()[0]
    made: list[str] = []
    with _ended_in_order():
        try:
            say(f"setting up {settings.devices} devices, each in a network namespace of its own")
            network.build(settings.devices, made)
            programs.begin(settings.devices)
            guard = _calibrated(settings, programs, say)
            for policy in settings.policies:
                say(f"policy {policy}: {settings.rounds} rounds")
                programs.carry_out(policy, settings.config(policy, guard=guard))
            programs.end_capture()
        finally:
            with _undisturbed():
                try:
                    network.clean(made)
                finally:
                    programs.reap()
    facts = {
        "runs": [*([CALIBRATION] if settings.calibration_rounds else []), *settings.policies],
        "guard": guard,
        "guard_factor": GUARD_FACTOR,
        "began": time.strftime("%Y-%m-%d", time.gmtime(began)),
        "took_s": round(time.time() - began),
        "cores": os.cpu_count(),
        "load_before": load,  # of the minute before: what else the machine did
        "system": " ".join([platform.system(), ".".join(platform.release().split(".")[:2])]),
        "flower": version("flwr"),
    }
    write_whole(folder / FACTS, json.dumps({**facts, **vars(settings)}, indent=2).encode())
    return read_testbed(folder)


def read_testbed(folder: Path) -> Results:
    """The results in the folder of a testbed; ValueError where it is none, or was not finished."""
    if not (folder / FACTS).exists():
        raise ValueError(f"{folder} has no {FACTS}: it is no folder of a testbed, or of one that did not end")
    try:
        names = json.loads(read_small(folder / FACTS, MAX_FACTS_BYTES))["runs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / FACTS} is damaged ({error})") from None
    if not isinstance(names, list) or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise ValueError(f"{folder / FACTS} is damaged (its runs are {names!r:.80}; they must be names)")
    if len(set(names)) < len(names):
        raise ValueError(f"{folder / FACTS} is damaged (one of its runs is named twice)")
    compared = [name for name in names if name != CALIBRATION]
    if not compared:
        raise ValueError(f"{folder / FACTS} names no run that could be compared")
    return Results({name: read_deliveries(folder, name) for name in names}, compared)


def read_deliveries(folder: Path, run: str) -> list[Delivery]:
    """What was delivered in a run of a testbed, from the files in its folder."""
    opened = RunFolder.open(folder / "runs" / run)
    wireless = opened.config.wireless
    moments = [each for each in read_moments(folder / "moments.jsonl") if each.run == run]
    frames, guard_s = read_frames(folder / "frames.bin"), wireless.deadline_s - wireless.usable_s
    found = deliveries(run, _predicted(opened), moments, frames, guard_s)
    came = [each for each in found if math.isfinite(each.fetched_s) and each.payload_bits >= 8.0 * LARGE_BYTES]
    if came and not any(each.link.frames for each in came):
        raise ValueError(
            f"{folder / 'frames.bin'} holds no frame of the {len(came)} updates that came in run {run}: it is damaged, "
            "or of another testbed"
        )
    return found


def _predicted(opened: RunFolder) -> Iterator[RoundRecord]:
    """The rounds of a run; ValueError where a device is predicted to take no time, with which nothing can be compared:
    no schedule says so."""
    for number, record in enumerate(read_rounds(opened), start=1):
        for name in ("compute_s", "upload_s"):
            if (least := min(getattr(record, name), default=1.0)) <= 0.0:
                raise ValueError(
                    f"{opened.path}: round {number} of its records has {name} = {least:g}, which must be greater than "
                    "0; the run folder is damaged"
                )
        yield record


def guard_for(delivered: list[Delivery]) -> str:
    """The guard that covers what came on top of the model in these deliveries; ValueError where there are none."""
    extra_s = [each.late_s for each in delivered if math.isfinite(each.late_s)]
    if not extra_s:
        raise ValueError("nothing was delivered in the calibration: no guard can be derived from it")
    return f"{math.ceil(100.0 * GUARD_FACTOR * max(0.01, *extra_s)) / 100.0:g}s"


def _calibrated(settings: Settings, programs: Programs, say: Say) -> str | None:
    """Run without a guard, and derive the guard of the others; None: that of the settings."""
    if not settings.calibration_rounds:
        return None
    say(f"calibration: {settings.calibration_rounds} rounds of {CALIBRATION_POLICY} without a guard")
    programs.carry_out(CALIBRATION, settings.config(CALIBRATION_POLICY, rounds=settings.calibration_rounds))
    time.sleep(4.0 * FLUSH_S)  # until the last frames are in their file
    guard = guard_for(read_deliveries(programs.folder, CALIBRATION))
    say(f"the overhead asks for a guard of {guard} (wireless.guard)")
    try:
        settings.config(CALIBRATION_POLICY, guard=guard)
    except ValueError as error:
        raise ValueError(
            f"{error}. The guard was derived from the calibration: take a machine that does less beside, fewer devices "
            "(--devices), or a later deadline with larger updates (--set wireless.deadline_s=30 --update 10Mbit)"
        ) from None
    return guard


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end the testbed as Ctrl-C does: everything is taken down."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal ends this: a second Ctrl-C is not heard."""
    with _handled(lambda signum, frame: None):
        yield


@contextlib.contextmanager
def _handled(how: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that end programs so; one that was ignored before, as SIGHUP under nohup, still is."""
    before = {each: signal.getsignal(each) for each in _ENDING}
    before = {each: known for each, known in before.items() if known is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, how)
    try:
        yield
    finally:
        for each, known in before.items():
            signal.signal(each, known)
