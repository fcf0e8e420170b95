"""The runs of a batch are opened in its order, the folders of new ones side by side."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from flare.config import Config, override
from flare.records import RunFolder
from flare.records.locking import InUseError
from flare.simulation import Member
from flare.sweeps.lockstep import _open, run_batch
from flare.sweeps.task import Place, Task

SMALL = ("wireless.num_devices=4", "data.name=digits", "learning.model=logistic", "run.rounds=2")


def tasks_in(folder: Path, number: int) -> list[Task]:
    configs = [override(Config(seed=seed), list(SMALL)) for seed in range(number)]
    return [Task(str(seed), config, folder / str(seed), expendable=True) for seed, config in enumerate(configs)]


def keys_opened(tasks: list[Task]) -> list[str]:
    members: list[Member] = []
    _open(tasks, Place(), 0.0, members)
    for member in members:
        member.keeper.close()
    return [member.key for member in members]


def test_in_the_order_of_the_batch_whatever_there_is_of_them(tmp_path: Path) -> None:
    tasks, before = tasks_in(tmp_path, 12), list(warnings.filters)
    run_batch(tasks[3:5], Place(), lambda *_: None, lambda: False)
    run_batch([tasks[7]], Place(), lambda *_: None, lambda: True)
    assert keys_opened(tasks) == [task.key for task in tasks]
    assert warnings.filters == before
    assert keys_opened(tasks) == [task.key for task in tasks]


def test_one_that_another_process_writes_leaves_none_open(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 4)
    with RunFolder.create(tmp_path / "2", tasks[2].config), pytest.raises(InUseError):
        run_batch(tasks, Place(), lambda *_: None, lambda: False)
    assert keys_opened(tasks) == [task.key for task in tasks]


def test_settings_that_cannot_be_touch_no_folder(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 3)
    (tmp_path / "1").write_text("a file")
    with pytest.raises((OSError, ValueError)):
        run_batch(tasks, Place(), lambda *_: None, lambda: False)
    (tmp_path / "1").unlink()
    assert keys_opened(tasks) == [task.key for task in tasks]
