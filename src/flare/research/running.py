"""Runs in a line of Python: one, or several that are compared."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike

from flare.research.arguments import (
    ConfigLike,
    DataLike,
    EntryLike,
    ModuleLike,
    config_of,
    configs_of,
    entries_of,
    own_of,
    seeds_of,
    with_names,
)
from flare.research.progress import showing
from flare.research.run import Run
from flare.research.runs import Runs
from flare.rounds import RoundRecord, RunStatus
from flare.sweeps import Place, Task, begin, has_ended, run_tasks
from flare.sweeps.entries import name_of, policies_in_vain

Out = str | os.PathLike[str] | None


def simulate(
    config: ConfigLike = None,
    *,
    policy: Any = None,
    method: Any = None,
    dataset: DataLike = None,
    held: Sequence[ArrayLike] | None = None,
    module: ModuleLike = None,
    out: Out = None,
    progress: bool = True,
    callback: Callable[[RoundRecord], None] | None = None,
) -> Run:
    """Train one model over one simulated cell, as `flare run` does with the same settings, round by round the same.

    Parameters
    ----------
    config : a `Config`, a dict of settings ({"run.rounds": 20} or {"run": {"rounds": 20}}), the path of a TOML file;
        None: the defaults. `flare config` prints every setting.
    policy, method : a name, or the very function or class that was registered; None: those of the settings.
    dataset : data in the place of the settings': a name, four arrays (train_x, train_y, test_x, test_y), or what
        `flare.data.from_arrays` makes.
    held : the training samples of each device, a list of their numbers each; None: divided by `data.partition`.
    module : a model in the place of the settings': a name, a torch module, or a function that builds one (of nothing,
        or of the shape of a sample and the number of classes), whose start weights are then drawn with the seed.
    out : the folder of the run, for `flare report` and `flare.load`; called again with the same arguments, the run
        goes on where it was interrupted, and one that has ended is returned as it is. None: nothing is written.
    progress : show how far the run is, in a terminal or a notebook.
    callback : called after every round with its record.

    Raises ValueError for bad input, before anything is written, and where `out` holds another run. Interrupted (Ctrl-C,
    the stop button of a notebook), it leaves a run in `out` that can be continued, and says how.
    """
    whole = with_names(config_of(config), policy=policy, method=method, dataset=dataset, module=module)
    folder = None if out is None else _path(out)
    task = Task(name_of(whole), whole, folder, own=own_of(dataset, held, module))
    listener = None if callback is None else lambda name, record: callback(record)
    (run,) = _carried_out([task], "flare.simulate", out=out, listing=None, progress=progress, callback=listener)
    return run


def compare(
    entries: Sequence[EntryLike],
    seeds: int | Sequence[int] = 1,
    *,
    config: ConfigLike = None,
    dataset: DataLike = None,
    held: Sequence[ArrayLike] | None = None,
    module: ModuleLike = None,
    out: Out = None,
    progress: bool = True,
    callback: Callable[[str, RoundRecord], None] | None = None,
) -> Runs:
    """Train several methods and policies with several seeds, in lockstep, as `flare compare` does.

    Parameters
    ----------
    entries : what is compared: "method:policy" texts, pairs (method, policy) of names or of registered functions, or
        dicts of settings with a label: {"label": "large steps", "policy": "greedy", "learning.local_lr": 0.1}.
    seeds : how many, from the configuration's on, or a list of seeds. Every entry is run with each of them.
    config, dataset, held, module, progress : as for `flare.simulate`, shared by all runs.
    out : a folder with a run folder for each; continued as by `flare.simulate`. None: nothing is written.
    callback : called after every round of every run with the name of the run and the record.
    """
    whole = with_names(config_of(config), policy=None, method=None, dataset=dataset, module=module)
    listed = entries_of(entries, whole)
    wanted = seeds_of(seeds, whole.seed)
    own, base = own_of(dataset, held, module), None if out is None else _path(out)
    tasks = []
    for entry, configs in zip(listed, configs_of(whole, listed, wanted), strict=True):
        for one in configs:
            name = entry.name(one.seed)
            tasks.append(Task(name, one, None if base is None else base / name, own=own, label=entry.label))
    if (in_vain := policies_in_vain([task.config for task in tasks])) is not None:
        warnings.warn(in_vain, stacklevel=2)
    runs = _carried_out(tasks, "flare.compare", out=out, listing=base, progress=progress, callback=callback)
    return Runs(runs)


def _path(out: str | os.PathLike[str]) -> Path:
    if not isinstance(out, str | os.PathLike):
        raise ValueError(f"out is a {type(out).__name__}; give the path of a folder, or None to write nothing")
    return Path(out)


@torch.inference_mode(mode=False)  # also where the caller has turned it on: PyTorch trains nothing that is made in it
def _carried_out(
    tasks: Sequence[Task],
    called: str,
    *,
    out: Out,
    listing: Path | None,
    progress: bool,
    callback: Callable[[str, RoundRecord], None] | None,
) -> list[Run]:
    """Begin or continue the runs and go on to their ends."""
    facts = begin(tasks, again=True, listing=listing)
    seen: dict[str, list[RoundRecord]] = {task.key: [] for task in tasks}
    ended = {task.key: RunStatus.RUNNING for task in tasks}
    left = [task for task in tasks if not has_ended(task)]
    with showing(left, {task.key: task.key for task in left}, wanted=progress and bool(left)) as show:

        def tell(task: Task, record: RoundRecord, status: RunStatus) -> None:
            if task.folder is None:
                seen[task.key].append(record)
            ended[task.key] = status
            show(task, record, status)
            if callback is not None:
                callback(task.key, record)

        try:
            run_tasks(left, Place(), callback=tell)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_go_on(called, out)) from None
    return [
        Run.read(task.folder)
        if task.folder is not None
        else Run(seen[task.key], task.config, told | {"status": ended[task.key].value}, name=task.key)
        for task, told in zip(tasks, facts, strict=True)
    ]


def _how_to_go_on(called: str, out: Out) -> str:
    if out is None:
        return f"interrupted; nothing was kept: with {called}(..., out=FOLDER) the next call goes on where it stopped"
    return f"interrupted; what is done is kept in {os.fspath(out)}: the same call of {called} goes on where it stopped"
