"""A run to carry out: its settings, its folder, and how it is begun or continued there."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from numpy.typing import ArrayLike
from torch import nn

from flare.atomic import write_whole
from flare.config import Config, load, settings_of
from flare.config.code_parts import CODE_PARTS, code_key
from flare.data.dataset import Dataset
from flare.data.sources import SOURCES
from flare.learning.engine import compute_device
from flare.learning.models import ModelBuilder
from flare.plugins import load_plugins
from flare.reading import read_small
from flare.records import RunFolder
from flare.records.manifest import CONFIG, is_run_folder
from flare.records.plugin_files import take_moved
from flare.records.run import ENDED, is_trained, read_run
from flare.records.run_keeper import refuse_other_driver
from flare.registry import REGISTRIES
from flare.rounds import RoundRecord, RunStatus
from flare.rounds.identity import own_code
from flare.rounds.privacy import refuse_unshared
from flare.simulation import Member, Simulation, resume
from flare.simulation.redraw import facts_of

COMPARISON = "comparison.json"
_MAX_LIST_BYTES = 1 << 24
_NAMED = 3  # settings that a refusal names


@final
@dataclass(frozen=True, eq=False)
class Own:
    """What a program puts in the place of a run's data and model (`Simulation`); None: what the settings name."""

    dataset: Dataset | None = None
    held: Sequence[ArrayLike] | None = None
    module: nn.Module | ModelBuilder | None = None


@final
@dataclass(frozen=True)
class Task:
    """A run to carry out; `key` is its name among others.

    folder             where it is written; None: nowhere, who wants its records listens to the callback
    trained            False: its rounds are drawn and scheduled, nothing is trained
    keep_checkpoints   also when the run has ended; many large models would fill a disk
    expendable         a run in the folder that is another one, or damaged, makes way for this one
    anew               where it is expendable, also the very run in the folder makes way: of no use to who wants it
    own                data and model that are not those of the settings
    label              what the run is called in reports, where a user has named it
    allow_changed_plugins   the run is continued also where its plugins were changed since it began
    pause_s            simulated time from which on it is left to be continued, by whatever machine it is carried out
    """

    key: str
    config: Config
    folder: Path | None
    trained: bool = True
    keep_checkpoints: bool = True
    expendable: bool = False
    anew: bool = False
    own: Own = Own()
    label: str = ""
    allow_changed_plugins: bool = False
    pause_s: float = math.inf


LOCAL, RAY = "local", "ray"
PLACES = (LOCAL, RAY)
"""This machine, or a Ray cluster."""


@final
@dataclass(frozen=True)
class Place:
    """Where runs are computed.

    device        None: where the settings of each run say
    processes     how many share the work; None: one, on Ray as many as the cluster has room for
    on            "local": this machine; "ray": a Ray cluster, all of whose machines see the folders of the runs
    ray_address   of the cluster; None: the one that this machine belongs to, or one of this machine alone
    """

    device: str | None = None
    processes: int | None = None
    on: str = LOCAL
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise ValueError(f"runs are computed on {self.on!r:.80}; it must be one of {', '.join(PLACES)}")
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"{self.processes} processes cannot share the work; give 1 or more")
        if self.ray_address is not None and self.on != RAY:
            raise ValueError(f"{self.ray_address!r:.80} is the address of a Ray cluster; it needs --on ray")

    @property
    def num_processes(self) -> int:
        """How many share the work, one where nothing is said."""
        return self.processes or 1


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


def begin(
    tasks: Sequence[Task], *, force: bool = False, again: bool = False, listing: Path | None = None
) -> list[dict[str, Any]]:
    """Make the folders of new runs. All that is wrong with their settings is found before a folder is touched.

    `again`: a folder that holds the very run of its task stays as it is, to be continued; ValueError where it holds
    another. `listing`, the folder that the runs are in, gets a list of them first, for `listed`. Returns what each
    folder is told of its run, beside the settings.
    """
    for task in tasks:
        load_plugins(task.config.plugins)
    refuse_unshared(task.config for task in tasks)
    made_of = [_checked(task) for task in tasks]
    new = []
    for task, words in zip(tasks, made_of, strict=True):
        if task.folder is None:
            continue
        if again and is_run_folder(task.folder):
            _refuse_another(RunFolder.open(task.folder), task, words)
        else:
            RunFolder.refuse_occupied(task.folder, force=force)
            new.append((task.folder, task, words))
    if listing is not None:
        _write_list(listing, [task.folder.name for task in tasks if task.folder is not None], again=again)
    for folder, task, words in new:
        RunFolder.create(folder, task.config, force=force, **words).close()
    return [words["facts"] | {"identity": words["identity"]} for words in made_of]


def _refuse_another(folder: RunFolder, task: Task, words: Mapping[str, Any]) -> None:
    """ValueError where a run folder is not that of the task, which is made of what `words` say."""
    refuse_other_settings(folder, task)
    refuse_other_driver(folder, "simulation")
    folder.refuse_other(words["identity"])


def has_ended(task: Task) -> bool:
    """Whether the folder of a task says that its run is over; ValueError where it is another run that is."""
    if task.folder is None or not is_run_folder(task.folder):
        return False
    folder = RunFolder.open(task.folder)
    if folder.manifest.get("status") not in ENDED:
        return False
    refuse_other_settings(folder, task)
    return True


def _write_list(base: Path, names: Sequence[str], *, again: bool) -> None:
    content = json.dumps(list(names)).encode()
    if again and (base / COMPARISON).exists():
        if [folder.name for folder in _listed_in(base)] != list(names):
            raise ValueError(f"{base} holds a comparison of other runs; give another folder, or the same entries")
        return
    base.mkdir(parents=True, exist_ok=True)
    write_whole(base / COMPARISON, content)


def begun(folder: Path, *, allow_changed_plugins: bool = False, moved: Sequence[Path] = ()) -> Task:
    """The run in a folder, to continue it; `moved` are plugins of it that are now elsewhere. ValueError where there is
    no run, or its configuration or one of its plugins was changed: before any of the plugins is executed."""
    opened = RunFolder.open(folder)
    refuse_other_driver(opened, "simulation")
    opened.refuse_changed_config()
    take_moved(folder, opened.config.plugins, moved)
    opened.refuse_changed_plugins(allowed=allow_changed_plugins)
    _refuse_code_of_no_file(opened)
    trained = is_trained(opened.manifest)
    return Task(str(folder), opened.config, folder, trained=trained, allow_changed_plugins=allow_changed_plugins)


def _refuse_code_of_no_file(opened: RunFolder) -> None:
    """ValueError where a part of the run was a user's own, not of a plugin, and is not registered here."""
    recorded, settings = opened.manifest.get("identity", {}), settings_of(opened.config)
    for part, setting in CODE_PARTS.items():
        kind = "codec" if part.endswith("codec") else part
        if code_key(part) in recorded and not opened.config.plugins and settings[setting] not in REGISTRIES[kind]:
            raise ValueError(
                f"{opened.path} cannot be continued here: its {part} '{settings[setting]}' was registered in Python "
                "and is in no plugin; continue it in Python where that is registered (docs/training.md says how), or "
                "begin a new run in another folder"
            )


def listed(base: Path) -> list[Path]:
    """The runs that `begin` listed in a folder; ValueError where it holds none, or not all that it should."""
    folders = _listed_in(base)
    missing = [folder.name for folder in folders if not is_run_folder(folder)]
    if missing:
        raise ValueError(
            f"{base}: the run {missing[0]} is not there: put it back from a copy, or make it by the settings of a run "
            f"here that differs in the seed alone (flare run OTHER/config.toml --set seed=SEED --out "
            f"{base / missing[0]}), or start the whole comparison again with --force"
        )
    return folders


def _listed_in(base: Path) -> list[Path]:
    path = base / COMPARISON
    if not os.path.lexists(path):
        raise ValueError(f"{base}: is no folder of a comparison; give the --out of flare compare")
    try:
        names = json.loads(read_small(path, _MAX_LIST_BYTES))
        if not isinstance(names, list) or not names or not all(_is_plain_name(name) for name in names):
            raise ValueError("it is not a list of the names of folders")
    except (ValueError, RecursionError) as error:
        there = json.dumps(sorted(each.name for each in base.iterdir() if is_run_folder(each)))
        raise ValueError(
            f"{path} is damaged ({error}); it is the list of the runs of the comparison: put it back from a copy, or "
            f"write into it the names of the folders that belong to it; there are {there}"
        ) from None
    return [base / name for name in dict.fromkeys(names)]


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name != ".."


def opened(task: Task, place: Place) -> Member | None:
    """The run of a task where its folder left it, or at its beginning; None where nothing is left to do.

    ValueError where the folder holds another run, or something else; where the task is `expendable`, something else.
    """
    found = opened_or_new(task, place)
    return found.made() if isinstance(found, New) else found


@final
@dataclass(frozen=True)
class New:
    """A run that has no folder yet, and what it is told of the run."""

    task: Task
    simulation: Simulation
    words: Mapping[str, Any]

    def made(self) -> Member:
        """The run at its beginning. Its folder is made, for which the disk is waited for again and again: other threads
        may make others meanwhile."""
        assert self.task.folder is not None
        folder = RunFolder.create(self.task.folder, self.task.config, force=self.task.expendable, **self.words)
        return _member(self.task, self.simulation, folder)


def opened_or_new(task: Task, place: Place) -> Member | New | None:
    """As `opened`, but that the folder of a new run is not made."""
    if task.folder is None:
        return Member(_simulation(task, placed(task, place)), key=task.key, pause_s=task.pause_s)
    anew = task.expendable and task.anew
    if not anew and _is_over(task, task.folder):
        return None
    simulation = _simulation(task, placed(task, place))
    if is_run_folder(task.folder):
        try:
            if not anew:
                return _continued(task, simulation, task.folder)
        except ValueError:
            if not task.expendable:
                raise
    elif task.expendable:
        _set_aside(task, task.folder)
    return New(task, simulation, _made_of(simulation, task))


def _set_aside(task: Task, folder: Path) -> None:
    """Give another name to a folder that has the settings of this run and no manifest that can be read: what is left
    of the run is not lost, and does not stand in the way. Anything else stays."""
    try:
        if anywhere(load(folder / CONFIG)) != anywhere(task.config):
            return
    except (OSError, ValueError):
        return
    numbers = itertools.count(1)
    folder.rename(next(to for n in numbers if not os.path.lexists(to := folder.with_name(f"{folder.name}.aside-{n}"))))


def holds(folder: RunFolder, task: Task) -> bool:
    """Whether a run folder is that of the task."""
    return anywhere(folder.config) == anywhere(task.config) and is_trained(folder.manifest) == task.trained


def refuse_other_settings(folder: RunFolder, task: Task) -> None:
    """ValueError where a run folder is not that of the task, with the first few settings that differ."""
    if holds(folder, task):
        return
    here, there = (settings_of(anywhere(config)) for config in (task.config, folder.config))
    others = [
        f"its {name} is {there[name]!r:.60}, here {here[name]!r:.60}" for name in here if here[name] != there[name]
    ]
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    told = f" ({'; '.join(others[:_NAMED])}{more})" if others else ""
    raise ValueError(f"{folder.path} holds a run of other settings{told}; give another folder")


def _is_over(task: Task, path: Path) -> bool:
    """Whether the run has ended, is whole, and keeps no checkpoints: it cannot be continued, and need not be."""
    try:
        folder = RunFolder.open(path)
        if folder.manifest.get("status") not in ENDED or folder.has_checkpoints:
            return False
        return holds(folder, task) and read_run(path).ended
    except (ValueError, OSError):
        return False


def _continued(task: Task, simulation: Simulation, path: Path) -> Member:
    folder = RunFolder.open(path)
    refuse_other_settings(folder, task)
    member = _member(task, simulation, folder)
    try:
        resume(member, allow_changed_plugins=task.allow_changed_plugins)
    except BaseException:
        folder.close()
        raise
    return member


def _member(task: Task, simulation: Simulation, folder: RunFolder) -> Member:
    return Member(simulation, folder, key=task.key, keep_checkpoints=task.keep_checkpoints, pause_s=task.pause_s)


def _simulation(task: Task, config: Config) -> Simulation:
    return Simulation(config, dataset=task.own.dataset, held=task.own.held, module=task.own.module)


def check_run(task: Task) -> None:
    """ValueError where a run cannot have these settings; a round of it is tried, and nothing is written."""
    _checked(task)


def _checked(task: Task) -> dict[str, Any]:
    """What the folder of a run is told of it; ValueError where its settings cannot be."""
    compute_device(task.config.learning)
    simulation = _simulation(task, task.config)
    start = simulation.start()
    if simulation.question(start) is None or not task.trained:  # whoever trains can also answer, when it is asked
        simulation.plan(start)  # some of what can be wrong shows in a round only
    return _made_of(simulation, task)


def _made_of(simulation: Simulation, task: Task) -> dict[str, Any]:
    """What the folder of a new run is told of it."""
    facts = {"num_classes": simulation.dataset.num_classes} | facts_of(simulation) | _seed_facts(simulation)
    facts |= {} if task.trained else {"trained": False}
    facts |= {"label": task.label} if task.label else {}
    used = dict(simulation.station.policy_options)
    if used != dict(
        task.config.scheduling.options
    ):  # such as the devices of `ps`, tuned at the start, or a `horizon` by the rounds
        facts["tuned_options"] = used
    return {"identity": simulation.identity, "facts": facts}


def _seed_facts(simulation: Simulation) -> dict[str, Any]:
    """Of data that are drawn with the seed: that they are, so that runs of other seeds are known to be of the same
    kind, and the checksum of what draws them, where it is a user's own."""
    if simulation.own_dataset:
        return {}
    source = SOURCES.find(simulation.config.data.name)
    if "seed" not in source.takes:
        return {}
    code = own_code(source.load)
    return {"data_by_seed": True} | ({"data_code": code} if code else {})
