"""One writer at a time: also without `fcntl`, and after a process that died."""

import errno
import fcntl
import logging
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from flare.records import RunFolder
from flare.records.locking import lock
from tests import ready_python
from tests.record_writer import CONFIG
from tests.run_folders import assert_restored, lines, written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def test_a_lock_is_held_until_it_is_let_go(path):
    path.mkdir()
    let_go = lock(path)
    for _ in range(2):
        with pytest.raises(ValueError, match="is being written by another process; wait for that run to end"):
            lock(path)
    let_go()
    lock(path)()
    assert os.listdir(path) == [".lock"]


def test_a_folder_may_be_closed_by_another_thread(path):
    folder = RunFolder.create(path, CONFIG)
    closing = threading.Thread(target=folder.close)
    closing.start()
    closing.join()
    with RunFolder.open(path) as again:
        assert again.restore() is None


def test_reading_leaves_no_trace(path):
    written(path, 4)
    (path / ".lock").unlink()
    before = sorted(os.listdir(path))
    assert len(RunFolder.open(path).records()) == 4
    assert sorted(os.listdir(path)) == before


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_disk_without_locks_is_warned_of(path, monkeypatch, caplog, error):
    def refuse(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING), RunFolder.create(path, CONFIG) as folder:
        folder.append({"round": 0})
    assert caplog.text.count("is on a disk without locks; see to it that only one process writes there") == 1
    assert len(lines(path)) == 1
    with RunFolder.open(path) as folder:
        folder.restore()


def test_a_lock_that_cannot_be_had_for_another_reason_is_an_error(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    path.mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        lock(path)


NO_FCNTL = """
import os, signal, sys, warnings
for name in [name for name in sys.modules if name.split(".")[0] in ("flare", "filelock", "tests")]:
    del sys.modules[name]
sys.modules["fcntl"] = None
warnings.simplefilter("ignore")  # filelock says at import what flare logs
from pathlib import Path
from flare.records import RunFolder
from tests.record_writer import resume, write
from tests.run_folders import CONFIG, start, written
path = Path(sys.argv[1])
if sys.argv[2] == "write":
    with RunFolder.create(path, CONFIG) as folder:
        write(folder, start(), 0, 5)
if sys.argv[2] in ("resume", "die"):
    with RunFolder.open(path) as folder:
        weights, done = resume(folder)
        try:
            RunFolder.open(path).restore()
        except ValueError as error:
            print(error, flush=True)
        write(folder, weights, done, 8)
        if sys.argv[2] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
"""


def without_fcntl(path, task):
    command = [sys.executable, "-c", NO_FCNTL, path, task]
    return ready_python.run(command, cwd=ROOT)


def test_where_fcntl_does_not_exist_folders_are_made_continued_and_locked(path):
    done = without_fcntl(path, "write")
    assert done.returncode == 0, done.stderr
    assert "without locks" in done.stderr
    assert_restored(path, 3)
    (path / ".lock").unlink()  # as where it was never written with locks of the system
    died = without_fcntl(path, "die")
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert "is being written by another process" in died.stdout
    assert f"if you know that none does, remove {path / '.lock'}" in died.stdout
    again = without_fcntl(path, "resume")  # the dead process no longer counts
    assert again.returncode == 0, again.stderr
    assert_restored(path, 6)


def test_no_module_needs_fcntl_to_be_imported():
    found = [
        each
        for each in sorted((ROOT / "src" / "flare").rglob("*.py"))
        if re.search(r"^\s*(import|from) fcntl\b", each.read_text(), re.MULTILINE)
    ]
    assert found == []
