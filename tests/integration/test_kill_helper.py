import signal
import sys
import time

import pytest

from tests.integration.kill_helper import kill_after, kill_when, num_lines

COUNT = """
import sys, time
print("started", flush=True)
with open(sys.argv[1], "w", buffering=1) as file:
    for number in range(int(sys.argv[2])):
        print(number, file=file)
        time.sleep(0.001)
"""
PATIENT = """
import sys, time
try:
    open("ready", "w").close()
    for _ in range(6000):  # a signal just before a sleep is seen after it
        time.sleep(0.01)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_command_is_killed_when_the_moment_has_come(tmp_path):
    path = tmp_path / "numbers"
    ended = kill_when([sys.executable, "-c", COUNT, path, "1000000"], lambda: num_lines(path) >= 5)
    assert (ended.killed, ended.returncode) == (True, -signal.SIGKILL)
    assert ended.output == "started\n"
    lines = num_lines(path)
    assert lines >= 5
    time.sleep(0.05)
    assert num_lines(path) == lines


def test_a_command_that_ends_before_is_not_killed(tmp_path):
    ended = kill_after([sys.executable, "-c", COUNT, tmp_path / "numbers", "3"], 60)
    assert (ended.killed, ended.returncode) == (False, 0)
    assert num_lines(tmp_path / "numbers") == 3


def test_a_milder_signal_is_left_to_the_command(tmp_path):
    command = [sys.executable, "-c", PATIENT]
    ended = kill_when(command, (tmp_path / "ready").exists, with_signal=signal.SIGINT, cwd=tmp_path)
    assert (ended.killed, ended.returncode) == (True, 130)


def test_a_moment_that_never_comes_is_an_error():
    with pytest.raises(TimeoutError, match=r"waited 0\.1 s in vain"):
        kill_when([sys.executable, "-c", "import time; time.sleep(60)"], lambda: False, limit_s=0.1)
