"""Reproduces experiments: runs what is missing, decides the claims, writes numbers and figures.

OUT/trials/KEY/         the run folder of a trial; shared by all experiments that ask for it
OUT/NAME.json           the numbers of an experiment and its claims
OUT/NAME-runs.jsonl.gz  its runs, as far as figures and claims see them: those that are in it need no folder
OUT/NAME-before-N-runs.jsonl.gz  those that had their places before, with other settings
OUT/figures/NAME.png    and svg, pdf
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flare.atomic import write_whole
from flare.experiments import EXPERIMENTS, measures
from flare.experiments.claims import Claim
from flare.experiments.drawing import accuracy_by_rounds, mean_of
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.kept_runs import KeptRun, path_of, read_kept, write_kept
from flare.experiments.outcome import Outcome
from flare.experiments.trial import Callback, Trial, run_trials
from flare.reading import read_small
from flare.report.curves import estimate
from flare.report.figures import write_figures
from flare.report.side_by_side import side_by_side
from flare.sweeps import Hire, Place, staying

_MAX_JSON_BYTES = 1 << 26
MEASURES = {
    name: getattr(measures, name)
    for name in (
        "final_accuracy",
        "best_accuracy",
        "mean_accuracy",
        "mean_drop",
        "final_train_loss",
        "final_test_loss",
        "mean_devices",
        "mean_tau",
        "mean_gap",
        "total_energy_j",
        "fairness",
    )
}
"""What is written of every curve, as a mean over seeds with half the width of its 95 % interval."""


@dataclass(frozen=True)
class Reproduced:
    """An experiment with its results and what they say."""

    experiment: Experiment
    results: Results
    claims: tuple[Claim, ...]
    first: Results | None = None  # of the trials by which something was chosen


def reproduce(
    names: Sequence[str],
    scale: Scale,
    place: Place,
    out: Path,
    *,
    callback: Callback = lambda trial, rounds, ended: None,
    stopping: Callable[[], bool] = lambda: False,
    hire: Hire | None = None,
    dismiss: Callable[[], None] = lambda: None,
) -> list[Reproduced]:
    """Carry out experiments, all their runs as one lot, and write each; fewer where `stopping` says so. `hire` is that
    of `run_tasks`, and `dismiss` is called when workers are no longer needed.

    ValueError or OSError, before any run, where the folder of the figures or the files of the numbers have no place,
    where they hold numbers of small settings and those of the paper are asked for, or the other way round, or where a
    file of runs that are kept cannot be used.
    """
    experiments = {name: EXPERIMENTS[name] for name in names}
    _make_place(names, out)
    _refuse_other_scale(names, scale, out)
    known = known_runs(names, scale, out)

    with staying(place) if hire is None else nullcontext(hire) as hired:

        def results_of(trials: Mapping[str, Sequence[Trial]]) -> dict[str, Results]:
            """The results of the experiments whose trials are complete."""
            everything = [trial for each in trials.values() for trial in each]
            outcomes = run_trials(
                everything, trials_in(out), place, callback=callback, stopping=stopping, hire=hired, known=known
            )
            for name, own in trials.items():
                write_kept(name, out, own, outcomes, quick=scale.quick)
            whole = {name: own for name, own in trials.items() if all(trial.key in outcomes for trial in own)}
            return {name: Results(own, outcomes, scale) for name, own in whole.items()}

        first = results_of({name: one.trials(scale) for name, one in experiments.items()})
        then = {name: experiments[name].then for name in first}
        counting = first | results_of({name: more(first[name]) for name, more in then.items() if more is not None})
    dismiss()
    made: list[Reproduced] = []
    failed: Exception | None = None
    for name, one in experiments.items():
        if name in counting and (one.then is None or counting[name] is not first[name]):
            results, before = counting[name], None if one.then is None else first[name]
            try:
                made.append(Reproduced(one, results, tuple(one.claims(results)), before))
            except Exception as why:  # what is decided before it is written all the same
                failed = why
                break
    side_by_side([partial(write, each, out) for each in made])
    if failed is not None:
        raise failed
    return made


def _make_place(names: Sequence[str], out: Path) -> None:
    """Make the folder of the figures; an error where that cannot be, or where a folder has the name of a file of
    numbers: it is told now, and not after hours."""
    for path in (path for name in names for path in (out / f"{name}.json", path_of(name, out))):
        if path.is_dir():
            raise ValueError(f"{path} is a folder, and the numbers of the experiment go there; move it away")
    for folder in (out / "figures", trials_in(out)):
        if folder.is_symlink():
            raise ValueError(f"{folder} is a link, through which nothing is written; remove it")
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{out} cannot hold the figures: it or a part of its path is a file; give a folder") from None


def _refuse_other_scale(names: Sequence[str], scale: Scale, out: Path) -> None:
    """ValueError where the numbers of an experiment would be written over by those of small settings, or small ones by
    the paper's."""
    for path in (out / f"{name}.json" for name in names):
        if not os.path.lexists(path):
            continue
        try:
            is_quick = json.loads(read_small(path, _MAX_JSON_BYTES))["quick"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # it is none of ours, or damaged: the numbers are made anew
        if is_quick is not scale.quick:
            held = "small settings (--quick)" if is_quick else "the paper's settings"
            raise ValueError(f"{path}: holds numbers of {held}, which would be lost; give another --out")


def known_runs(names: Sequence[str], scale: Scale, out: Path) -> dict[str, Outcome]:
    """The runs of experiments that are kept in OUT, by key; ValueError where a file of them cannot be used, or where
    two have other numbers of the same run."""
    known: dict[str, tuple[str, KeptRun]] = {}
    for name in names:
        for run in read_kept(name, out, quick=scale.quick):
            where, first = known.setdefault(run.key, (name, run))
            try:
                first.refuse_other(run)
            except ValueError as error:
                paths = f"{path_of(where, out)} and {path_of(name, out)}"
                raise ValueError(f"{paths} contradict each other: {error}; move the wrong one away") from None
    return {key: run.outcome for key, (_, run) in known.items()}


def to_be_run(names: Sequence[str], scale: Scale, out: Path) -> list[Trial]:
    """The trials that are not kept in OUT, as far as they are known before any is carried out."""
    known, trials = known_runs(names, scale, out), list[Trial]()
    for one in (EXPERIMENTS[name] for name in names):
        first = one.trials(scale)
        trials += first
        if one.then is not None and all(trial.key in known for trial in first):
            trials += one.then(Results(first, known, scale))
    return [trial for trial in trials if trial.key not in known]


def trials_in(out: Path) -> Path:
    """The folder of the trials."""
    return out / "trials"


def write(one: Reproduced, out: Path) -> None:
    """Write the numbers and the figures of an experiment."""
    name = one.experiment.name
    _make_place([name], out)
    write_whole(out / f"{name}.json", (json.dumps(as_json(one), indent=1, allow_nan=False) + "\n").encode())
    write_figures(out / "figures", partial(one.experiment.draw, one.results))


def as_json(one: Reproduced) -> dict[str, Any]:
    """An experiment in numbers: its claims, and its curves by panel."""
    name, results = one.experiment.name, one.results
    return {
        "name": name,
        "title": one.experiment.title,
        "command": command(name, results.scale),
        "seeds": list(results.scale.seeds),
        "quick": results.scale.quick,
        "claims": [claim_as_json(each) for each in one.claims],
        **({"chosen_by": _chosen_by(one.first)} if one.first is not None else {}),
        "panels": {
            panel: {curve: _curve_as_json(results.runs(panel, curve)) for curve in results.curves(panel)}
            for panel in results.panels
        },
    }


def command(name: str, scale: Scale) -> str:
    """What a reader types to get these numbers."""
    return f"flare reproduce {name} --seeds {len(scale.seeds)}" + (" --quick" if scale.quick else "")


def claim_as_json(one: Claim) -> dict[str, Any]:
    """A claim with its tests, numbers rounded to four digits."""
    return {
        "name": one.name,
        "says": one.says,
        "paper": one.paper,
        "measure": one.measure,
        "verdict": one.verdict.value,
        "depends": one.depends,
        "effect": _numbers(asdict(one.effect)),
        "tests": [
            {"what": test.what, "verdict": test.verdict.value, **_numbers(asdict(test.effect))} for test in one.tests
        ],
    }


def _chosen_by(first: Results) -> dict[str, dict[str, float | None]]:
    """The mean final accuracy of every curve of the trials by which something was chosen, by panel."""
    return {
        panel: {curve: _short(mean_of(first, panel, curve, measures.final_accuracy)) for curve in first.curves(panel)}
        for panel in first.panels
    }


def _curve_as_json(runs: Sequence[Outcome]) -> dict[str, Any]:
    """The measures of a curve, and its accuracy by rounds."""
    made: dict[str, Any] = {"seeds": len(runs), "diverged": sum(run.diverged for run in runs)}
    for name, measure in MEASURES.items():
        values = [measure(run) for run in runs] if _applies(name, runs) else []
        known = [value for value in values if math.isfinite(value)]
        if known:
            mean = estimate(known)
            made[name] = [_short(mean.mean), _short(mean.half)]
    if all(len(run.test_round) for run in runs):
        curve = accuracy_by_rounds(runs)
        at = np.unique(np.linspace(0, len(curve.x) - 1, min(len(curve.x), 30)).round().astype(int))
        made["rounds"] = [int(x) for x in curve.x[at]]
        made["accuracy"] = [_short(value) for value in curve.mean[at]]
        made["half"] = [_short(value) for value in curve.half[at]]
    return made


def _applies(name: str, runs: Sequence[Outcome]) -> bool:
    if name == "mean_gap":
        return not any(math.isnan(run.mean_gap) for run in runs)
    return name in ("mean_devices", "mean_tau", "total_energy_j", "fairness") or all(
        run.diverged or len(run.test_round) for run in runs
    )


def _numbers(table: dict[str, float]) -> dict[str, float | None]:
    return {name: _short(value) for name, value in table.items()}


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
