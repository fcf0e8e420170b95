import errno
import os

import pytest

from flare.atomic import write_whole


def test_pieces_are_written_one_after_the_other_over_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old and longer")
    write_whole(path, b"ne", memoryview(b"w"), b"", durable=True)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_system_that_takes_a_few_bytes_at_a_time_gets_them_all(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:3]))
    write_whole(tmp_path / "a.bin", b"0123456789", b"ab")
    assert (tmp_path / "a.bin").read_bytes() == b"0123456789ab"


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_where_any_call_fails_the_old_file_stays_and_nothing_beside_it(tmp_path, monkeypatch, call):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            write_whole(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_an_interrupt_leaves_no_partial_file(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.bin", b"new")
    assert os.listdir(tmp_path) == []


def test_a_file_is_as_readable_as_others_make_theirs(tmp_path):
    write_whole(tmp_path / "a.bin", b"new")
    (tmp_path / "b.bin").write_bytes(b"new")
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "b.bin").stat().st_mode
