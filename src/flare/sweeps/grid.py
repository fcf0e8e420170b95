"""The runs of a sweep: every combination of the swept values with every seed, each with its folder.

DIR/sweep.json      what is swept, so that the next call knows that it continues the same sweep
DIR/runs/NAME/      the run folders
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, final

from flare.config import Config, settings_of
from flare.config.toml import with_settings
from flare.sweeps.description import (
    Description,
    begin_described,
    changed_settings,
    described_files,
    differing_files,
    differing_settings,
    differing_value,
    plain,
    read_description,
)
from flare.sweeps.parts import check_parts
from flare.sweeps.sweep_file import Factor, SweepFile
from flare.sweeps.task import Task, check_run

FILE, RUNS = "sweep.json", "runs"
_FORMAT = "flare-sweep"
_MAX_NAME = 80  # characters of the settings in the name of a folder


@final
@dataclass(frozen=True)
class GridRun:
    """A run of a sweep: `levels` are the numbers of its values, one for each factor."""

    name: str
    config: Config
    levels: tuple[int, ...]


@final
@dataclass(frozen=True)
class Grid:
    """All runs of a sweep, those of one setting and several seeds one after the other.

    The levels of its factors are the values as the settings hold them: 0.4 where the file says "400ms".
    """

    base: Config
    factors: tuple[Factor, ...]
    seeds: tuple[int, ...]
    runs: tuple[GridRun, ...]

    def tasks(self, out: Path) -> list[Task]:
        """The runs to carry out. Of each that has ended, what reports need is kept."""
        return [Task(run.name, run.config, out / RUNS / run.name, keep_checkpoints=False) for run in self.runs]


def grid_of(sweep: SweepFile) -> Grid:
    """The runs of a sweep; ValueError for settings that no run may have, and for two runs that are the same.

    The plugins of its settings are taken to be executed.
    """
    runs: list[GridRun] = []
    seen: set[Config] = set()
    width = len(str(sweep.num_settings))
    try:
        for number, levels in enumerate(product(*(range(len(factor.levels)) for factor in sweep.factors)), start=1):
            given = _settings(sweep.factors, levels)
            config = with_settings(sweep.base, given)
            settings = {key: setting_in(config, key) for key in given}
            if config in seen:
                told = ", ".join(f"{key} = {value_text(value)}" for key, value in settings.items())
                raise ValueError(f"two runs of the sweep are the same, {told}; give each value once")
            seen.add(config)
            _check_parts(config, sweep.factors)
            name = f"{number:0{width}d}-{_file_name(settings)}"
            runs += [GridRun(f"{name}-seed{seed}", replace(config, seed=seed), levels) for seed in sweep.seeds]
    except ValueError as error:
        raise ValueError(f"{sweep.path}: {error}") from None
    return Grid(sweep.base, _as_held(sweep.factors, runs), sweep.seeds, tuple(runs))


def _check_parts(config: Config, factors: Sequence[Factor]) -> None:
    """ValueError where a run has a part that there is not, or an option that its part does not have."""
    try:
        check_parts(config)
    except ValueError as error:
        raise ValueError(f"{error}{_with_own_options(factors)}") from None


def _with_own_options(factors: Sequence[Factor]) -> str:
    """How parts that have not the same options are swept, where a part and single options of it are."""
    keys = [key for factor in factors for key in factor.keys]
    for part, options in (("scheduling.policy", "scheduling.options"), ("learning.method", "learning.options")):
        if part in keys and any(key.startswith(f"{options}.") for key in keys):
            return (
                f"; where not all have the option, give each its own below [zip], {part} beside {options}: "
                f'"{options}" = [{{ NAME = 2 }}, {{}}]'
            )
    return ""


def check_grid(grid: Grid) -> None:
    """Try a round of one run for each swept value: some of what can be wrong with settings shows there only."""
    tried: set[tuple[int, int]] = set()
    for run in grid.runs:
        new = set(enumerate(run.levels)) - tried
        if new:
            tried |= new
            check_run(Task(run.name, run.config, None))


def begin_sweep(grid: Grid, out: Path) -> bool:
    """Write down what is swept in the folder `out`, or find that it is the same; whether it was there.

    ValueError where the folder holds another sweep, or something else; nothing is touched then.
    """
    described = _description(grid)
    return begin_described(
        out / FILE,
        described,
        "sweep",
        check=lambda: check_grid(grid),
        differing=lambda before: _difference(before, described),
    )


def factors_in(folder: Path) -> tuple[Factor, ...]:
    """What the runs in a folder sweep, by its sweep.json; nothing where it has none. Values are as JSON gives them
    back. ValueError where the file is damaged."""
    if not (folder / FILE).exists():
        return ()
    try:
        swept = read_description(folder / FILE, _FORMAT, "sweep")["swept"]
        return tuple(Factor(tuple(each["settings"]), tuple(map(tuple, each["values"]))) for each in swept)
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{folder / FILE} is not as flare sweep wrote it, so that what is swept is not known; put it back from a "
            f"copy, or name {folder / RUNS} for the runs alone"
        ) from None


def levels_of(factors: Sequence[Factor], config: Config) -> tuple[int, ...] | None:
    """The place of a run among the levels of `factors_in`; None where it has none."""
    try:
        own = [tuple(plain(setting_in(config, key)) for key in factor.keys) for factor in factors]
    except (KeyError, TypeError):  # of a run that was put there
        return None
    if not all(values in factor.levels for values, factor in zip(own, factors, strict=True)):
        return None
    return tuple(factor.levels.index(values) for values, factor in zip(own, factors, strict=True))


def _settings(factors: Sequence[Factor], levels: Sequence[int]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for factor, level in zip(factors, levels, strict=True):
        chosen |= factor.settings(level)
    return chosen


def _as_held(factors: Sequence[Factor], runs: Sequence[GridRun]) -> tuple[Factor, ...]:
    """The factors with their values as the runs have them."""
    held: list[dict[int, tuple[Any, ...]]] = [{} for _ in factors]
    for run in runs:
        for place, (factor, level) in enumerate(zip(factors, run.levels, strict=True)):
            if level not in held[place]:
                held[place][level] = tuple(setting_in(run.config, key) for key in factor.keys)
    return tuple(
        Factor(factor.keys, tuple(values[level] for level in range(len(factor.levels))))
        for factor, values in zip(factors, held, strict=True)
    )


def setting_in(config: Config, key: str) -> Any:
    """The value of a setting, or of one option of a table of them."""
    table = settings_of(config)
    if key in table:
        return table[key]
    name, _, option = key.rpartition(".")
    return table[name][option]


def value_text(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={value_text(each)}" for name, each in value.items()) or "no options"
    return str(value)


def level_text(factor: Factor, level: int) -> str:
    """The values of a factor in one line, such as "exact, flare"."""
    return ", ".join(value_text(value) for value in factor.levels[level])


def _file_name(settings: Mapping[str, Any]) -> str:
    """Settings as a part of the name of a folder: without their sections, and without what some disks do not take."""
    short = "-".join(f"{key.rpartition('.')[2]}={value_text(value)}" for key, value in settings.items())
    return re.sub(r"[^\w.=+-]", "_", short, flags=re.ASCII)[:_MAX_NAME]


def _description(grid: Grid) -> Description:
    swept = [{"settings": list(factor.keys), "values": plain(factor.levels)} for factor in grid.factors]
    told = {"format": _FORMAT, "seeds": list(grid.seeds), "settings": changed_settings(grid.base), "swept": swept}
    return told | described_files(run.config for run in grid.runs)


def _difference(there: Description, here: Description) -> str:
    """The first thing in which two descriptions differ."""
    if there.get("swept") != here["swept"]:
        return "its swept settings are others, or their values"
    return differing_value(there, here, "seeds") or differing_files(there, here) or differing_settings(there, here)
