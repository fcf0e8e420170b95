"""Flower's programs in the namespaces of the testbed, and the app that they run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flare.commands import CommandError, run_command
from flare.config import Config, to_toml
from flare.records import RunFolder
from flare.records.manifest import is_run_folder
from flare.testbed import network
from flare.testbed.rights import program

PORT = 8000
_PATIENCE_S = 120.0
_APP = """[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "testbed"
version = "1.0.0"
description = "The testbed of FLARE."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["testbed"]

[tool.flwr.app]
publisher = "flare"
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "testbed.server_app:app"
clientapp = "testbed.client_app:app"

[tool.flwr.app.config]
config = ""
folder = ""
moments = ""
run = ""
timeout-s = 300.0
"""


@dataclass
class Programs:
    """The programs of a testbed, whose files lie in a folder: their logs, their home, keys, and the app."""

    folder: Path
    tls: bool
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    capturing: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        for part in ("logs", "home/.flwr", "app/testbed", "keys"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        (self.folder / "app" / "pyproject.toml").write_text(_APP)
        (self.folder / "app" / "testbed" / "__init__.py").write_text('"""The testbed of FLARE."""\n')
        for side in ("server_app", "client_app"):
            text = f'"""See flare.testbed.{side}."""\n\nfrom flare.testbed.{side} import app\n\n__all__ = ["app"]\n'
            (self.folder / "app" / "testbed" / f"{side}.py").write_text(text)
        trust = f'root-certificates = "{self.certificate}"' if self.tls else "insecure = true"
        text = f'[superlink]\ndefault = "bed"\n\n[superlink.bed]\naddress = "127.0.0.1:{PORT}"\n{trust}\n'
        (self.folder / "home" / ".flwr" / "config.toml").write_text(text)

    @property
    def certificate(self) -> Path:
        """That of the authority, which nodes trust."""
        return self.folder / "keys" / "ca.crt"

    @property
    def frames(self) -> Path:
        """The file of all frames on the links."""
        return self.folder / "frames.bin"

    @property
    def _env(self) -> dict[str, str]:
        beside = Path(sys.executable).parent
        return {
            **os.environ,
            "HOME": str(self.folder / "home"),
            "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def begin(self, num_devices: int) -> None:
        """Start the capture, the SuperLink and a SuperNode for each device."""
        capture = [sys.executable, "-m", "flare.testbed.capture", str(self.frames)]
        self.capturing = self._start("capture", network.SERVER, capture)
        options = ["--insecure"]
        if self.tls:
            make_keys(self.folder / "keys", num_devices)
            keys = self.folder / "keys"
            options = ["--ssl-ca-certfile", str(self.certificate), "--ssl-certfile", str(keys / "server.crt")]
            options += ["--ssl-keyfile", str(keys / "server.key")]
        words = ["--host", "0.0.0.0", "--port", str(PORT), "--disable-runtime-dependency-installation", *options]
        link = self._start("superlink", network.SERVER, [_flower("flower-superlink"), *words])
        self._wait(lambda: _listening(network.SERVER), link, "superlink", "the SuperLink listens")
        for device in range(num_devices):
            trust = ["--root-certificates", str(self.certificate)] if self.tls else ["--insecure"]
            where = ["--superlink", f"{network.server_address(device)}:{PORT}"]
            config = ["--node-config", f"partition-id={device}"]
            command = [_flower("flower-supernode"), *trust, *where, *config]
            self._start(f"node-{device}", network.namespace(device), command)

    def carry_out(self, run: str, config: Config) -> None:
        """Carry out one run on the nodes, all its rounds; OSError where it does not end well."""
        path = self.folder / "configs" / f"{run}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(to_toml(config))
        told = {"config": path, "folder": self.folder / "runs" / run, "moments": self.folder / "moments.jsonl"}
        words = " ".join(f"{name}='{value}'" for name, value in {**told, "run": run}.items())
        command = [_flower("flwr"), "run", str(self.folder / "app"), "bed", "--stream", "--run-config", words]
        started = self._start(f"run-{run}", network.SERVER, command)
        code = started.wait()
        done = len(RunFolder.open(told["folder"]).records()) if is_run_folder(told["folder"]) else 0
        if code != 0 or done < config.run.rounds:
            raise OSError(
                f"Flower ended the run {run} after {done} of {config.run.rounds} rounds, with code {code}; its last "
                f"words: {self._last_words(f'run-{run}')} (all of them: {self.folder / 'logs'})"
            )

    def end_capture(self) -> None:
        """End the capture, which then has all frames; OSError where it missed some."""
        assert self.capturing is not None
        self.capturing.terminate()
        if self.capturing.wait(timeout=30.0) != 0:
            raise OSError(f"the capture of frames failed: {self._last_words('capture')}")

    def reap(self) -> None:
        """Forget the programs, which have been ended."""
        for each in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(timeout=5.0)

    def _start(self, name: str, namespace: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log_path(name).open("ab") as log:
            started = subprocess.Popen(
                ["ip", "netns", "exec", namespace, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._env,
                start_new_session=True,  # Ctrl-C reaches the testbed alone, which takes down all in order
            )
        self.started.append(started)
        return started

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _last_words(self, name: str) -> str:
        return " ".join(self._log_path(name).read_text(errors="replace").split())[-400:]

    def _wait(self, true: Callable[[], bool], program: subprocess.Popen[bytes], name: str, what: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not true():
            if program.poll() is not None or time.monotonic() > end:
                raise OSError(f"waited in vain until {what}; its last words: {self._last_words(name)}")
            time.sleep(0.2)


def _listening(namespace: str) -> bool:
    """Whether somebody in a namespace listens on the port of the SuperLink."""
    port, state = f":{PORT:04X} ", " 0A "  # as the kernel's table writes them
    for pid in network.ip("netns", "pids", namespace).split():
        with contextlib.suppress(OSError):
            return any(port in row and state in row for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines())
    return False


def _flower(name: str) -> str:
    found = program(name)
    assert found is not None, name  # rights.refuse has looked for it
    return found


def make_keys(folder: Path, num_devices: int) -> None:
    """An authority, and a certificate for every address of the server; OSError where openssl fails."""
    names = ["DNS:localhost", "IP:127.0.0.1", *(f"IP:{network.server_address(each)}" for each in range(num_devices))]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    signs = ["-addext", "keyUsage=critical,keyCertSign"]
    ca = ["-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.crt")]
    _openssl("req", "-x509", *curve, "-days", "2", "-subj", "/CN=testbed authority", *signs, *ca)
    own = ["-keyout", str(folder / "server.key"), "-out", str(folder / "server.csr")]
    _openssl("req", *curve, "-subj", "/CN=testbed server", "-addext", f"subjectAltName={','.join(names)}", *own)
    by = ["-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"), "-copy_extensions", "copy"]
    _openssl("x509", "-req", "-days", "2", "-in", str(folder / "server.csr"), *by, "-out", str(folder / "server.crt"))


def _openssl(*words: str) -> None:
    try:
        run_command(["openssl", *words], needs="openssl", timeout_s=network.TIMEOUT_S)
    except CommandError as error:
        raise OSError(f"openssl {words[0]}: {error}") from None
