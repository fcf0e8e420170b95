import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flare.records import RunFolder
from flare.rng import stream
from tests.record_writer import CHECKPOINT_EVERY, CONFIG, resume, start, write
from tests.run_folders import assert_restored, expected, lines

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


class Writers:
    """A process that starts writers (tests/record_writer.py), so that each is there in a millisecond."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.record_writer"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )

    def ask(self, task):
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def writers():
    started = Writers()
    yield started
    started.process.stdin.close()
    started.process.stdout.close()
    assert started.process.wait(timeout=60) == 0


def test_killed_at_any_moment_the_run_continues_as_if_it_had_not_been(path, writers):
    rng = stream(0, "moments")
    lost_rounds = 0
    for kill in range(24):
        # Half of them while the writer still opens and restores the folder.
        child = writers.ask(f"write {path}" if kill % 2 == 0 else f"begin {path}")
        if kill % 2 == 0:
            with pytest.raises(ValueError, match="is being written by another process"):
                RunFolder.open(path).restore()
        time.sleep(rng.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert writers.ask("reap") == -signal.SIGKILL
        recorded = len(lines(path))
        with RunFolder.open(path) as folder:
            _, done = resume(folder)
        assert done % CHECKPOINT_EVERY == 0
        assert recorded - CHECKPOINT_EVERY <= done <= recorded
        lost_rounds += recorded - done
        assert_restored(path, done)
    assert lost_rounds > 0
    with RunFolder.open(path) as folder:
        write(folder, *resume(folder), done + 10)
    assert lines(path) == expected(done + 10)[1]


def test_killed_while_the_folder_is_made_it_can_be_made_again(tmp_path, writers):
    rng = stream(1, "moments")
    for kill in range(20):
        path = tmp_path / f"{kill}"
        child = writers.ask(f"begin {path}")
        time.sleep(rng.uniform(0, 0.012))
        os.kill(child, signal.SIGKILL)
        assert writers.ask("reap") == -signal.SIGKILL
        with RunFolder.create(path, CONFIG, force=True) as folder:
            write(folder, start(), 0, 4)
        assert_restored(path, 3)
