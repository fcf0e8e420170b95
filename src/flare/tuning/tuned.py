"""A tuning from its first trial to its report: `flare.tune`, and what `flare tune` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from flare.config import MAX_SEEDS, Config
from flare.research import Runs, load
from flare.research.arguments import ConfigLike, config_of
from flare.sweeps import Place, staying
from flare.tuning.batch import Carrying, mark_pruned, next_batch
from flare.tuning.goals import Aim, Goal
from flare.tuning.judge import Judgement, judge
from flare.tuning.results import write_best, write_report, write_trials_table
from flare.tuning.sampler import importances, require_optuna
from flare.tuning.sections import verdict
from flare.tuning.space import Wanted, space_of
from flare.tuning.study import JUDGED, MAX_TRIALS, Tuning, begin_tuning, refuse_foreign, seal_of
from flare.tuning.trial import Trial, best_of, read_trials, write_trials

SEEDS, FRESH_SEEDS, TRIALS, BATCH = 3, 5, 200, 8
"""What a tuning has where nothing is said."""


@final
@dataclass(frozen=True, eq=False)
class Tuned:
    """What a tuning came to.

    best         the settings of the winner, as in `DIR/best.toml`
    trials       all trials in their order
    judged       the winner beside the start, with fresh seeds
    importance   which share of the differences between trials each setting accounts for; empty where they are too few
    """

    out: Path
    tuning: Tuning
    trials: tuple[Trial, ...]
    judged: Judgement
    importance: Mapping[str, float]

    @property
    def best(self) -> Config:
        """The settings of the winner."""
        return self.judged.best_config

    @property
    def settings(self) -> dict[str, Any]:
        """What was found: the values of the searched settings."""
        return dict(self.judged.trial.params)

    @property
    def runs(self) -> Runs:
        """The runs of winner and start with fresh seeds."""
        found = load(self.out / JUDGED)
        assert isinstance(found, Runs)
        return found

    def __repr__(self) -> str:
        return f"<tuning in {self.out}: {len(self.trials)} trials. {verdict(self.judged)}>"


def make_tuning(
    start: Config,
    *,
    goal: str = Goal.TIME,
    target: float | None = None,
    within_s: float | None = None,
    trials: int = TRIALS,
    search: Mapping[str, Wanted] | None = None,
    no_search: str | Iterable[str] = (),
    seeds: int = SEEDS,
    fresh_seeds: int = FRESH_SEEDS,
    batch: int = BATCH,
    prune: bool = True,
) -> Tuning:
    """What is to be tuned, all of it checked; ValueError says what is wrong. The plugins are taken to be executed."""
    for name, value, most in (
        ("trials", trials, MAX_TRIALS),
        ("seeds", seeds, MAX_SEEDS),
        ("fresh seeds", fresh_seeds, MAX_SEEDS),
        ("trials in a batch", batch, MAX_TRIALS),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"the number of {name} is {value!r:.80}; it must be a whole number from 1 to {most}")
    aim, timed = _aim(start, goal, target, within_s)
    first = start.seed
    return Tuning(
        space_of(start, search or {}, [no_search] if isinstance(no_search, str) else no_search),
        aim,
        tuple(range(first, first + seeds)),
        tuple(range(first + seeds, first + seeds + fresh_seeds)),
        batch,
        bool(prune),
        timed,
        trials,
    )


def _aim(start: Config, goal: str, target: float | None, within_s: float | None) -> tuple[Aim, bool]:
    """The goal with its numbers, and whether the time is one that a user has given."""
    if goal not in list(Goal):
        raise ValueError(f"the goal is {goal!r:.80}; it must be one of {', '.join(Goal)}")
    wanted = start.run.target_accuracy if target is None else target
    given_s = start.run.seconds if within_s is None else within_s
    if given_s < 0.0 or (within_s is not None and not 0.0 < within_s < float("inf")):
        raise ValueError(f"the time of a run is {within_s}; it must be above 0 s")
    if goal == Goal.ACCURACY:
        if not given_s:
            raise ValueError(
                "the best accuracy is that within a time: give it, with --within 20s, or as run.seconds in the settings"
            )
        if target is not None:
            raise ValueError("a target has no meaning where the goal is accuracy: give --within alone")
        return Aim(Goal.ACCURACY, 0.0, float(given_s)), True
    if target is None and wanted == 0.0:
        raise ValueError(
            "there is no target: give the test accuracy to reach, --target 0.9, or run.target_accuracy in the settings"
        )
    if not 0.0 < wanted <= 1.0:
        raise ValueError(
            f"the target is {wanted:g}; give the test accuracy to reach, above 0 and at most 1: --target 0.9"
        )
    within = given_s or start.run.rounds * start.wireless.deadline_s
    return Aim(Goal(goal), float(wanted), float(within)), bool(given_s)


def carry_out(
    tuning: Tuning, how: Carrying, told: Callable[[Sequence[Trial]], None] = lambda trials: None
) -> Tuned | None:
    """Do what is missing of a tuning that was begun in `how.out`, and write what came of it; None where it was stopped.

    `told` hears of all trials that are over: those that were there, then after every batch.
    """
    with staying(how.place) as hire:
        how = replace(how, hire=hire)
        trials = _all_trials(tuning, how, told)
        if trials is None:
            return None
        write_trials_table(tuning, trials, how.out)
        best = best_of(trials)
        if best is None:
            raise ValueError(f"no trial can be carried out: {trials[0].why}; search other values")
        judged = judge(tuning, best, how)
    if judged is None:
        return None
    shares = importances(tuning.space, trials, tuning.space.start.seed)
    write_best(tuning, judged, how.out)
    write_report(tuning, trials, judged, shares, how.out)
    return Tuned(how.out, tuning, tuple(trials), judged, shares)


def _all_trials(tuning: Tuning, how: Carrying, told: Callable[[Sequence[Trial]], None]) -> list[Trial] | None:
    """The trials that are over, and those that are missing, batch by batch; None where it was stopped."""
    seal = seal_of(tuning)
    trials = read_trials(how.out, seal)
    refuse_foreign(tuning, trials, how.out)
    mark_pruned(how.out, trials)
    told(trials)
    while len(trials) < tuning.trials:
        batch = next_batch(tuning, trials, how)
        if batch is None:
            return None
        trials += batch
        write_trials(how.out, trials, seal)
        mark_pruned(how.out, batch)
        told(trials)
    return trials


@torch.inference_mode(mode=False)  # also where the caller has turned it on, as for `flare.simulate`
def tune(
    config: ConfigLike = None,
    *,
    target: float | None = None,
    out: str | os.PathLike[str],
    goal: str = Goal.TIME,
    within_s: float | None = None,
    trials: int = TRIALS,
    search: Mapping[str, Wanted] | None = None,
    no_search: str | Sequence[str] = (),
    seeds: int = SEEDS,
    fresh_seeds: int = FRESH_SEEDS,
    batch: int = BATCH,
    prune: bool = True,
    processes: int = 1,
    callback: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Find the settings that reach a test accuracy in the least simulated time, as `flare tune` does.

    Parameters
    ----------
    config : the start, as for `flare.simulate`.
    target : test accuracy to reach; None: `run.target_accuracy` of the settings.
    out : folder of the tuning; the same call goes on where it was interrupted.
    goal : "time", "energy" (least to the target) or "accuracy" (best within `within_s`).
    within_s : simulated time that a run has; None: `run.seconds`, or that of `run.rounds` rounds of full length.
    trials : how many settings are tried.
    search : settings that are searched, each with a pair (low, high), a list of values or a text as `--search` takes
        it, beside those that are searched by default; None in its place: the default range.
    no_search : settings of the default that are not searched; "all": none of them.
    seeds, fresh_seeds : how many for each trial, and how many others to judge the winner with.
    batch : trials that are chosen together.
    prune : whether hopeless trials are stopped.
    processes : how many share the work.
    callback : called with every trial that is over, in the order of their numbers.

    Raises ValueError for bad input, before anything is written, and where `out` holds something else.
    """
    require_optuna()
    if not isinstance(out, str | os.PathLike):
        raise ValueError(f"out is a {type(out).__name__}; give the path of a folder")
    tuning = make_tuning(
        config_of(config), goal=goal, target=target, within_s=within_s, trials=trials, search=search,
        no_search=no_search,
        seeds=seeds, fresh_seeds=fresh_seeds, batch=batch, prune=prune,
    )  # fmt: skip
    folder, heard = Path(out), 0
    begin_tuning(tuning, folder)

    def told(over: Sequence[Trial]) -> None:
        nonlocal heard
        for trial in over[heard:]:
            if callback is not None:
                callback(trial)
        heard = len(over)

    how = Carrying(folder, Place(processes=processes), lambda task, record, status: None, lambda: False)
    done = carry_out(tuning, how, told)
    assert done is not None  # nobody says stop
    return done
