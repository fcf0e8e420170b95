"""The file of a sweep: which settings take which values, alone or together, and with which seeds.

base = "config.toml"            # settings that are not named here; relative to this file
seeds = 5                       # the first five from the base's on, or a list
[set]                           # settings of all runs
"run.rounds" = 100
[product]                       # every combination
"wireless.deadline_s" = [0.4, 0.6, 1.0]
"learning.local_lr" = { from = 0.01, to = 0.1, steps = 5, scale = "log" }
[zip]                           # together, entry by entry
"scheduling.policy" = ["exact", "greedy"]
"learning.method" = ["flare", "fedavg"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, final

import numpy as np

from flare.config import MAX_SEEDS, Config, load
from flare.config.setting import shown
from flare.config.toml import read_table, seen_from, with_settings
from flare.text import did_you_mean

MAX_RUNS = 100_000
"""Of one sweep: more is a slip of the pen."""
_HEAD, _TABLES = ("base", "seeds"), ("set", "product", "zip")
_RANGE = ("from", "to", "steps", "scale")
_SCALES = ("linear", "log")
_LARGEST = 1e300  # of the ends of a range
_DIGITS = 12  # of the steps of a range: 0.3, not 0.30000000000000004


@final
@dataclass(frozen=True)
class Factor:
    """What is changed as one: a setting of [product], or all settings of [zip].

    keys     the settings
    levels   their values, a row for each step of the sweep
    """

    keys: tuple[str, ...]
    levels: tuple[tuple[Any, ...], ...]

    @property
    def name(self) -> str:
        """The settings in one line."""
        return " with ".join(self.keys)

    def settings(self, level: int) -> dict[str, Any]:
        """The settings of one of its levels."""
        return dict(zip(self.keys, self.levels[level], strict=True))


@final
@dataclass(frozen=True)
class SweepFile:
    """What the file of a sweep says: `base` has the settings of all runs, [set] among them."""

    path: Path
    base: Config
    factors: tuple[Factor, ...]
    seeds: tuple[int, ...]

    @property
    def num_settings(self) -> int:
        """How many combinations of levels there are."""
        return prod(len(factor.levels) for factor in self.factors)

    @property
    def num_runs(self) -> int:
        """Combinations with every seed."""
        return self.num_settings * len(self.seeds)


def read_sweep(path: str | Path, settings: Mapping[str, Any] | None = None) -> SweepFile:
    """Read the file of a sweep; `settings` are set in all runs, beside those of [set].

    Raises ValueError that names the file, the key and what would be right. Whether the settings are such that a run
    may have them shows when the runs are made of it (`flare.sweeps.grid`).
    """
    path = Path(path)
    table = read_table(path)
    try:
        return _read(table, path, settings or {})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(table: dict[str, Any], path: Path, settings: Mapping[str, Any]) -> SweepFile:
    for key in table:
        if key not in (*_HEAD, *_TABLES):
            raise ValueError(
                f"unknown key {key!r:.80}{did_you_mean(key, (*_HEAD, *_TABLES))} A sweep has base, seeds and the "
                "tables [set], [product] and [zip]; settings of all runs stand below [set]"
            )
    named = {name: _flat(table.get(name, {}), name, path.parent) for name in _TABLES}
    _refuse_twice(named, settings)
    factors = tuple(Factor((key,), tuple((value,) for value in _values(key, given)))
                    for key, given in named["product"].items())  # fmt: skip
    factors += _zipped(named["zip"])
    if not factors:
        raise ValueError(
            "nothing is swept; name a setting with a list of values below [product], such as "
            '"wireless.deadline_s" = [0.4, 0.6]'
        )
    base = with_settings(_base(table.get("base"), path.parent), {**named["set"], **settings})
    made = SweepFile(path, base, factors, _seeds(table.get("seeds", 1), base.seed))
    if made.num_runs > MAX_RUNS:
        by = " x ".join(str(len(factor.levels)) for factor in factors)
        raise ValueError(
            f"{by} settings with {len(made.seeds)} seeds are {made.num_runs:,} runs; a sweep has at most "
            f"{MAX_RUNS:,}: sweep fewer values, or put some below [zip]"
        )
    return made


def _flat(table: Any, name: str, folder: Path) -> dict[str, Any]:
    """The settings of a table by their dotted names, written in quotes or as tables of tables; paths as seen from the
    folder of the file."""
    if not isinstance(table, dict):
        raise ValueError(f"{name} is {shown(table)}; it must be a table: write [{name}], its settings below")
    found: dict[str, Any] = {}
    for key, value in _entries(table, ""):
        if key in found:
            raise ValueError(f"[{name}] has {key} twice, in quotes and without; give it once")
        if key == "seed":
            raise ValueError(f"[{name}] has seed; give seeds = 5, or a list of them, at the head of the file")
        found[key] = [seen_from(folder, key, each) for each in value] if isinstance(value, list) else value
        found[key] = seen_from(folder, key, found[key])
    return found


def _entries(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{before}.{key}" if before else key
        if isinstance(value, dict) and not set(_RANGE) & set(value):
            yield from _entries(value, name)
        else:
            yield name, value


def _refuse_twice(named: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    """ValueError where a setting is in two tables, or swept and set by the command line, or where a whole table of
    options is swept and one of them stands anywhere else: the whole table would take its place."""
    keys = [(f"[{name}]", key) for name, table in named.items() for key in table]
    keys += [("--set", key) for key in settings]
    for number, (first, key) in enumerate(keys):
        for second, other in keys[number + 1 :]:
            if (first, second) == ("[set]", "--set"):
                continue
            if key == other:
                raise ValueError(f"{key} is in {first} and in {second}; give it once")
            for whole, at, option, there in ((key, first, other, second), (other, second, key, first)):
                if option.startswith(f"{whole}."):
                    name = option.removeprefix(f"{whole}.")
                    raise ValueError(
                        f"{whole} is in {at} as a whole, and {option} in {there}, which it would replace; give {name} "
                        f"in each table of {whole}"
                    )


def _values(key: str, given: Any) -> list[Any]:
    """The values of a swept setting."""
    if isinstance(given, dict):
        return _range(key, given)
    if not isinstance(given, list):
        raise ValueError(f"{key} is {shown(given)}; give a list of values, or put it below [set]")
    if not given:
        raise ValueError(f"{key} has no values, so that there are no runs; give one at least")
    return given


def _range(key: str, given: dict[str, Any]) -> list[Any]:
    """The values of { from, to, steps, scale }, both ends among them."""
    words = f'{key}: a range is {{ from = 0.01, to = 0.1, steps = 5 }}, with scale = "log" where wanted'
    unknown = next((name for name in given if name not in _RANGE), None)
    if unknown is not None or not set(_RANGE[:3]) <= set(given):
        what = f"it has {unknown!r:.80}" if unknown is not None else "it lacks one of them"
        raise ValueError(f"{words}; {what}")
    low, high, steps, scale = (given.get(name, "linear") for name in _RANGE)
    for name, value in (("from", low), ("to", high)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise ValueError(f"{words}; {name} is {shown(value)}, and must be a number of at most {_LARGEST:g}")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 2 <= steps <= MAX_RUNS:
        raise ValueError(f"{words}; steps is {shown(steps)}, and must be a whole number from 2 to {MAX_RUNS}")
    if scale not in _SCALES or low == high or (scale == "log" and min(low, high) <= 0):
        raise ValueError(f"{words}; the ends must differ, and be above 0 on the scale log (the other scale is linear)")
    spaced = np.geomspace if scale == "log" else np.linspace
    places = spaced(float(low), float(high), steps)
    values = [low, *(float(f"{value:.{_DIGITS}g}") for value in places[1:-1]), high]
    whole = isinstance(low, int) and isinstance(high, int)
    return [int(value) if whole and float(value).is_integer() else float(value) for value in values]


def _zipped(table: Mapping[str, Any]) -> tuple[Factor, ...]:
    if not table:
        return ()
    columns = {key: _values(key, given) for key, given in table.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{key} has {len(column)}" for key, column in columns.items())
        raise ValueError(
            f"the settings below [zip] go together, entry by entry, but {lengths} values; give equally many"
        )
    return (Factor(tuple(columns), tuple(zip(*columns.values(), strict=True))),)


def _base(given: Any, folder: Path) -> Config:
    if given is None:
        return Config()
    if not isinstance(given, str) or not given:
        raise ValueError(f'base is {shown(given)}; it must be the path of a file of settings: base = "config.toml"')
    return load(folder / given)


def _seeds(given: Any, first: int) -> tuple[int, ...]:
    """So many from the first on, or those of a list."""
    words = "seeds must be how many, or a list of whole numbers from 0 on, each once"
    if isinstance(given, int) and not isinstance(given, bool):
        if not 1 <= given <= MAX_SEEDS:
            raise ValueError(f"seeds is {given}; it must be from 1 to {MAX_SEEDS}, or a list of seeds")
        return tuple(range(first, first + given))
    if not isinstance(given, list) or not given:
        raise ValueError(f"seeds is {shown(given)}; {words}")
    for seed in given:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0 or given.count(seed) > 1:
            raise ValueError(f"seeds has {shown(seed)}; {words}")
    if len(given) > MAX_SEEDS:
        raise ValueError(f"there are {len(given)} seeds; a sweep has at most {MAX_SEEDS}")
    return tuple(given)
