"""kill -9 at any moment, then resume: the records and weights, bit for bit, of a run never interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from flare.records.checkpoint import encode
from flare.records.checkpoints import checkpoints, read_checkpoint
from flare.rng import stream
from tests import ready_python
from tests.integration.kill_helper import kill_when, num_lines
from tests.integration.test_cli_run import ENVIRONMENT, SMALL, command, flare, records

KILLS = 24


def begin(folder: Path) -> ready_python.Started:
    """Start or continue the run, in a process that has torch and flare imported: a kill mostly hits the run itself."""
    code = "import sys; from tests.train_worker import train; train(sys.argv[1])"
    return ready_python.start([sys.executable, "-c", code, folder], folder.parent, cwd=ready_python.ROOT)


def last_checkpoint(folder: Path) -> str:
    """A digest of all that the newest checkpoint holds, apart from the check of the records, which hold wall times."""
    snapshot, _ = read_checkpoint(checkpoints(folder / "checkpoints")[0][1])
    return hashlib.sha256(b"".join(encode(snapshot, ""))).hexdigest()


def run_to_end(folder: Path) -> float:
    """How many seconds the run takes, not counting those in which the process that is copied for it gets ready."""
    ready_python.run([sys.executable, "-c", ""], cwd=ready_python.ROOT)
    start = time.monotonic()
    process = begin(folder)
    assert process.wait(240.0) == 0, process.said()
    return time.monotonic() - start


def test_a_run_killed_again_and_again_is_the_run_never_interrupted(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    takes_s = run_to_end(whole)
    draw = stream(9, "kills")
    killed, moments = 0, set()
    while killed < KILLS:
        process = begin(cut)
        code = process.wait(float(draw.uniform(0.02, 0.5)) * takes_s)  # so that few get to the end
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(20.0) in (0, -signal.SIGKILL)  # 0: it was just done
            killed += 1
            moments.add(num_lines(cut / "rounds.jsonl") if (cut / "rounds.jsonl").exists() else -1)
        else:  # it got to the end before its time: start over, there is nothing left to interrupt
            assert code == 0
            assert records(cut) == records(whole)
            shutil.rmtree(cut)
    assert len(moments) > 5  # the kills hit different rounds
    run_to_end(cut)
    assert records(cut) == records(whole)
    assert last_checkpoint(cut) == last_checkpoint(whole)
    assert json.loads((cut / "manifest.json").read_text())["status"] == "finished"


def test_the_command_killed_and_resumed(tmp_path: Path) -> None:
    settings = [*SMALL, "--set", "run.rounds=60"]
    flare("run", *settings, "--out", "whole", "--quiet", cwd=tmp_path)
    rounds = tmp_path / "cut" / "rounds.jsonl"
    ended = kill_when(
        command("run", *settings, "--out", "cut", "--quiet"),
        lambda: rounds.exists() and num_lines(rounds) >= 11,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert ended.killed
    flare("run", "--resume", "cut", "--quiet", cwd=tmp_path)
    assert records(tmp_path / "cut") == records(tmp_path / "whole")
    assert last_checkpoint(tmp_path / "cut") == last_checkpoint(tmp_path / "whole")


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(tmp_path: Path) -> None:
    flare("run", *SMALL, "--out", "whole", "--quiet", cwd=tmp_path)
    shutil.copytree(tmp_path / "whole", tmp_path / "hurt")
    newest = max((tmp_path / "hurt" / "checkpoints").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    done = flare("run", "--resume", "hurt", "--quiet", cwd=tmp_path)
    assert newest.name in done.stderr
    assert records(tmp_path / "hurt") == records(tmp_path / "whole")
    assert last_checkpoint(tmp_path / "hurt") == last_checkpoint(tmp_path / "whole")
