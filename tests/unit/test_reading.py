"""A file that somebody else wrote: read where it is small and regular, otherwise one clear error, at once."""

from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from flare.reading import read_small


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
        kinds = {tmp_path: "folder", tmp_path / "pipe": "named pipe", tmp_path / "link": "device"}
        kinds |= {tmp_path / "socket": "socket", Path("/dev/zero"): "device", Path("/dev/stdin/x"): "cannot be read"}
        for path, kind in kinds.items():
            with pytest.raises(ValueError, match=rf"cannot be read.*{kind}|{kind}") as raised:
                read_small(path, 10)
            assert str(raised.value).startswith(str(path))


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


@pytest.mark.parametrize("name", ["not-there", "a\0b", "x" * 5000])
def test_a_name_without_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_small(tmp_path / name, 10)
