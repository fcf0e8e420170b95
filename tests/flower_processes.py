"""Flower's own programs as processes of a test: started in a world of their own, and all of them gone at its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from torch import Tensor

import flare
from flare.records.checkpoints import checkpoints, read_checkpoint
from tests import ready_flower
from tests.way_out import WayOut, way_out

ROOT = Path(__file__).resolve().parents[1]
_NOT_A_USERS = ("FLWR_", "RAY_", "UV_", "PYTHON", "PYTEST_", "OMP_", "MKL_")
"""Variables that a developer, a Makefile or the tests may have set."""
_MARK = "FLARE_TEST_MARK"


@dataclass
class World:
    """A folder with Flower's settings and the processes that were started in it.

    Every process inherits a mark in its environment: whatever the programs start in turn can be found by it, also when
    it has left its process group.
    """

    folder: Path
    out: WayOut
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)  # what the user has put into the environment
    ready: bool = False  # Flower's programs begin with everything imported

    def __post_init__(self) -> None:
        self.settings.parent.mkdir(parents=True)
        (self.folder / "examples").symlink_to(ROOT / "examples")

    @property
    def settings(self) -> Path:
        """The user's `~/.flwr/config.toml`."""
        return self.folder / "home" / ".flwr" / "config.toml"

    @property
    def env(self) -> dict[str, str]:
        """As a user has it who made FLARE's environment the active one, and set nothing else.

        A home, the port of the SuperLink in the background and the way out are the test's own: its programs neither
        meet those of another test or of the developer, nor reach anything beyond this machine.
        """
        own = {
            _MARK: self.mark,
            "HOME": str(self.folder / "home"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port("local")),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "400",
        }
        if self.ready:
            own["PATH"] = f"{ready_programs()}{os.pathsep}{own['PATH']}"
        return {**_plain(), **own, **self.out.env, **self.exported}

    def port(self, name: str) -> int:
        """A free port of this machine; the same one for the same name."""
        if name not in self.ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.ports[name] = probe.getsockname()[1]
        return self.ports[name]

    def connect(self, **settings: object) -> None:
        """Tell `flwr` where the SuperLink "fleet" is."""
        lines = [
            f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
            for key, value in settings.items()
        ]
        text = '[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\n' + "\n".join(lines) + "\n"
        self.settings.write_text(text.replace("'", '"'))

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a program that goes on; what it says is in `said(name)`."""
        if name in self.started:
            self.started[name].wait(20)  # it was killed, and is started again
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.env,
                start_new_session=True,
            )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def do(self, command: Sequence[str], limit_s: float = 240.0) -> str:
        """Run a program to its end, which must be a good one; what it said."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.env,
            timeout=limit_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout + self.logs()
        return done.stdout

    def superlink(self, *options: str) -> None:
        """Start a SuperLink and wait until it listens."""
        port = self.port("superlink")
        wait_until(lambda: not listens(port), 20, "one that was killed listens no more")
        self.start("superlink", ["flower-superlink", "--port", str(port), *options])
        wait_until(lambda: listens(port), 60, "the SuperLink listens")

    def supernode(
        self, name: str, *options: str, config: str = "", program: Sequence[str] = ("flower-supernode",)
    ) -> None:
        """Start a SuperNode."""
        address = f"127.0.0.1:{self.port('superlink')}"
        command = [*program, "--superlink", address, "--port", str(self.port(name)), *options]
        self.start(name, command + (["--node-config", config] if config else []))

    def kill(self, pids: Sequence[int], how: signal.Signals = signal.SIGKILL) -> None:
        for pid in pids:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue

    def alive(self, word: str = "") -> list[int]:
        """The processes of this world that run, and whose command holds the word."""
        mark = f"{_MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if command and word in command:
                        found.append(int(entry.name))
            except OSError:  # it has ended, or is another's
                continue
        return found

    def close(self) -> None:
        """Stop what was started, politely; nothing may be left.

        Flower's SuperExec ends by one signal that it gives itself when the program that started it is gone, and has
        been seen to go on after it. That program has nothing of FLARE, so that it is killed.
        """
        self.kill([each.pid for each in self.started.values()], signal.SIGTERM)
        if self._stays(20):
            self.kill(self.alive("flower-superexec"))
            self._stays(10)
        left = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in self.alive()]
        self.kill(self.alive())
        for each in self.started.values():
            each.wait()
        assert not left, left

    def _stays(self, limit_s: float) -> bool:
        """Whether something of this world still runs after that time."""
        end = time.monotonic() + limit_s
        while self.alive() and time.monotonic() < end:
            for each in self.started.values():
                each.poll()
            time.sleep(0.1)
        return bool(self.alive())

    def logs(self) -> str:
        return "".join(
            f"\n--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.glob("*.log")
        )


def _plain() -> dict[str, str]:
    """The environment of this process without what no user of Flower has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_A_USERS)}


_AT_FIRST = tuple(_plain().items())
"""What the processes of the tests have in common: a test may change the environment."""


def ready_programs() -> Path:
    """The folder of Flower's programs that begin with everything imported."""
    return ready_flower.programs(_AT_FIRST)


@cache
def check_installed() -> None:
    """The programs must run the FLARE that is tested: not another one, and not one that only this process sees."""
    command = [sys.executable, "-c", "import flare; print(flare.__file__)"]
    found = subprocess.run(command, cwd="/", env=_plain(), stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    assert found == flare.__file__, f"this tests {flare.__file__}, but {found} is installed: pip install -e ."


@contextmanager
def world(folder: Path, *, ready: bool = False) -> Iterator[World]:
    """A world that is empty again at the end, however the test ends.

    Its programs begin as a user's do or, `ready`, with everything imported (tests/ready_flower.py).
    """
    with way_out() as out:
        made = World(folder, out, ready=ready)
        try:
            check_installed()
            yield made
        finally:
            made.close()


def last_weights(folder: Path) -> Tensor:
    """The weights in the last checkpoint of a run folder, read only: its writer may not have let go of it yet."""
    snapshot, _ = read_checkpoint(checkpoints(folder / "checkpoints")[0][1])
    return snapshot.tensors["weights"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(true: Callable[[], bool], limit_s: float, what: str) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"waited {limit_s:g} s in vain until {what}"
        time.sleep(0.1)
