"""Every command of docs/flower.md, as a reader types them, with Flower's own programs on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch

from flare.config import override
from flare.records import RunFolder
from flare.simulation import Member, Simulation, drive
from tests import ready_python
from tests.flower_processes import ROOT, World, last_weights, listens, ready_programs, wait_until, world

GUIDE = (ROOT / "docs" / "flower.md").read_text()
SECTIONS = {
    title: re.findall(r"^```(sh|toml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
}


def follow(place: World, section: str) -> list[str]:
    """Do what the section says; what the programs that end have said. Ports and paths are those of the test."""
    said = []
    for language, text in SECTIONS[section]:
        text = text.replace("/home/me", str(place.folder)).replace(":8000", f":{place.port('superlink')}")
        if language == "toml":
            place.settings.write_text(text)
            continue
        for line in text.splitlines():
            said += step(place, shlex.split(line, comments=True))
    return said


def step(place: World, words: list[str]) -> list[str]:
    match words[0]:
        case "flower-superlink":
            place.superlink(*without_port(words[1:]))
        case "flower-supernode":
            name = f"node-{len(place.started)}"
            place.start(name, ["flower-supernode", "--port", str(place.port(name)), *without_port(words[1:])])
            wait_until(lambda: "SuperNode ID" in place.said(name), 60, f"{words} is connected")
        case "export":
            place.exported |= dict(word.split("=", 1) for word in words[1:])
        case "flare":
            done = ready_python.run([sys.executable, "-m", *words], cwd=place.folder, env=place.env)
            assert done.returncode == 0, done.stderr
            return [done.stdout + done.stderr]
        case "flwr" | "openssl" | "ssh-keygen" | "mkdir" | "cp":
            return [place.do(words)]
        case _:
            raise AssertionError(f"the guide shows {words}, which no test knows how to run")
    return []


def without_port(words: list[str]) -> list[str]:
    if "--port" not in words:
        return words
    at = words.index("--port")
    return words[:at] + words[at + 2 :]


def test_this_file_follows_every_section_that_shows_commands() -> None:
    shown = {title for title, blocks in SECTIONS.items() if any(language == "sh" for language, _ in blocks)}
    assert shown == {
        *("The first minute", "On a laptop", "Your own model and data", "Several machines"),
        *("TLS, and keys for the nodes", "What leaves your machines"),
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made
        assert all(f"`{host}`" in GUIDE for host in made.out.hosts), made.out.hosts  # and no package index


@pytest.fixture
def ready_place(tmp_path: Path) -> Iterator[World]:
    """A place whose programs begin with everything imported: that they do so alone, the other tests show."""
    with world(tmp_path, ready=True) as made:
        yield made
        assert all(f"`{host}`" in GUIDE for host in made.out.hosts), made.out.hosts


def stop_the_background(place: World) -> None:
    """End the SuperLink that `flwr run` left."""
    place.kill(place.alive("flower-superlink"), how=signal.SIGTERM)


def ports_in_a_row(first: int = 20000) -> int:
    """Three free ports of this machine, the first of which ends in 0."""
    for port in range(first, 60000, 10):
        try:
            for each in range(3):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + each))
        except OSError:
            continue
        return port
    raise AssertionError("there are no three free ports")


def ready_for(place: World, ports: Sequence[int], *, later: int) -> None:
    """Let the nodes at these ports, and what Flower itself starts for them, begin with everything imported; and what it
    starts for a message to the node at the port `later`, from the third message on: the first two ask it, and have it
    train."""
    folder = place.folder / "for-some"
    (folder / "begun").mkdir(parents=True)
    theirs = "|".join(f'*":{port} "*|*"--port {port} "*' for port in ports)
    bin = Path(sys.executable).parent
    for name in ("flower-supernode", "flower-superexec", "flwr-clientapp"):
        ready, own = f'exec "{ready_programs()}/{name}" "$@"', f'exec "{bin}/{name}" "$@"'
        begun = f'mkdir "{folder}/begun/1" 2>/dev/null || mkdir "{folder}/begun/2" 2>/dev/null'
        third = f'*":{later} "*) {begun} || {ready}; {own};; ' if name == "flwr-clientapp" else ""
        (folder / name).write_text(f'#!/bin/sh\ncase "$* " in {theirs}) {ready};; {third}*) {own};; esac\n')
        (folder / name).chmod(0o700)
    place.exported["PATH"] = f"{folder}{os.pathsep}{place.env['PATH']}"


@pytest.mark.waits(seconds=45)
def test_in_the_first_minute_three_real_nodes_train(place: World) -> None:
    """The five commands in a shell, as they are printed but for the ports, which other programs may have.

    Server and first node begin as a user's do, and so does all that Flower starts for the server and, in the first
    round, for that node: of the two others, and of the second round, it would only show the same.
    """
    first = ports_in_a_row()
    ready_for(place, (first + 1, first + 2), later=first)
    ((_, text),) = SECTIONS["The first minute"]
    text = text.replace(":8000", f":{place.port('superlink')}").replace(
        "--port 8000", f"--port {place.port('superlink')}"
    )
    install, *others = text.replace("910$device", f"{first // 10}$device").splitlines()
    assert install == 'pip install -c constraints.txt -e ".[flower]"'  # this environment was made so
    assert len(others) == 4
    assert any("extra == 'flower'" in each for each in requires("flare-wfl") or [])
    for line in others:
        place.do(["bash", "-c", line])
        wait_until(lambda: listens(place.port("superlink")), 60, "the SuperLink listens")
    recorded = RunFolder.open(place.folder / "out" / "minute").records()
    assert [(each["available"], each["faults"], each["why_nobody"]) for each in recorded] == 2 * [(3, [], "")]
    assert all(each["sent"] == each["selected"] != [] for each in recorded)
    assert all(speed > 0.0 for each in recorded for speed in each["samples_per_s"])
    assert len(list((place.folder / "for-some" / "begun").iterdir())) == 2
    place.kill(place.alive("flower-super"), how=signal.SIGTERM)
    wait_until(lambda: not place.alive("flower-super"), 60, "server and nodes have ended")


@pytest.mark.waits(seconds=40)
def test_on_a_laptop_the_run_is_that_of_the_simulator(place: World) -> None:
    """`flwr run` in simulation, with ten virtual nodes: the same schedules, and the same model."""
    follow(place, "On a laptop")
    folder = RunFolder.open(place.folder / "out" / "laptop")
    simulated = []
    clipped = override(folder.config, ["learning.clip=3"])  # "auto" is that on nodes, and off in a simulation
    member = Member(Simulation(clipped))
    drive([member], callback=lambda _, record: simulated.append(record.to_json()))
    recorded = folder.records()
    assert len(recorded) == folder.config.run.rounds == 10
    assert recorded[-1]["test_accuracy"] > 0.9  # as the guide promises, and says how much
    assert f"accuracy of {100 * recorded[-1]['test_accuracy']:.0f} %" in GUIDE
    for ours, theirs in zip(recorded, simulated, strict=True):
        assert ours["selected"] == theirs["selected"]
        assert ours["bandwidth_hz"] == pytest.approx(theirs["bandwidth_hz"], rel=1e-11)
        assert ours["lr"] == theirs["lr"]
        assert ours["test_accuracy"] == pytest.approx(theirs["test_accuracy"], abs=1e-6)
        assert ours["clipped"] == theirs["clipped"]
        assert ours["faults"] == []
    weights, wanted = last_weights(folder.path), member.state.weights
    assert torch.linalg.vector_norm(weights - wanted) < 1e-6 * torch.linalg.vector_norm(wanted)
    assert "<html" in (place.folder / "out" / "laptop.html").read_text()
    assert {"api.flower.ai", "telemetry.flower.ai"} <= place.out.hosts
    stop_the_background(place)


@pytest.mark.waits(seconds=34)
def test_a_copy_of_the_app_runs_anywhere_and_flower_can_be_silenced(place: World) -> None:
    follow(place, "What leaves your machines")
    follow(place, "Your own model and data")
    assert not (place.folder / "my-fleet").is_symlink()
    assert not place.folder.is_relative_to(ROOT)
    recorded = RunFolder.open(place.folder / "out" / "mine").records()
    assert len(recorded) == 2
    assert all(each["available"] == 10 and each["faults"] == [] for each in recorded)
    assert place.out.hosts <= {"169.254.169.254", "metadata.google.internal"}  # Ray, of the cloud it might be in
    stop_the_background(place)


@pytest.mark.waits(seconds=36)
def test_several_machines_train_together(ready_place: World) -> None:
    place = ready_place
    follow(place, "Several machines")
    recorded = RunFolder.open(place.folder / "out" / "fleet").records()
    assert [each["available"] for each in recorded] == [3, 3]
    assert all(each["faults"] == [] and each["sent"] == each["selected"] for each in recorded)
    steps = {0: 2.0, 1: 5.0, 2: 3.0}  # as their node configurations say
    for each in recorded:
        assert each["tau"] == [steps[device] for device in each["selected"]]
    assert any(each["sent"] for each in recorded)
    assert "<html" in (place.folder / "out" / "fleet.html").read_text()


@pytest.mark.waits(seconds=34)
def test_with_tls_and_keys_only_registered_nodes_take_part(ready_place: World) -> None:
    """Beside the three of the guide: a node without a key, one with a strange key, one without TLS."""
    place = ready_place
    trusting = SECTIONS["TLS, and keys for the nodes"]
    assert any("--enable-supernode-auth" in text for _, text in trusting)
    strangers = {"nokey": [], "strange": ["--auth-supernode-private-key", "keys/strange"], "plain": None}
    original = place.do

    def before_the_run(words: list[str]) -> str:
        if words[:2] == ["flwr", "run"]:
            original(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "keys/strange"])
            for name, options in strangers.items():
                trust = ["--insecure"] if options is None else ["--root-certificates", "keys/ca.crt", *options]
                place.supernode(name, *trust, config="partition-id=0")
        return original(words)

    place.do = before_the_run  # type: ignore[method-assign]
    follow(place, "TLS, and keys for the nodes")
    recorded = RunFolder.open(place.folder / "out" / "secure").records()
    assert [each["available"] for each in recorded] == [3, 3]
    assert all(each["faults"] == [] for each in recorded)
    for name in strangers:
        said = place.said(name)
        assert "SuperNode ID" not in said
        assert "Receiving" not in said
    for name in ("nokey", "strange"):
        assert "could not establish a connection" in place.said(name)
