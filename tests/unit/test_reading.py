"""A file that somebody else wrote: read where it is small and regular, otherwise one clear error, at once."""

from __future__ import annotations

import os
import re
import socket
import tracemalloc
from pathlib import Path

import pytest

from flare.reading import open_regular, read_small


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"0123456789")
    assert read_small(path, 10) == b"0123456789"
    (tmp_path / "link").symlink_to(path)
    assert read_small(tmp_path / "link", 10) == b"0123456789"
    with pytest.raises(ValueError, match=r"small: has 10 bytes; such a file may have at most 9"):
        read_small(path, 9)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        kinds = {tmp_path: "a folder", tmp_path / "pipe": "a named pipe", tmp_path / "link": "a device"}
        kinds |= {tmp_path / "socket": "a socket", Path("/dev/zero"): "a device", Path("/dev/null"): "a device"}
        for path, kind in kinds.items():
            said = f"{path} is {kind}; it cannot be read: give a regular file"
            with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
                read_small(path, 10)


def test_a_huge_file_costs_no_memory(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"huge: has 10737418240 bytes"):
        read_small(tmp_path / "huge", 1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_file_that_does_not_say_how_long_it_is_has_an_end_too() -> None:
    with pytest.raises(ValueError, match=r"/proc/self/maps: has more than the 100 bytes"):
        read_small("/proc/self/maps", 100)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("not-there", "No such file or directory"),
        ("a\0b", "the name has a NUL in it"),
        ("x" * 5000, "File name too long"),
        ("null/x", "Not a directory"),
    ],
)
def test_a_name_without_a_file(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "null").write_bytes(b"")
    said = f"{tmp_path / name}: cannot be read ({why})"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        read_small(tmp_path / name, 10)


def test_a_link_is_followed_only_where_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.close(open_regular(tmp_path / "link"))
    with pytest.raises(ValueError, match=r"link is a link; put it back$"):
        open_regular(tmp_path / "link", follow_links=False, remedy="put it back")
