"""What came of a sweep: a table with one row a run, and its report."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.atomic import write_whole
from flare.config.code_parts import CODE_PARTS, code_key
from flare.records.disk_errors import explained
from flare.records.manifest import is_run_folder
from flare.records.run import RunNumbers, read_run
from flare.report.curves import time_to_accuracy_s
from flare.report.effect_sections import effect_sections
from flare.report.effects import SweptRun
from flare.report.panels import Section
from flare.report.run_report import Opening, write_page
from flare.research.export import csv_bytes, parquet_bytes
from flare.research.tables import Columns, texts
from flare.sweeps import Task
from flare.sweeps.grid import Grid, factors_in, levels_of, value_text
from flare.sweeps.sweep_file import Factor

CSV, PARQUET, PAGE = "results.csv", "results.parquet", "report.html"
NOT_BEGUN = "not begun"


def read_sweep_runs(tasks: Sequence[Task]) -> list[RunNumbers | None]:
    """What each run has come to, None where it was not begun; ValueError where a folder is damaged, and where two were
    made with other code of the same name, which are no seeds of one setting."""
    folders = [task.folder for task in tasks]
    runs = [read_run(folder) if folder is not None and is_run_folder(folder) else None for folder in folders]
    _refuse_other_code([run for run in runs if run is not None])
    return runs


def _refuse_other_code(runs: Sequence[RunNumbers]) -> None:
    first: dict[tuple[str, str], RunNumbers] = {}
    for run in runs:
        for part in CODE_PARTS:
            if part not in run.identity:
                continue
            before = first.setdefault((part, run.identity[part]), run)
            if before.identity.get(code_key(part)) != run.identity.get(code_key(part)):
                raise ValueError(
                    f"{before.folder} and {run.folder} were made with other code of {part} '{run.identity[part]}', "
                    "which has changed in between; remove those that are out of date, and give the same command again"
                )


def result_columns(grid: Grid, runs: Sequence[RunNumbers | None], target: float) -> Columns:
    """One row a run: the swept settings by their names, the seed, and what came out.

    run, (swept settings), seed, status, rounds, clock_s, test_accuracy (at the end), best_accuracy, target_accuracy,
    time_to_target_s, energy_j, payload_bits (updates and control traffic); empty where there is none.
    """
    swept: dict[str, list[Any]] = {key: [] for factor in grid.factors for key in factor.keys}
    for run in grid.runs:
        for factor, level in zip(grid.factors, run.levels, strict=True):
            for key, value in factor.settings(level).items():
                swept[key].append(value)
    columns: Columns = {"run": texts([run.name for run in grid.runs])}
    columns |= {key: setting_column(values) for key, values in swept.items()}
    columns["seed"] = np.array([run.config.seed for run in grid.runs], dtype=np.int64)
    rows = [_outcome(run, target) for run in runs]
    columns["status"] = texts([str(row["status"]) for row in rows])
    columns["rounds"] = np.array([row["rounds"] for row in rows], dtype=np.int64)
    columns |= {
        name: np.array([row[name] for row in rows], dtype=np.float64)
        for name in rows[0]
        if name not in ("status", "rounds")
    }
    return columns


def _outcome(run: RunNumbers | None, target: float) -> Mapping[str, Any]:
    numbers = {"test_accuracy": math.nan, "best_accuracy": math.nan, "target_accuracy": target or math.nan}
    numbers |= {"time_to_target_s": math.nan, "energy_j": math.nan, "payload_bits": math.nan}
    if run is None:
        return {"status": NOT_BEGUN, "rounds": 0, "clock_s": math.nan, **numbers}
    accuracies = run.of_round["test_accuracy"][run.evaluated]
    bits = run.bits_so_far()
    return {
        "status": run.status if run.ended else "interrupted",
        "rounds": run.num_rounds,
        "clock_s": run.clock_s,
        **numbers,
        "test_accuracy": run.accuracy,
        "best_accuracy": float(accuracies.max()) if len(accuracies) else math.nan,
        "time_to_target_s": time_to_accuracy_s(run, target),
        "energy_j": float(run.round_energy_j().sum()),
        "payload_bits": float(bits[-1]) if len(bits) else math.nan,
    }


def setting_column(values: Sequence[Any]) -> NDArray[Any]:
    """Values of a setting as a column: of one type where they are, else as texts; empty where one is None."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} and kinds:
        whole = kinds == {int} and None not in values
        numbers = [math.nan if value is None else value for value in values]
        return np.array(numbers, dtype=np.int64 if whole else np.float64)
    if kinds == {bool} and None not in values:
        return np.array(values, dtype=bool)
    return texts(["" if value is None else value_text(value) for value in values])


def write_results(columns: Columns, out: Path) -> list[Path]:
    """Write the table as CSV, and as Parquet where pyarrow is installed; the files."""
    contents = {CSV: csv_bytes(columns)}
    if importlib.util.find_spec("pyarrow") is not None:
        contents[PARQUET] = parquet_bytes(columns)
    for name, content in contents.items():
        with explained("The table of the results", out / name, "then give the same command again"):
            write_whole(out / name, content)
    return [out / name for name in contents]


def swept_runs(grid: Grid, runs: Sequence[RunNumbers | None]) -> list[SweptRun]:
    """The runs that were begun, each with its place in the grid."""
    return [SweptRun(run, planned.levels) for planned, run in zip(grid.runs, runs, strict=True) if run is not None]


def write_sweep_report(grid: Grid, runs: Sequence[RunNumbers | None], target: float, out: Path) -> Path | None:
    """Write the report; None where no run was begun."""
    begun = swept_runs(grid, runs)
    if not begun:
        return None
    first, opening = effects_told(grid.factors, begun, target)
    write_page([each.run for each in begun], out / PAGE, first=first, opening=opening)
    return out / PAGE


def effects_told(factors: Sequence[Factor], begun: Sequence[SweptRun], target: float) -> tuple[list[Section], Opening]:
    """What the report of a sweep has before that of its runs."""
    swept = " and ".join(f"{len(factor.levels)} values of {factor.name}" for factor in factors)
    data = " and ".join(sorted({each.run.data for each in begun}))
    return effect_sections(factors, begun, target), Opening(f"Sweep: {swept} on {data}", "")


def sweep_in(folder: Path, runs: Sequence[RunNumbers]) -> tuple[list[Section], Opening | None]:
    """The same of a folder and the runs in it, where it is that of a sweep: nothing otherwise. Time is told to the
    target of the runs. ValueError where its description is damaged."""
    factors = factors_in(folder)
    placed = [(run, levels_of(factors, run.config)) for run in runs]
    begun = [SweptRun(run, levels) for run, levels in placed if levels is not None]
    if not factors or not begun:
        return [], None
    return effects_told(factors, begun, begun[0].run.config.run.target_accuracy)
