"""`flare reproduce` as a user runs it, stops it, pulls the plug on it, and runs it again."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from flare.cli.place import expected_place, place_of
from flare.cli.reproduce import NAMES, chosen, out_of, reproduce, scale_of
from flare.experiments import EXPERIMENTS, FIGURES, LOTS
from flare.records.run import read_run
from flare.sweeps import Place
from tests import ready_python
from tests.hostile import refused
from tests.integration.kill_helper import kill_when, num_lines
from tests.integration.test_cli_run import ENVIRONMENT, command, flare, records

# Three runs that train in lockstep, then twelve that are only planned, one after the other.
QUICK = ("reproduce", "fig3", "fig7", "--quick", "--seeds", "1", "--device", "cpu", "--out", "out")
TRAINED, PLANNED = 3, 12


def trials(folder: Path) -> dict[str, tuple[int, int]]:
    """The runs that are finished, each with the file that says so and when that was written."""
    return {
        path.parent.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.glob("trials/*/manifest.json")
        if b'"status": "finished"' in path.read_bytes()
    }


def rounds(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What all runs have recorded."""
    return {path.name: records(path) for path in (folder / "trials").iterdir()}


def written(folder: Path) -> dict[str, bytes]:
    """Everything but the runs."""
    paths = [path for path in folder.rglob("*") if path.is_file() and folder / "trials" not in path.parents]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reproduction that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    flare(*QUICK, "--quiet", cwd=folder)
    return folder / "out"


def test_the_readme_shows_this_command() -> None:
    """With the seeds, device and folder that --quick has by itself (test_defaults_of_scale_and_place)."""
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    assert f"\nflare {' '.join(QUICK[: QUICK.index('--seeds')])} " in readme


def test_the_folder_of_a_reproduction(whole: Path) -> None:
    assert len(trials(whole)) == TRAINED + PLANNED
    assert {"fig3.json", "fig7.json", "figures/fig7.png", "figures/fig3-rounds.svg"} <= set(written(whole))
    assert not list(whole.rglob("*.part"))


def in_the_middle(out: Path) -> bool:
    """Whether runs have done some rounds, and none all of them."""
    return any(num_lines(path) > 2 for path in out.glob("trials/*/rounds.jsonl")) and not trials(out)


def while_it_plans(out: Path) -> bool:
    return len(trials(out)) >= TRAINED + 2


@pytest.mark.parametrize("moment", [in_the_middle, while_it_plans])
def test_killed_and_started_again(moment: Callable[[Path], bool], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = kill_when(command(*QUICK, "--quiet"), lambda: moment(out), cwd=tmp_path, env=ENVIRONMENT)
    assert ended.killed
    before = trials(out)
    assert len(before) < TRAINED + PLANNED
    assert all(read_run(out / "trials" / name).ended for name in before)
    assert not list(out.glob("*.json"))
    flare(*QUICK, "--quiet", cwd=tmp_path)
    after = trials(out)
    assert {name: after[name] for name in before} == before  # not one was done again
    assert rounds(out) == rounds(whole)
    assert written(out) == written(whole)


def test_runs_that_are_kept_in_one_file_need_no_folder(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out", ignore=shutil.ignore_patterns("trials", "*.json", "figures"))
    flare(*QUICK, "--quiet", cwd=tmp_path)
    assert not list((tmp_path / "out" / "trials").iterdir())
    assert written(tmp_path / "out") == written(whole)


def test_a_damaged_file_of_kept_runs_is_told_before_any_run(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out", ignore=shutil.ignore_patterns("trials"))
    path = tmp_path / "out" / "fig7-runs.jsonl.gz"
    path.write_bytes(path.read_bytes()[:100])
    assert "fig7-runs.jsonl.gz: is damaged" in refused(*QUICK, cwd=tmp_path)
    assert len(path.read_bytes()) == 100
    assert not list(tmp_path.glob("out/trials/*"))


def test_a_trial_is_a_run_like_any_other(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    names = sorted(trials(whole))
    flare("report", f"out/trials/{names[0]}", cwd=tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    before = rounds(whole)
    assert "finished" in flare("run", "--resume", f"out/trials/{names[0]}", "--quiet", cwd=tmp_path).stdout
    assert rounds(tmp_path / "out") == before


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_does_the_rest(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = kill_when(
        command(*QUICK, "--quiet"),
        lambda: len(trials(out)) >= TRAINED + 2,
        with_signal=signal.SIGINT,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert (ended.killed, ended.returncode) == (True, 130)
    assert "the same command continues" in ended.output
    assert "Traceback" not in ended.output
    before = trials(out)
    assert TRAINED + 2 <= len(before) < TRAINED + PLANNED
    assert [path.name for path in out.glob("*.json")] == ["fig3.json"]  # whose runs are all there
    done = flare(*QUICK, cwd=tmp_path)
    assert "fig7-updates" in done.stdout
    assert {name: trials(out)[name] for name in before} == before
    assert written(out) == written(whole)


def test_ctrl_c_while_processes_start(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes; those of the pool are still importing half a second after the start."""
    seen: list[float] = []

    def starting() -> bool:
        if (tmp_path / "out" / "trials").exists():
            seen.append(time.monotonic())
        return bool(seen) and seen[-1] > seen[0] + 0.5

    arguments = [*QUICK, "--quiet", "--processes", "2"]
    ended = kill_when(command(*arguments), starting, with_signal=signal.SIGINT, cwd=tmp_path, env=ENVIRONMENT)
    assert (ended.killed, ended.returncode) == (True, 130)
    assert "the same command continues" in ended.output
    assert "Traceback" not in ended.output


LONG = """
import sys
from pathlib import Path

if __name__ == "__main__":  # what the processes need of this they import themselves
    from flare.config import Config, override
    from flare.experiments.trial import Trial, run_trials
    from flare.sweeps import Place

    def trial(*settings):
        common = ["run.payload=wireless", "wireless.deadline_s=1.0", "run.evaluate_every=1000"]
        return Trial("", "", override(Config(), [*common, *settings]))

    trials = [trial("learning.model=mlp", "run.rounds=1000000"), trial("learning.model=logistic", "run.rounds=2")]
    run_trials(trials, Path(sys.argv[1]) / "trials", Place("cpu", 2))
"""


def test_no_process_outlives_the_command_that_was_killed(tmp_path: Path) -> None:
    """One of two processes is at work, the other has done its part: both go when their parent is killed."""
    (tmp_path / "long.py").write_text(LONG)
    os.mkfifo(tmp_path / "out")  # all that the processes say goes there
    process: ready_python.Started | None = None
    with open(os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as said:
        try:
            script = [sys.executable, tmp_path / "long.py", "made"]
            process = ready_python.start(script, tmp_path, cwd=tmp_path, env=ENVIRONMENT)
            for _ in range(600):
                if trials(tmp_path / "made"):
                    break
                assert process.poll() is None
                time.sleep(0.1)
            os.kill(process.pid, signal.SIGKILL)
            assert process.wait(10.0) == -signal.SIGKILL
            end = time.monotonic() + 10.0
            while said.read(1000) != b"":  # until the last process that could write there has closed it
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def test_json_is_the_claims(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "trials", tmp_path / "results-quick" / "trials")  # those of the first seed need not run
    arguments = ("reproduce", "fig7", "--quick", "--seeds", "3", "--device", "cpu", "--json")
    claims = json.loads(flare(*arguments, cwd=tmp_path).stdout)
    assert [claim["name"] for claim in claims] == ["fig7-updates", "fig7-devices"]
    written = json.loads((tmp_path / "results-quick" / "fig7.json").read_text())
    assert written["claims"] == claims
    assert written["seeds"] == [0, 1, 2]
    for claim in claims:
        assert claim["verdict"] in ("holds", "fails", "not decided")
        assert claim["effect"]["low"] <= claim["effect"]["mean"] <= claim["effect"]["high"]
    again = flare("reproduce", "fig7", "--quick", "--device", "cpu", cwd=tmp_path)  # two seeds are what --quick means
    assert again.stderr == ""
    assert "fig7-updates" in again.stdout
    assert "nothing of the paper" in again.stdout


def test_more_seeds_do_only_what_they_add(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    before = trials(tmp_path / "out")
    flare("reproduce", "fig7", "--quick", "--seeds", "2", "--device", "cpu", "--out", "out", "--quiet", cwd=tmp_path)
    after = trials(tmp_path / "out")
    assert len(after) == len(before) + PLANNED
    assert {name: after[name] for name in before} == before


def test_an_unknown_experiment_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    said = refused("reproduce", "fig3", "fig9", cwd=tmp_path)
    assert "fig9" in said
    assert all(re.search(rf"\b{name}\b", said) for name in (*EXPERIMENTS, "all", "beyond"))
    assert list(tmp_path.iterdir()) == []


def test_no_process_is_started_for_experiments_that_there_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AskedError(Exception):
        pass

    def ready(*_: Any) -> None:
        raise AskedError

    monkeypatch.setattr(sys.modules["flare.cli.reproduce"], "get_ready", ready)
    for names in (["nosuch"], ["fig3", "nosuch"]):
        with pytest.raises(ValueError, match="there is no experiment 'nosuch'"):
            reproduce(names, device="cpu", processes=2, out=tmp_path / "out")
    for name in (*EXPERIMENTS, *LOTS):
        with pytest.raises(AskedError):
            reproduce([name], device="cpu", processes=2, out=tmp_path / "out")
    assert {*EXPERIMENTS, *LOTS} == NAMES
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("processes", "kept"), [(1, False), (2, True), (3, False)])
def test_processes_that_were_started_are_kept_where_they_are_as_many_as_there_are_to_be(
    processes: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, alive = set(multiprocessing.active_children()), []

    def go(*_: Any, **__: Any) -> None:
        for process in set(multiprocessing.active_children()) - before:
            process.join(timeout=0.0 if kept else 60.0)
            alive.append(Path(f"/proc/{process.pid}").exists())  # the pool may have seen its end before the object

    monkeypatch.setattr(sys.modules["flare.cli.reproduce"], "expected_place", lambda *_: ("cpu", 2))
    monkeypatch.setattr("flare.pools.num_cores", lambda: 1)
    monkeypatch.setattr(sys.modules["flare.cli.reproduce"], "_go", go)
    reproduce(["fig3"], device="cpu", processes=processes, out=tmp_path / "out")
    assert any(alive) == kept


@pytest.mark.parametrize(
    ("given", "gpu", "expected"),
    [
        ((None, "local", "auto"), True, ("cuda", 4)),
        ((None, "local", "auto"), False, ("cpu", 1)),
        ((3, "local", "auto"), True, ("cuda", 3)),
        ((None, "local", "cpu"), True, ("cpu", 1)),
        ((3, "local", "cpu"), False, ("cpu", 3)),
        ((3, "ray", "cuda"), True, ("cuda", 1)),
        ((3, "local", "cuda"), False, ("cuda", 1)),  # it will be refused
        ((3, "local", "tpu"), True, ("tpu", 1)),
    ],
)
def test_how_many_processes_there_will_be_is_known_before_torch_is(
    given: tuple[int | None, str, str], gpu: bool, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flare.cli.place._GPU_FILES", ("/nosuch", "/dev/null" if gpu else "/nosuch"))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert expected_place(*given) == expected


def test_the_help_names_every_experiment() -> None:
    told = get_type_hints(reproduce, include_extras=True)["names"].__metadata__[0].help
    told = told.replace("fig3 to fig8", " ".join(FIGURES))
    assert set(re.findall(r"[a-z][\w-]*", told)) >= NAMES


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fig3", "--seeds", "0"], "--seeds"),
        (["fig3", "--seeds", "many"], "--seeds"),
        (["fig3", "--processes", "0"], "--processes"),
        (["fig3", "--device", "tpu"], "tpu"),
        (["fig3", "--quik"], "--quik"),
        ([], "NAME"),
    ],
    ids=lambda words: "-".join(words) or "nothing" if isinstance(words, list) else "",
)
def test_what_cannot_be_is_refused(arguments: list[str], expected: str, tmp_path: Path) -> None:
    assert expected in refused("reproduce", *arguments, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", ["out", "out/trials", "out/figures", "out/fig7.json"])
def test_a_folder_that_cannot_be_written_is_told_in_one_line(blocked: str, tmp_path: Path) -> None:
    path = tmp_path / blocked
    path.parent.mkdir(exist_ok=True)
    if blocked.endswith(".json"):
        path.mkdir()
    else:
        path.write_text("in the way")
    said = refused("reproduce", "fig7", "--quick", "--seeds", "1", "--device", "cpu", "--out", "out", cwd=tmp_path)
    assert Path(blocked).name in said
    assert path.is_dir() or path.read_text() == "in the way"
    assert not list(tmp_path.glob("out/trials/*"))  # not after hours of runs


def test_names_are_put_in_our_order_and_each_once() -> None:
    assert chosen(["rates", "fig5", "fig5", "fig3"]) == ["fig3", "fig5", "rates"]
    assert chosen(["all"]) == list(FIGURES)
    assert chosen(["gap", "all"]) == [*FIGURES, "gap"]
    assert chosen(["beyond", "all", "fig3"]) == list(EXPERIMENTS)


def test_defaults_of_scale_and_place() -> None:
    assert scale_of(None, quick=False).seeds == (0, 1, 2, 3, 4)
    assert scale_of(None, quick=True).seeds == (0, 1)
    assert scale_of(3, quick=True).seeds == (0, 1, 2)
    assert out_of(None, quick=False) == Path("results")
    assert out_of(None, quick=True) == Path("results-quick")
    assert out_of(Path("x"), quick=True) == Path("x")
    assert place_of(3, "local", None, device="cpu") == Place("cpu", 3)
    assert place_of(None, "local", None, device="cpu").processes == 1
