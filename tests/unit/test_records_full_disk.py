import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from flare.records import RunFolder
from tests import ready_python
from tests.record_writer import CHECKPOINT_EVERY, CONFIG, resume, snapshot, start, step, write
from tests.run_folders import assert_restored, checkpoint_names, expected, lines, written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


FAULTS = ("write", "fsync", "replace", "open")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """Counts the calls that need room; from call `full_at` on there is none, for that one call or for good."""

    def __init__(self, monkeypatch, full_at, for_good, error=errno.ENOSPC):
        self.calls, self.full_at, self.for_good, self.error = 0, full_at, for_good, error
        for name in FAULTS:
            monkeypatch.setattr(os, name, self.guarded(name, getattr(os, name)))

    def guarded(self, name, call):
        def guarded(*arguments, **keywords):
            if name == "open" and not arguments[1] & WRITING:
                return call(*arguments, **keywords)
            number, self.calls = self.calls, self.calls + 1
            if number == self.full_at or (self.for_good and number > self.full_at):
                if name == "write":  # a full disk takes what still fits
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return call(*arguments, **keywords)

        return guarded


def continued(folder, weights, done):
    write(folder, weights, done, 13)
    folder.finish("finished")


def full_disk_moments(tmp_path):
    """How many calls of a continued run need room."""
    with pytest.MonkeyPatch.context() as patch, RunFolder.open(written(tmp_path / "count", 7)) as folder:
        disk = Disk(patch, full_at=-1, for_good=False)
        continued(folder, *resume(folder))
        return disk.calls


@pytest.mark.parametrize("for_good", [False, True])
def test_a_disk_full_at_any_moment_leaves_the_run_resumable(tmp_path, for_good):
    moments = full_disk_moments(tmp_path)
    assert moments > 15
    template = written(tmp_path / "template", 7)
    for moment in range(moments):
        path = tmp_path / f"{moment}"
        shutil.copytree(template, path)
        with pytest.MonkeyPatch.context() as patch, RunFolder.open(path) as folder:
            Disk(patch, moment, for_good)
            with pytest.raises(OSError, match="could not be written") as caught:
                continued(folder, *resume(folder))
        assert f"--resume {path}" in str(caught.value)
        assert "No space left on device" in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
        assert not list(path.rglob("*.part"))
        with RunFolder.open(path) as folder:
            assert len(folder.records()) >= 6
            weights, done = resume(folder)
            assert done in (6, 9, 12)
            continued(folder, weights, done)
        assert lines(path) == expected(13)[1]
        assert checkpoint_names(path) == ["round-000009.safetensors", "round-000012.safetensors"]


def test_once_there_is_room_the_same_folder_goes_on(path, monkeypatch):
    with RunFolder.create(path, CONFIG) as folder:
        weights = write(folder, start(), 0, 5)
        weights, record = step(weights, 5)
        with monkeypatch.context() as patch:
            Disk(patch, 0, for_good=True)
            with pytest.raises(OSError, match=r"the record of a round could not be written: .*rounds.jsonl"):
                folder.append(record)
        assert lines(path) == expected(5)[1]
        folder.append(record)
        with monkeypatch.context() as patch:
            Disk(patch, 1, for_good=True)
            with pytest.raises(OSError, match=r"a checkpoint could not be written: .*round-000006.safetensors"):
                folder.checkpoint(snapshot(weights, 6))
        folder.checkpoint(snapshot(weights, 6))
    assert_restored(path, 6)


def test_an_interrupt_in_the_middle_of_a_line_takes_it_back(path, monkeypatch):
    with RunFolder.create(path, CONFIG) as folder:
        weights = write(folder, start(), 0, 4)
        write_bytes = os.write

        def interrupted(file, content):
            write_bytes(file, content[:9])
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                folder.append({"round": 4})
        folder.checkpoint(snapshot(weights, 4))
        write(folder, weights, 4, 5)
    assert lines(path) == expected(5)[1]


def test_a_folder_that_cannot_be_made_leaves_room_for_the_next_try(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, full_at=-1, for_good=False)
        RunFolder.create(tmp_path / "count", CONFIG).close()
    for moment in range(disk.calls):
        path = tmp_path / f"{moment}"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, moment, for_good=True)
            with pytest.raises(OSError, match=f"the run folder could not be written: {path}: No space.* start the run"):
                RunFolder.create(path, CONFIG)
        assert not list(path.rglob("*.part"))
        written(path, 4)
        assert_restored(path, 3)


LIMITED = """
import resource, sys
from flare.records import RunFolder
from tests.record_writer import resume, snapshot, step, write
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
folder = RunFolder.open(sys.argv[1])
weights, done = resume(folder)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
try:
    write(folder, weights, done, 1000)
except OSError as error:
    print(error.errno, error)
"""


@pytest.mark.parametrize(("limit", "what"), [(1500, "the record of a round"), (700, "a checkpoint")])
def test_a_real_limit_of_the_system_leaves_the_run_resumable(path, limit, what):
    written(path, 5)
    assert len(b"".join(expected(6)[1])) < limit  # the records of the next checkpoint fit in either case
    assert ((path / "checkpoints" / "round-000003.safetensors").stat().st_size > limit) == (what == "a checkpoint")
    command = [sys.executable, "-c", LIMITED, path, str(limit)]
    done = ready_python.run(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{errno.EFBIG} {what} could not be written: {path}")
    assert done.stdout.endswith(f"--resume {path}\n")
    recorded = len(lines(path))
    assert lines(path) == expected(recorded)[1]
    assert not list(path.rglob("*.part"))
    rounds_done = recorded // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    assert_restored(path, 3 if what == "a checkpoint" else rounds_done)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_read_only_disk_is_named_and_nothing_changed(path, monkeypatch, error):
    written(path, 5)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    with monkeypatch.context() as patch:
        Disk(patch, 0, for_good=True, error=error)
        for call in (RunFolder.open(path).restore, lambda: RunFolder.create(path / "new", CONFIG)):
            with pytest.raises(OSError, match=f"could not be written: .*{os.strerror(error)}; .*make it writable"):
                call()
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def test_a_folder_of_another_user_can_be_read_and_not_written():
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another user")
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        path = written(Path(outer) / "run", 5)
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
        try:
            os.seteuid(65534)
        except PermissionError:
            pytest.skip("this root cannot become another user")
        try:
            assert len(RunFolder.open(path).records()) == 5
            for call in (RunFolder.open(path).restore, lambda: RunFolder.create(Path(outer) / "new", CONFIG)):
                with pytest.raises(OSError, match=r"the run folder could not be written: .*: Permission denied"):
                    call()
        finally:
            os.seteuid(0)
        assert_restored(path, 3)


def test_a_read_only_folder_can_be_read_and_not_written(path):
    if os.geteuid() == 0:
        pytest.skip("root may write into read-only folders")
    written(path, 5)
    try:
        for each in (path, *path.rglob("*")):
            each.chmod(0o555 if each.is_dir() else 0o444)
        assert len(RunFolder.open(path).records()) == 5
        for call in (RunFolder.open(path).restore, lambda: RunFolder.create(path / "new", CONFIG)):
            with pytest.raises(OSError, match=r"could not be written: .*: Permission denied"):
                call()
    finally:
        for each in (path, *path.rglob("*")):
            each.chmod(0o755 if each.is_dir() else 0o644)
    assert_restored(path, 3)
