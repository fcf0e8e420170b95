"""The network of the testbed without one: who may take down what, and what ends it in which order."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from flare.testbed import network, programs, rights, run
from flare.testbed.settings import Settings
from tests.hostile import flare

SERVER, ONE, OTHER = "flare-testbed-server", "flare-testbed-1", "flare-testbed-7"
QUICK = Settings(policies=("cm",), rounds=1, devices=2, update_bits=1e5, calibration_rounds=0, tls=False)


class Machine:
    """Files in place of the kernel's namespaces: each has an inode, and a name can be bound to another's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named, self.programs, self.deleted = folder / "netns", {SERVER: "901", ONE: "902"}, list[str]()
        self.ended: list[int] = []
        for who in ("1", "self"):
            (folder / "proc" / who / "ns").mkdir(parents=True)
        self.own = folder / "proc" / "1" / "ns" / "net"
        self.own.touch()
        (folder / "proc" / "self" / "ns" / "net").hardlink_to(self.own)
        self.named.mkdir()
        monkeypatch.setattr(network, "NOTES", folder / "notes")
        monkeypatch.setattr(network, "_NAMED", self.named)
        monkeypatch.setattr(network, "_PROC", folder / "proc")
        monkeypatch.setattr(network, "_POLITE_S", 0.0)
        monkeypatch.setattr(network, "_signal", lambda pid, how: self.ended.append(pid))
        monkeypatch.setattr(network, "ip", self.ip)
        monkeypatch.setattr(rights, "refuse", lambda: None)

    def ip(self, *words: str) -> str:
        if words[:2] == ("netns", "add"):
            (self.named / words[2]).touch(exist_ok=False)
        if words[:2] == ("netns", "delete"):
            (self.named / words[2]).unlink()
            self.deleted.append(words[2])
        if words[:2] == ("netns", "pids"):
            return self.programs.get(words[2], "1")
        return "\n".join(os.listdir(self.named)) if words == ("netns", "list") else ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_only_what_a_testbed_made_is_taken_down(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of others, however alike, and our names for others' networks: that of the machine, and one made anew."""
    for name in (ONE, SERVER, "flare-testbed-2"):
        network.add(name)
    (machine.named / "kept").hardlink_to(machine.named / "flare-testbed-2")  # so that its inode is not used again
    (machine.named / "flare-testbed-2").unlink()
    (machine.named / "flare-testbed-2").touch()
    (machine.named / OTHER).hardlink_to(machine.own)
    (network.NOTES / OTHER).write_text(str(machine.own.stat().st_ino))
    for name in ("my-flare-testbed-1", "flare-testbed-x", "vpn"):
        (machine.named / name).touch()
    code, said, wrong = flare(capsys, "testbed", "--clean")
    assert code == 0, wrong
    assert "2 namespaces and 2 programs of a testbed were taken down" in said
    assert machine.deleted == [ONE, SERVER]
    assert set(machine.ended) == {901, 902}
    for name in ("flare-testbed-2", OTHER):
        assert f"{name} is left as it is: no testbed is known to have made it" in " ".join(said.split())
    with pytest.raises(ValueError, match=r"a testbed is up on this machine, or one was killed.*--clean"):
        network.refuse_second()


def test_the_second_of_two_testbeds_leaves_the_first_alone(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with network.alone():
        network.add(SERVER)
        for words in (("--out", str(tmp_path / "bed")), ("--clean",)):
            code, _, wrong = flare(capsys, "testbed", *words)
            assert code == 2
            assert "a testbed is running on this machine" in wrong
    assert machine.deleted == []
    assert not (tmp_path / "bed").exists()


def test_what_another_made_is_not_taken_down_at_the_end(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: programs.Programs, num_devices: int) -> None:
        network.add(OTHER)
        raise OSError("it does not start")

    monkeypatch.setattr(programs.Programs, "begin", begin)
    with pytest.raises(OSError, match="it does not start"):
        run.run_testbed(QUICK, tmp_path / "bed", lambda words: None)
    assert sorted(machine.deleted) == ["flare-testbed-0", ONE, SERVER]
    assert os.listdir(machine.named) == [OTHER]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_stop_the_taking_down(
    sent: signal.Signals, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: programs.Programs, num_devices: int) -> None:
        signal.raise_signal(sent)  # to this thread: another would pass it on later

    def delete(name: str) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(each)
        network.ip("netns", "delete", name)

    monkeypatch.setattr(programs.Programs, "begin", begin)
    monkeypatch.setattr(network, "delete", delete)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests may have had it ignored
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(KeyboardInterrupt):
        run.run_testbed(QUICK, tmp_path / "bed", lambda words: None)
    assert os.listdir(machine.named) == []
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
    signal.signal(signal.SIGHUP, hang_up)


@pytest.mark.parametrize("name", ["it's", 'a"b', "a\\b", "a\nb"])
def test_a_folder_that_cannot_be_quoted_is_refused_before_anything_is_up(
    name: str, machine: Machine, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="has quotes, backslashes or unprintable characters; give another folder"):
        run.run_testbed(QUICK, tmp_path / name, lambda words: None)
    assert os.listdir(machine.named) == []
    assert not (tmp_path / name).exists()


def test_clean_without_rights_says_what_it_needs(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    code, _, wrong = flare(capsys, "testbed", "--clean")
    assert code == 2
    assert "Permission denied): it needs Linux and the rights of root" in " ".join(wrong.split())


def test_what_cannot_be_taken_down_does_not_keep_the_rest(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first namespace cannot be looked into or removed: the others go, programs are waited for, and it is said."""
    reaped: list[bool] = []

    def ip(*words: str) -> str:
        if words[0] == "netns" and words[1] in ("pids", "delete") and words[2] == "flare-testbed-0":
            raise OSError("device or resource busy")
        return machine.ip(*words)

    monkeypatch.setattr(network, "ip", ip)
    monkeypatch.setattr(programs.Programs, "begin", lambda self, num_devices: network.add(OTHER))
    monkeypatch.setattr(programs.Programs, "carry_out", lambda *_: None)
    monkeypatch.setattr(programs.Programs, "end_capture", lambda self: None)
    monkeypatch.setattr(programs.Programs, "reap", lambda self: reaped.append(True))
    with pytest.raises(OSError, match=r"flare-testbed-0 is still there: device or resource busy\).*--clean"):
        run.run_testbed(QUICK, tmp_path / "bed", lambda words: None)
    assert sorted(machine.deleted) == [ONE, SERVER]
    assert set(machine.ended) == {901, 902}
    assert reaped == [True]


def test_a_program_that_does_not_end_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 20.0)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(OSError, match="ip netns list: no answer within 20 s"):
        network.ip("netns", "list")


def test_a_probe_that_is_half_made_is_removed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def ip(*words: str) -> str:
        if "lo" in words:
            raise OSError("no loopback")
        return machine.ip(*words)

    monkeypatch.setattr(network, "ip", ip)
    assert "does not allow network namespaces (no loopback)" in str(rights._refused())
    assert os.listdir(machine.named) == []
