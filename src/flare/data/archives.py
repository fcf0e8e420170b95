"""Data files out of archives, and nothing else: no name in an archive becomes a path, none of its code is run.

A member is taken only where it is a regular file, of the folder and the name asked for, and no larger than it should
be; what is taken is returned as bytes, and it is the caller who says where they go.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import subprocess
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol, cast

from flare.data.files import DataFile, spelled, unpacked

MAX_BYTES = 1 << 30
"""An archive that unpacks to more is refused."""
_DEB, _ZIP = b"!<arch>\n", b"PK\x03\x04"
_DEB_HEADER_BYTES = 60
_DPKG_TIMEOUT_S = 120.0
# RuntimeError: zip says so of members that are encrypted, and NotImplementedError of methods that it does not know.
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, OverflowError,
    struct.error,
)  # fmt: skip


def take(archive: Path, folder: str, wanted: Sequence[DataFile]) -> Iterator[tuple[DataFile, bytes]]:
    """The wanted files of `folder` in a tar, zip, wheel or Debian archive, unpacked, as far as they are in there.

    They are not checked yet: `DataFile.check` is the caller's. ValueError where the archive is damaged or too large.
    """
    names = {f"{folder}/{name}".strip("/"): file for file in wanted for name in spelled(file.name)}
    try:
        with archive.open("rb") as stream:
            start = stream.read(len(_DEB))
            stream.seek(0)
            if start.startswith(_ZIP):
                yield from _from_zip(stream, names)
            else:
                yield from _from_tar(_deb_data(stream, archive) if start == _DEB else stream, names)
    except _BROKEN as error:
        raise ValueError(f"{archive.name}: is a damaged archive, or one of an unknown kind ({error})") from None


def _from_zip(stream: IO[bytes], names: dict[str, DataFile]) -> Iterator[tuple[DataFile, bytes]]:
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            file = names.get(member.filename)
            if file is not None and not member.is_dir():
                with archive.open(member) as content:
                    yield file, _limited(content, file)


def _from_tar(stream: IO[bytes], names: dict[str, DataFile]) -> Iterator[tuple[DataFile, bytes]]:
    plain = cast(IO[bytes], _Capped(_decompressed(stream), MAX_BYTES))  # tarfile calls no more than read
    with tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 20) as archive:
        for member in archive:
            file = names.get(member.name.removeprefix("./"))
            content = archive.extractfile(member) if file is not None and member.isreg() else None
            if file is not None and content is not None:
                yield file, _limited(content, file)


def _limited(content: IO[bytes], file: DataFile) -> bytes:
    """What a member holds, unpacked; no more of it is read than the file it should be could have."""
    return unpacked(content.read(file.max_packed_bytes), file.size_bytes, file.name)


def _decompressed(stream: IO[bytes]) -> _Readable:
    """The stream through the decompressor that its first bytes ask for."""
    start = stream.read(6)
    stream.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(stream)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    return stream


def _deb_data(stream: IO[bytes], archive: Path) -> IO[bytes]:
    """The tar of a Debian package's files: the member `data.tar.*` of an `ar` archive."""
    stream.seek(len(_DEB))
    while header := stream.read(_DEB_HEADER_BYTES):
        try:
            name, size = header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58])
        except ValueError:
            raise ValueError(f"{archive.name}: is a damaged Debian package") from None
        if not 0 <= size <= MAX_BYTES:
            raise ValueError(f"{archive.name}: is a damaged Debian package, or far too large")
        if name.startswith("data.tar") and name.endswith(".zst"):
            return _by_dpkg(archive)
        if name.startswith("data.tar"):
            return io.BytesIO(stream.read(size))
        stream.seek(size + size % 2, io.SEEK_CUR)
    raise ValueError(f"{archive.name}: is a Debian package without data")


def _by_dpkg(archive: Path) -> IO[bytes]:
    """The same tar where it is packed in a way that Python does not know but Debian's own tool does."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacking:
        assert unpacking.stdout is not None
        plain, late = _Capped(unpacking.stdout, MAX_BYTES), threading.Timer(_DPKG_TIMEOUT_S, unpacking.kill)
        late.start()
        try:
            content = b"".join(iter(lambda: plain.read(1 << 20), b""))
        except BaseException:
            unpacking.kill()
            raise
        finally:
            late.cancel()
    if unpacking.returncode:
        raise ValueError(f"{archive.name}: is a Debian package that dpkg-deb cannot unpack")
    return io.BytesIO(content)


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Capped:
    """A stream that refuses to give more than so many bytes, however small it was packed."""

    def __init__(self, stream: _Readable, max_bytes: int) -> None:
        self._stream, self._left = stream, max_bytes

    def read(self, size: int = -1) -> bytes:
        """The next bytes; ValueError beyond the limit."""
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError("an archive unpacks to far more than a data set has; it is not read further")
        return content
