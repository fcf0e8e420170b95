"""The radio: what it is told of a schedule and when, and what tc is asked to do."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flare.flower import FlareStrategy, trained_arrays
from flare.flower.radio import (
    FRAME_BYTES,
    Grants,
    Link,
    NoRadio,
    TcRadio,
    bucket_bytes,
    queue_bytes,
    radio_named,
    token_bucket,
)
from tests.fleet_runs import SOUND, module, node, records, settings
from tests.fleets import FakeGrid

NOISE = 10.0 ** (-114.0 / 10.0) * 1e-3 / 1e6
"""The noise density of the settings, -114 dBm/MHz, in W/Hz."""


class Heard:
    """A radio that writes down what it is told, among the messages that go out."""

    def __init__(self, grid: FakeGrid, breaks_at: int | None = None) -> None:
        self.grid, self.breaks_at = grid, breaks_at
        self.grants: list[tuple[int, float, float]] = []
        self.released: list[int] = []
        self.trained_at_grant: list[int] = []

    def trained(self) -> int:
        return sum(each.metadata.message_type == "train" for each in self.grid.pushed)

    def grant(self, device: int, bandwidth_hz: float, rate_bps: float) -> None:
        if device == self.breaks_at:
            raise OSError("the mast is down")
        self.grants.append((device, bandwidth_hz, rate_bps))
        self.trained_at_grant.append(self.trained())

    def release(self, device: int) -> None:
        self.released.append(device)


def fleet() -> FakeGrid:
    return FakeGrid({10 + k: node(said=SOUND | {"device": float(k), "gain_db": -90.0 - 4.0 * k}) for k in range(3)})


def test_grants_are_those_of_the_schedule_before_work_goes_out(tmp_path: Path) -> None:
    grid = fleet()
    heard = Heard(grid)
    config = settings("run.rounds=2", "scheduling.policy=cm", "wireless.deadline_s=5")
    FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001, radio=heard).start(grid, trained_arrays(module()))
    told = records(tmp_path / "run")
    wanted = [
        (device, hz, hz * math.log2(1.0 + SOUND["power_w"] * 10.0 ** (-9.0 - 0.4 * device) / (NOISE * hz)))  # Eq. (5)
        for each in told
        for device, hz in zip(each["selected"], each["bandwidth_hz"], strict=True)
    ]
    assert len(wanted) == 6
    assert [each[:2] for each in heard.grants] == [each[:2] for each in wanted]
    assert [each[2] for each in heard.grants] == pytest.approx([each[2] for each in wanted])
    assert heard.trained_at_grant == [0, 0, 0, 3, 3, 3]  # all of a round, before any work of it
    assert heard.released == [0, 1, 2, 0, 1, 2]


def test_a_radio_that_fails_ends_the_run_and_holds_no_grant(tmp_path: Path) -> None:
    grid = fleet()
    heard = Heard(grid, breaks_at=2)
    strategy = FlareStrategy(settings("wireless.deadline_s=5"), folder=tmp_path / "run", poll_s=0.001, radio=heard)
    with pytest.raises(OSError, match="the mast is down"):
        strategy.start(grid, trained_arrays(module()))
    assert heard.trained() == 0
    assert sorted(heard.released) == [0, 1, 2]
    FlareStrategy(settings("wireless.deadline_s=5"), folder=tmp_path / "run", poll_s=0.001, radio=NoRadio()).start(
        grid, trained_arrays(module())
    )
    assert len(records(tmp_path / "run")) == 3  # it goes on where it was


class Broken:
    """A radio that fails at the release of some devices, and at the grant of others."""

    def __init__(self, *, releases: tuple[int, ...] = (), grants: tuple[int, ...] = ()) -> None:
        self.releases, self.grants = releases, grants
        self.granted: list[int] = []
        self.released: list[int] = []

    def grant(self, device: int, bandwidth_hz: float, rate_bps: float) -> None:
        self.granted.append(device)
        if device in self.grants:
            raise OSError(f"no grant for {device}")

    def release(self, device: int) -> None:
        self.released.append(device)
        if device in self.releases:
            raise OSError(f"no release of {device}")


def test_every_device_is_released_also_where_the_radio_fails_at_some() -> None:
    broken, hz = Broken(releases=(0, 2), grants=(3,)), np.ones(5)
    grants = Grants(broken)
    with pytest.raises(OSError, match="no grant for 3"):
        grants.give([0, 1, 2, 3, 4], hz, hz)
    with pytest.raises(OSError, match="no release of 0"):  # the first is the likeliest cause of the others
        grants.take_back()
    assert broken.granted == broken.released == [0, 1, 2, 3]  # it may have heard of 3 before it failed
    grants.take_back()
    assert broken.released == [0, 1, 2, 3]  # each once


def test_as_many_devices_as_there_are_can_fail_to_be_released() -> None:
    """However many: more than Python would let a function call itself."""
    everybody, hz = range(2000), np.ones(2000)
    broken = Broken(releases=tuple(everybody))
    grants = Grants(broken)
    grants.give(list(everybody), hz, hz)
    with pytest.raises(OSError, match="no release of 0"):
        grants.take_back()
    assert broken.released == list(everybody)


@pytest.mark.parametrize("broken", [Broken(releases=(1,)), Broken(releases=(0, 1), grants=(1,))])
def test_a_run_whose_radio_fails_at_a_release_can_be_continued(broken: Broken, tmp_path: Path) -> None:
    """In the same process: nothing of the run is held open."""
    config, folder = settings("wireless.deadline_s=5"), tmp_path / "run"
    strategy = FlareStrategy(config, folder=folder, poll_s=0.001, radio=broken)
    with pytest.raises(OSError, match=f"no release of {broken.releases[0]}"):
        strategy.start(fleet(), trained_arrays(module()))
    assert broken.released == broken.granted
    FlareStrategy(config, folder=folder, poll_s=0.001).start(fleet(), trained_arrays(module()))
    assert [each["round"] for each in records(folder)] == [0, 1, 2]


def test_nobody_is_granted_anything_where_nobody_is_selected() -> None:
    grid = fleet()
    heard = Heard(grid)
    config = settings("run.rounds=1", "wireless.deadline_s=1e-6")
    FlareStrategy(config, poll_s=0.001, radio=heard).start(grid, trained_arrays(module()))
    assert heard.grants == heard.released == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What tc is asked, in place of tc."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_tc_is_asked_for_the_rate(asked: list[list[str]]) -> None:
    radio = TcRadio({0: Link("eth1"), 7: Link("up", "there")}, idle_bps=1e6)
    radio.grant(0, 1e6, 2_345_678.4)
    radio.grant(7, 1e6, 5e5)
    radio.release(0)
    assert " ".join(asked[0]) == "tc qdisc replace dev eth1 root tbf rate 2345678bit burst 3615b limit 73303b"
    assert " ".join(asked[1]) == "tc -n there qdisc replace dev up root tbf rate 500000bit burst 3153b limit 15625b"
    assert " ".join(asked[2]).endswith("rate 1000000bit burst 3278b limit 31250b")


def test_without_an_idle_rate_a_link_is_no_longer_shaped(asked: list[list[str]]) -> None:
    TcRadio({0: Link("eth1")}).release(0)
    wanted = ["tc qdisc replace dev eth1 root pfifo", "tc qdisc delete dev eth1 root"]
    assert [" ".join(each) for each in asked] == wanted


def test_a_radio_by_name(asked: list[list[str]]) -> None:
    assert isinstance(radio_named("none"), NoRadio)
    radio_named("tc:eth{device}").grant(3, 1e6, 1e6)
    radio_named("tc:cell-{device}/eth0").grant(12, 1e6, 1e6)
    assert [each[: each.index("root")] for each in asked] == [
        ["tc", "qdisc", "replace", "dev", "eth3"],
        ["tc", "-n", "cell-12", "qdisc", "replace", "dev", "eth0"],
    ]
    for text in ("", "tc", "tc:", "tc:eth1", "tc:/eth{device}", "tc:a-{device}/", "NONE", "wifi:eth{device}"):
        with pytest.raises(ValueError, match=r'radio is ".*"; it must be "none", or "tc:"'):
            FlareStrategy(settings(), radio=text)


@pytest.mark.parametrize("rate_bps", [8.0, 1e3, 1e6, 1e8])
def test_the_bucket_holds_two_frames_and_little_more(rate_bps: float) -> None:
    extra = bucket_bytes(rate_bps) - 2 * FRAME_BYTES
    assert 0 <= 8 * extra - rate_bps * 0.002 < 8  # what passes in two milliseconds, in whole bytes
    assert token_bucket(rate_bps)[2] == f"{rate_bps:.0f}bit"


def test_what_a_radio_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"no link of device 3 .it has those of: 0"):
        TcRadio({0: Link("eth1")}).grant(3, 1e6, 1e6)
    for rate_bps in (float("nan"), 0.0, -1.0, float("inf"), True):
        with pytest.raises(ValueError, match=r"the rate of device 0 is .*from 8 to 1e12"):
            TcRadio({0: Link("eth1")}).grant(0, 1e6, rate_bps)
    with pytest.raises(ValueError, match="idle_bps is 0"):
        TcRadio({}, idle_bps=0)
    with pytest.raises(ValueError, match="link of device 0 is 'eth1'"):
        TcRadio({0: "eth1"})  # type: ignore[dict-item]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match=r"the radio cannot shape eth1: the program tc is not here; install iproute2"):
        TcRadio({0: Link("eth1")}).grant(0, 1e6, 1e6)


def test_what_tc_says_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 2, "", "RTNETLINK answers: Operation not permitted\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(OSError, match=r"tc cannot shape eth1: RTNETLINK answers: Operation not permitted; it needs"):
        TcRadio({0: Link("eth1")}).release(0)


def test_a_node_without_a_link_is_left_out_and_the_run_goes_on(tmp_path: Path, asked: list[list[str]]) -> None:
    radio = TcRadio({0: Link("eth0"), 1: Link("eth1")})
    config = settings("run.rounds=2", "wireless.deadline_s=5")
    FlareStrategy(config, folder=tmp_path / "run", poll_s=0.001, radio=radio).start(fleet(), trained_arrays(module()))
    for each in records(tmp_path / "run"):
        assert each["sent"] == [0, 1]
        assert [fault["why"] for fault in each["faults"]] == [
            "it is device 2, of which the radio has no link; give it one"
        ]
    assert {command[4] for command in asked} == {"eth0", "eth1"}


def test_a_rate_below_what_tc_can_is_raised_and_said(asked: list[list[str]], caplog: pytest.LogCaptureFixture) -> None:
    TcRadio({0: Link("eth1")}).grant(0, 1e6, 1.5)
    assert "8bit" in asked[0]
    assert "device 0 is granted 1.5 bit/s; its link is shaped to 8" in caplog.text


@pytest.mark.parametrize("radio", [None, 5, object(), {"grant": 1}])
def test_what_is_no_radio_is_refused_at_once(radio: Any) -> None:
    with pytest.raises(ValueError, match=r"radio is .*; it must be .* or an object with grant and release"):
        FlareStrategy(settings(), radio=radio)


def test_links_that_cannot_be_are_refused_at_once() -> None:
    for links in (None, 5):
        with pytest.raises(ValueError, match=f"links is {links}; it must have the Link of each device"):
            TcRadio(links)  # type: ignore[arg-type]
    for name in ("", "a\0b", "-b", "a/b", "a b", 5, None):
        with pytest.raises(ValueError, match="the interface of a link is"):
            Link(name)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the namespace of a link is"):
        Link("eth0", "")
    for text in ("tc:\0{device}", "tc:../../{device}/eth0", "tc:-b{device}/eth0"):
        with pytest.raises(ValueError, match="of a link is"):
            FlareStrategy(settings(), radio=text)


@pytest.mark.parametrize("rate_bps", [8.0, 2e5, 4e5, 1e6, 1e9])
def test_a_packet_waits_no_longer_than_tcp_does_for_an_answer_and_a_first_flight_fits(rate_bps):
    held = queue_bytes(rate_bps)
    first_flight = 10 * FRAME_BYTES
    assert held >= first_flight
    assert held == first_flight or 8.0 * held / rate_bps == pytest.approx(0.25, rel=1e-3)
