"""What a studio is told: its folder, its address, its token; and the limits of what anybody may ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

HERE = "127.0.0.1"
DEFAULT_PORT = 8765


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for; what is above is refused with a word, not attempted."""

    max_body_bytes: int = 8 << 20
    max_devices: int = 10_000
    max_batch: int = 1_000
    max_batch_devices: int = 100_000
    max_seconds: float = 10.0
    proof_seconds: float = 2.0
    max_at_once: int = 8


@dataclass(frozen=True)
class Studio:
    """A studio before it is served.

    folder   where its runs are; nothing outside of it is read or written
    host     the address it listens on
    port     the port there
    token    what a request has to know, where there is one; an address that others reach needs it
    service  whether only the scheduler is served (`flare serve`), without screens and folder
    """

    folder: Path
    host: str = HERE
    port: int = DEFAULT_PORT
    token: str | None = None
    service: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < 16:
            raise ValueError("--token is shorter than 16 characters, and could be guessed; give a longer one")
        if self.token is None and not is_own_machine(self.host):
            raise ValueError(
                f"--host {self.host} can be reached from other machines, so that requests have to know a token: add "
                "--token with at least 16 characters of your own, or set FLARE_TOKEN"
            )


def is_own_machine(host: str) -> bool:
    """Whether an address is one that only programs of this machine reach."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
