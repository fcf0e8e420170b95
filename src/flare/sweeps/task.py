"""A run to carry out: its settings, its folder, and how it is begun or continued there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from flare.atomic import write_whole
from flare.config import Config
from flare.learning.engine import compute_device
from flare.reading import read_small
from flare.records import RunFolder
from flare.records.manifest import is_run_folder
from flare.records.run import ENDED, is_trained, read_run
from flare.rounds import RoundRecord, RunStatus
from flare.simulation import Member, Simulation, resume

_LIST = "comparison.json"
_MAX_LIST_BYTES = 1 << 24


@final
@dataclass(frozen=True)
class Task:
    """A run to carry out; `key` is its name among others.

    trained            False: its rounds are drawn and scheduled, nothing is trained
    keep_checkpoints   also when the run has ended; many large models would fill a disk
    expendable         a run in the folder that is another one, or damaged, makes way for this one
    allow_changed_plugins   the run is continued also where its plugins were changed since it began
    """

    key: str
    config: Config
    folder: Path
    trained: bool = True
    keep_checkpoints: bool = True
    expendable: bool = False
    allow_changed_plugins: bool = False


@final
@dataclass(frozen=True)
class Place:
    """Where runs are computed: on which device (None: where the settings of each say), by how many processes."""

    device: str | None = None
    processes: int = 1


Callback = Callable[[Task, RoundRecord, RunStatus], None]
"""Sees every round of a task, and whether it was the last."""


def anywhere(config: Config) -> Config:
    """The settings without where and how they are computed: the same run, wherever it is."""
    return replace(config, learning=replace(config.learning, engine="auto", device="auto"))


def placed(task: Task, place: Place) -> Config:
    """The settings with which a task is computed there."""
    if place.device is None:
        return task.config
    return replace(task.config, learning=replace(task.config.learning, device=place.device))


def begin(tasks: Sequence[Task], *, force: bool = False, listing: Path | None = None) -> None:
    """Make the folders of new runs. All that is wrong with their settings is found before a folder is touched.

    `listing`, the folder that they are in, gets a list of them first, for `listed`.
    """
    made_of = [_checked(task) for task in tasks]
    for task in tasks:
        RunFolder.refuse_occupied(task.folder, force=force)
    if listing is not None:
        listing.mkdir(parents=True, exist_ok=True)
        write_whole(listing / _LIST, json.dumps([task.folder.name for task in tasks]).encode())
    for task, words in zip(tasks, made_of, strict=True):
        RunFolder.create(task.folder, task.config, force=force, **words).close()


def begun(folder: Path, *, allow_changed_plugins: bool = False) -> Task:
    """The run in a folder, to continue it; ValueError where there is none, or one of its plugins was changed."""
    opened = RunFolder.open(folder)
    opened.refuse_changed_plugins(allowed=allow_changed_plugins)
    trained = is_trained(opened.manifest)
    return Task(str(folder), opened.config, folder, trained=trained, allow_changed_plugins=allow_changed_plugins)


def listed(base: Path) -> list[Path]:
    """The runs that `begin` listed in a folder; ValueError where it holds none, or not all that it should."""
    try:
        names = json.loads(read_small(base / _LIST, _MAX_LIST_BYTES))
        if not isinstance(names, list) or not names or not all(_is_plain_name(name) for name in names):
            raise ValueError("not a list of the names of folders in this one")
        folders = [base / name for name in dict.fromkeys(names)]
    except (ValueError, RecursionError):
        raise ValueError(f"{base}: is no folder of a comparison; give the --out of flare compare") from None
    missing = [folder.name for folder in folders if not is_run_folder(folder)]
    if missing:
        raise ValueError(f"{base}: the run {missing[0]} was never begun; start the comparison again with --force")
    return folders


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name != ".."


def opened(task: Task, place: Place) -> Member | None:
    """The run of a task where its folder left it, or at its beginning; None where nothing is left to do.

    ValueError where the folder holds another run, or something else; where the task is `expendable`, something else.
    """
    if _is_over(task):
        return None
    simulation = Simulation(placed(task, place))
    if is_run_folder(task.folder):
        try:
            return _continued(task, simulation)
        except ValueError:
            if not task.expendable:
                raise
    words = _made_of(simulation, task)
    return _member(task, simulation, RunFolder.create(task.folder, task.config, force=task.expendable, **words))


def holds(folder: RunFolder, task: Task) -> bool:
    """Whether a run folder is that of the task."""
    return anywhere(folder.config) == anywhere(task.config) and is_trained(folder.manifest) == task.trained


def _is_over(task: Task) -> bool:
    """Whether the run has ended, is whole, and keeps no checkpoints: it cannot be continued, and need not be."""
    try:
        folder = RunFolder.open(task.folder)
        if folder.manifest.get("status") not in ENDED or folder.has_checkpoints:
            return False
        return holds(folder, task) and read_run(task.folder).ended
    except (ValueError, OSError):
        return False


def _continued(task: Task, simulation: Simulation) -> Member:
    folder = RunFolder.open(task.folder)
    if not holds(folder, task):
        raise ValueError(f"{task.folder} holds a run of other settings; give another folder")
    member = _member(task, simulation, folder)
    try:
        resume(member, allow_changed_plugins=task.allow_changed_plugins)
    except BaseException:
        folder.close()
        raise
    return member


def _member(task: Task, simulation: Simulation, folder: RunFolder) -> Member:
    return Member(simulation, folder, key=task.key, keep_checkpoints=task.keep_checkpoints)


def _checked(task: Task) -> dict[str, Any]:
    """What the folder of a run is told of it; ValueError where its settings cannot be."""
    compute_device(task.config.learning)
    simulation = Simulation(task.config)
    simulation.plan(simulation.start())  # some of what can be wrong shows in a round only
    return _made_of(simulation, task)


def _made_of(simulation: Simulation, task: Task) -> dict[str, Any]:
    """What the folder of a new run is told of it."""
    facts = {"num_classes": simulation.dataset.num_classes} | ({} if task.trained else {"trained": False})
    return {"identity": simulation.identity, "facts": facts}
