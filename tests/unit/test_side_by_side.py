"""Jobs in processes that branch off: side by side where there are processors, and none is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from flare.atomic import whole_file
from flare.report import FIGURE_FORMATS
from flare.report.figures import write_figures
from flare.report.side_by_side import side_by_side

HERE = os.getpid()
_LONG_S = 30.0


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 4)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)  # an earlier test may have started CUDA in here


def have(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr("flare.report.side_by_side.num_cores", lambda: cores)


def leave_number(path: Path) -> None:
    path.write_text(str(os.getpid()))


def numbers(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.iterdir())]


def meet(mine: Path, other: Path) -> None:
    leave_number(mine)
    end_s = time.monotonic() + _LONG_S
    while not other.exists():
        assert time.monotonic() < end_s, "the other job does not come"
        time.sleep(0.001)


def test_jobs_are_done_at_the_same_time(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    side_by_side([partial(meet, a, b), partial(meet, b, a)])
    assert HERE not in numbers(tmp_path)


def test_more_jobs_than_processors_are_all_done(tmp_path: Path) -> None:
    side_by_side([partial(leave_number, tmp_path / f"{n}") for n in range(11)])
    assert len({*numbers(tmp_path), HERE}) == 12


@pytest.mark.parametrize("why", ["one processor", "a GPU in use", "another system"])
def test_all_is_done_here_where_there_can_be_no_branches(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "one processor":
        have(monkeypatch, 1)
    elif why == "a GPU in use":
        monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    else:
        monkeypatch.setattr("sys.platform", "darwin")
    side_by_side([partial(leave_number, tmp_path / f"{n}") for n in range(3)])
    assert numbers(tmp_path) == [HERE] * 3


def test_a_branch_does_all_by_itself(tmp_path: Path) -> None:
    def two_more(name: str) -> None:
        leave_number(tmp_path / name)
        side_by_side([partial(leave_number, tmp_path / f"{name}{n}") for n in range(2)])

    side_by_side([partial(two_more, name) for name in "ab"])
    found = numbers(tmp_path)
    assert [found[at] for at in (0, 0, 3, 3)] == [found[at] for at in (1, 2, 4, 5)]
    assert len({*found, HERE}) == 3


def test_a_job_that_went_wrong_is_done_once_more_without_branches(tmp_path: Path) -> None:
    def two_more(name: str) -> None:
        if os.getpid() != HERE:
            raise_error()
        side_by_side([partial(leave_number, tmp_path / f"{name}{n}") for n in range(2)])

    side_by_side([partial(two_more, name) for name in "ab"])
    assert numbers(tmp_path) == [HERE] * 4
    side_by_side([partial(leave_number, tmp_path / f"{n}") for n in range(2)])
    assert HERE not in numbers(tmp_path)[:2]  # later ones branch again


def test_where_the_system_has_no_process_left_a_job_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = iter([True, False, True])
    start = ForkProcess.start

    def scarce(branch: ForkProcess) -> None:
        if not next(starts):
            raise BlockingIOError("Resource temporarily unavailable")
        start(branch)

    monkeypatch.setattr(ForkProcess, "start", scarce)
    side_by_side([partial(leave_number, tmp_path / name) for name in "abc"])
    assert [number == HERE for number in numbers(tmp_path)] == [False, True, False]


def raise_error() -> None:
    raise ValueError("not in a branch")


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def never_end() -> None:
    while True:
        time.sleep(_LONG_S)


def test_each_branch_has_time_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is ended after a while, and those that begin later are not."""
    monkeypatch.setattr("flare.report.side_by_side._PATIENCE_S", 4.0)

    def nap(path: Path) -> None:
        time.sleep(1.5)
        leave_number(path)

    def hang(path: Path) -> None:
        if os.getpid() != HERE:
            never_end()
        leave_number(path)

    have(monkeypatch, 2)
    side_by_side([partial(hang, tmp_path / "0"), *(partial(nap, tmp_path / f"{n}") for n in range(1, 5))])
    found = numbers(tmp_path)
    assert found[0] == HERE
    assert HERE not in found[1:]


@pytest.mark.parametrize("fail", [raise_error, kill_itself, never_end])
def test_a_job_that_fails_in_its_branch_is_done_here(
    fail: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flare.report.side_by_side._PATIENCE_S", 0.5 if fail is never_end else _LONG_S)

    def work(path: Path) -> None:
        if os.getpid() != HERE:
            fail()
        leave_number(path)

    side_by_side([partial(work, tmp_path / "a"), partial(leave_number, tmp_path / "b")])
    assert numbers(tmp_path)[0] == HERE


def test_a_branch_that_is_ended_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flare.report.side_by_side._PATIENCE_S", 0.5)
    monkeypatch.setattr("flare.report.side_by_side._TO_TIDY_S", 60.0)

    def work(path: Path) -> None:
        with whole_file(path) as file:
            os.write(file, b"half")
            if os.getpid() != HERE:
                never_end()

    side_by_side([partial(work, tmp_path / "a"), partial(work, tmp_path / "b")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def two_jobs(folder: Path) -> int:
    side_by_side([partial(leave_number, folder / name) for name in "ab"])
    return os.getpid()


def test_a_process_of_a_pool_that_may_have_none_of_its_own_does_all_itself(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (number,) = pool.map(two_jobs, [tmp_path])
    assert numbers(tmp_path) == [number] * 2


def test_what_a_job_raises_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not in a branch"):
        side_by_side([raise_error, partial(leave_number, tmp_path / "b")])


def drawn() -> dict[str, Figure]:
    made = {}
    for name in ("first", "second"):
        made[name] = Figure(layout="constrained")
        made[name].add_subplot(title=name).plot([1.0, 2.0, 4.0])
    return made


def test_figures_drawn_side_by_side_are_those_drawn_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {}
    for cores in (1, 2, 8):
        have(monkeypatch, cores)
        write_figures(tmp_path / f"{cores}", drawn)
        files[cores] = {path.name: path.read_bytes() for path in (tmp_path / f"{cores}").iterdir()}
    assert set(files[1]) == {f"{name}{kind}" for name in ("first", "second") for kind in FIGURE_FORMATS}
    assert files[2] == files[1]
    assert files[8] == files[1]


def test_a_figure_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="the picture cannot be written"):
        write_figures(tmp_path / "file" / "figures", drawn)
