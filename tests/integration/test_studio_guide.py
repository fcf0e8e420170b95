"""docs/studio.md as a reader follows it: every command starts, answers and ends; the client gets its schedule."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="the extra studio is not installed")

from flare.scheduling import POLICIES
from flare.studio import serving
from flare.studio.serving import bound_socket
from flare.studio.settings import Studio
from tests.hostile import flare
from tests.plugin_files import registries_as_they_were
from tests.studio_client import served

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "studio.md").read_text()
SHOWN = [
    line.split("#")[0].strip()
    for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in text.splitlines()
    if line.startswith("flare ")
]


@contextmanager
def started(arguments: list[str], folder: Path) -> Iterator[str]:
    """A server as a user starts it, until Ctrl-C: yields the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flare", *arguments], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "BROWSER": "true"}, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"http://\S+?/(?:#token=[\w-]+)?(?=[; ]|$)", said)
    assert found, said + process.communicate(timeout=10)[1]
    try:
        yield found[0]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("line", SHOWN)
def test_commands_of_the_guide_serve_what_they_say(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[Studio, int]] = []
    shown: list[str] = []

    def serve(studio: Studio, _socket: Any, *, ready: Callable[[], None], workers: int) -> None:
        asked.append((studio, workers))
        ready()

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(serving, "open_browser", shown.append)
    words = [word for word in shlex.split(line)[1:] if not word.isdecimal() and word != "--port"]
    with registries_as_they_were():
        code, out, _ = flare(capsys, *words, "--port", "0")
        assert ("frugal" in POLICIES) == ("--plugin" in words)
    ((studio, workers),) = asked
    address = f"http://127.0.0.1:{studio.port}/"
    assert code == 0
    assert address in out
    assert shown == ([] if studio.service or "--no-browser" in words else [address])
    assert (studio.service, workers > 1) == (words[0] == "serve", words[0] == "serve" and (os.cpu_count() or 1) > 1)
    assert studio.folder == (tmp_path / "out" if "out" in words else tmp_path)


def test_a_studio_starts_answers_and_ends(tmp_path: Path) -> None:
    command = ["studio", "--no-browser", "--port", "0"]
    with started(command, tmp_path) as address, urlopen(f"{address}api/about", timeout=10) as answer:
        assert json.load(answer)["folder"] == str(tmp_path)


def test_the_client_of_the_guide_is_ten_lines_and_gets_its_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    with served(tmp_path, service=True) as studio:
        exec(code.replace("8765", str(studio.port)), {})
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(f"http://127.0.0.1:{studio.port}/api/schedule", b"{}"))
    assert refused.value.code == 415
    refused.value.close()
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == ["a", "b", "c"]
    assert "MHz" in said


def test_a_token_is_asked_for_and_printed_behind_the_hash(tmp_path: Path) -> None:
    token = "a-token-that-nobody-guesses"
    with started(["serve", "--workers", "2", "--port", "0", "--token", token], tmp_path) as address:
        assert address.endswith(f"/#token={token}")
        plain = address.partition("#")[0] + "api/about"
        with pytest.raises(HTTPError) as refused:
            urlopen(plain, timeout=10)
        refused.value.close()
        with urlopen(Request(plain, headers={"Authorization": f"Bearer {token}"}), timeout=10) as answer:
            assert answer.status == 200


def test_the_service_alone_imports_neither_torch_nor_figures(tmp_path: Path) -> None:
    """Each of its processes would take the memory."""
    code = (
        "import sys; from pathlib import Path; from flare.studio import serving, settings; "
        "studio = settings.Studio(Path(), service=True); serving.warm_up(studio); "
        "serving.server_of(studio); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, stdout=subprocess.PIPE, check=True)
    assert "flare.studio.schedule_api" in done.stdout.split()
    assert not {"torch", "matplotlib", "scipy", "flare.records"} & set(done.stdout.split())


def test_a_port_that_is_taken_is_said_or_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bound_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = flare(capsys, "studio", str(tmp_path), "--no-browser", "--port", str(port))
        assert code == 2
        assert f"port {port} of 127.0.0.1 cannot be used" in err
    with bound_socket("127.0.0.1", None) as first, bound_socket("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]


@pytest.mark.parametrize(("arguments", "words"), [
    (["studio", "missing"], "no such folder"),
    (["studio", "--host", "0.0.0.0"], "--token"),
    (["serve", "--host", "192.0.2.1", "--token", "a-token-that-nobody-guesses"], "cannot be used"),
    (["serve", "--token", "short"], "could be guessed"),
    (["serve", "--workers", "0"], "--workers"),
])  # fmt: skip
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = flare(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_flare_alone_greets_with_three_commands_that_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = flare(capsys)
    assert (code, err) == (0, "")
    commands = re.findall(r"^  flare (.*?)  ", out, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["studio", "schedule", "run"]
    assert flare(capsys, *commands[1].split())[0] == 0
    assert {word for word in commands[2].split() if word.startswith("--")} <= set(
        flare(capsys, "run", "--help")[1].split()
    )
