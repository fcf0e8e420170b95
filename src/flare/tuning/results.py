"""What a tuning leaves: a table of its trials, the file of the winner's settings, and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from flare.atomic import write_whole
from flare.config import to_toml
from flare.records.disk_errors import explained
from flare.report.run_report import Opening, write_page
from flare.research.sweep_results import PAGE, setting_column, write_results
from flare.research.tables import Columns, texts
from flare.sweeps.grid import value_text
from flare.tuning.goals import Outcome, value_of
from flare.tuning.judge import Judgement
from flare.tuning.sections import lead, tuning_sections
from flare.tuning.study import Tuning
from flare.tuning.trial import Trial

BEST = "best.toml"


def trial_columns(tuning: Tuning, trials: Sequence[Trial]) -> Columns:
    """One row a trial.

    trial, status, (searched settings, empty where one has no meaning), time_to_target_s and energy_to_target_j (means
    over the seeds, where all reached the target), test_accuracy (at the last test within the time) and best_accuracy
    (means), num_reached and num_diverged of the seeds, rounds of all runs together, same_as (an earlier trial with the
    very settings), why.
    """
    aim = tuning.aim
    columns: Columns = {
        "trial": np.array([trial.number for trial in trials], dtype=np.int64),
        "status": texts([str(trial.state) for trial in trials]),
    }
    for each in tuning.space.searched:
        columns[each.name] = setting_column([trial.params.get(each.name) for trial in trials])
    numbers = {
        "time_to_target_s": [_mean(trial, "time_s") for trial in trials],
        "energy_to_target_j": [_mean(trial, "energy_j") if trial.reached else math.nan for trial in trials],
        "test_accuracy": [_mean(trial, "accuracy") for trial in trials],
        "best_accuracy": [_mean(trial, "best") for trial in trials],
    }
    columns |= {name: np.array(values, dtype=np.float64) for name, values in numbers.items()}
    whole = {
        "num_reached": [sum(each.reached for each in trial.outcomes) for trial in trials],
        "num_diverged": [sum(each.diverged for each in trial.outcomes) for trial in trials],
        "rounds": [sum(each.rounds for each in trial.outcomes) for trial in trials],
    }
    columns |= {name: np.array(values, dtype=np.int64) for name, values in whole.items()}
    if not aim.has_target:
        for name in ("time_to_target_s", "energy_to_target_j", "num_reached"):
            del columns[name]
    columns["same_as"] = texts([str(trial.same_as) if trial.same_as >= 0 else "" for trial in trials])
    columns["why"] = texts([trial.why for trial in trials])
    return columns


def _mean(trial: Trial, name: str) -> float:
    values = [getattr(each, name) for each in trial.outcomes]
    return float(np.mean(values)) if values else math.nan


def write_best(tuning: Tuning, judged: Judgement, out: Path) -> Path:
    """Write the settings of the winner, for `flare run`: the run of the first tuning seed, as the trial had it."""
    found = ", ".join(f"{name} = {value_text(value)}" for name, value in judged.trial.params.items())
    head = (
        f"# Found by flare tune: {tuning.aim.words()}.\n# Trial {judged.trial.number} of {tuning.trials}: {found}.\n"
        "# A run with these settings ends at the target, or when its time is over (see [run]).\n\n"
    )
    with explained("The settings of the winner", out / BEST, "then give the same command again"):
        write_whole(out / BEST, (head + to_toml(judged.best_config)).encode())
    return out / BEST


def write_report(
    tuning: Tuning, trials: Sequence[Trial], judged: Judgement, shares: Mapping[str, float], out: Path
) -> Path:
    """Write the report: of the tuning, then all that a report has of the runs of winner and start."""
    opening = Opening(f"Tuning: {tuning.aim.words()}", lead(judged))
    write_page(judged.runs, out / PAGE, first=tuning_sections(tuning, trials, judged, shares), opening=opening)
    return out / PAGE


def as_json(
    tuning: Tuning, trials: Sequence[Trial], judged: Judgement, shares: Mapping[str, float]
) -> dict[str, object]:
    """What a tuning came to, for programs."""
    return {
        "goal": str(tuning.aim.goal),
        "target": tuning.aim.target if tuning.aim.has_target else None,
        "within_s": tuning.aim.within_s,
        "trials": len(trials),
        "reached": sum(trial.reached for trial in trials) if tuning.aim.has_target else None,
        "pruned": sum(trial.state == "pruned" for trial in trials),
        "best": {"trial": judged.trial.number, "settings": dict(judged.trial.params), "is_start": judged.is_start},
        "importance": dict(shares),
        "fresh_seeds": {
            name: [_outcome(each, tuning) for each in outcomes]
            for name, outcomes in (("start", judged.start), ("best", judged.best))
        },
        "compared": [
            {
                "quantity": each.name,
                "start": each.start.mean,
                "best": each.best.mean,
                "difference": each.difference.mean.mean,
                "half_width": each.difference.mean.half,
                "pairs": each.difference.mean.count,
                "ratio": each.ratio[0],
                "ratio_low": each.ratio[1],
                "ratio_high": each.ratio[2],
            }
            for each in judged.quantities
        ],
    }


def _outcome(each: Outcome, tuning: Tuning) -> dict[str, object]:
    return {
        "seed": each.seed,
        "status": each.status,
        "value": value_of(each, tuning.aim),
        "time_to_target_s": each.time_s,
        "test_accuracy": each.accuracy,
    }


def write_trials_table(tuning: Tuning, trials: Sequence[Trial], out: Path) -> list[Path]:
    """Write the table of the trials as CSV, and as Parquet where pyarrow is installed; the files."""
    return write_results(trial_columns(tuning, trials), out)
