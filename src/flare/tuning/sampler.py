"""Optuna's part: which values to try next, which trials fall behind, and which settings mattered.

Nothing is kept between calls: a study is made anew of the trials that have been told, and every trial draws with a
seed of its own. So a tuning that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import numpy as np

from flare.extras import imported
from flare.rng import stream
from flare.tuning.space import Choice, Params, Searched, Space, Value, is_part
from flare.tuning.trial import State, Trial

START_UP = 10
"""Trials whose values are drawn at random, before the others' results guide the search."""
MIN_COMPLETE, MIN_THERE = 8, 4
"""Trials that have ended, and of them with a test by the same time, before one is pruned as being below the median."""
MIN_FOR_IMPORTANCE = 10
"""Trials from which on it can be said what mattered."""


def require_optuna() -> Any:
    """The package; where it is not installed, an error that says how to install it."""
    return imported("optuna", "tuning", "tune")


class BatchTrials:
    """Trials of a batch while they are carried out."""

    def __init__(self, params: Sequence[Params], trials: Sequence[Any]) -> None:
        self.params, self._trials = tuple(params), trials

    def falls_behind(self, place: int, at_pauses: Mapping[int, float], pause: int) -> bool:
        """Whether the accuracy of a trial of the batch is below the median of earlier trials at the same pause."""
        with _quiet():
            trial = self._trials[place]
            if pause not in at_pauses:
                return False
            trial.report(1.0 - at_pauses[pause], pause)
            return bool(trial.should_prune())


def ask(space: Space, told: Sequence[Trial], numbers: Sequence[int], seed: int) -> BatchTrials:
    """Values for the next trials, whose numbers these are, by those that have been told.

    The first trial of all is the start, where that is within what is searched.
    """
    with _quiet() as optuna:
        study = _study(optuna, space, told)
        asked, made = [], []
        for number in numbers:
            study.sampler = optuna.samplers.TPESampler(
                seed=int(stream(seed, "tuning", number).integers(2**32)),
                n_startup_trials=START_UP,
                multivariate=True,
                group=True,
                constant_liar=True,
            )
            start = space.start_params() if number == 0 else None
            if start is not None:
                study.enqueue_trial(start)
            trial = study.ask()
            drawn = _drawn(trial, space)
            asked.append(drawn if start is None else start)
            made.append(trial)
        return BatchTrials(asked, made)


def _drawn(trial: Any, space: Space) -> Params:
    """Values that Optuna draws, those of the parts first: which others have a meaning depends on them."""
    params: Params = {}
    for each in [each for each in space.searched if is_part(each.name)]:
        params[each.name] = each.tidy(_suggested(trial, each))
    for each in space.asked(params):
        params[each.name] = each.tidy(_suggested(trial, each))
    return params


def _suggested(trial: Any, each: Searched) -> Any:
    if isinstance(each, Choice):
        return trial.suggest_categorical(each.name, each.values)
    if each.whole:
        return trial.suggest_int(each.name, int(each.low), int(each.high), log=each.log)
    return trial.suggest_float(each.name, each.low, each.high, log=each.log)


def _distribution(optuna: Any, each: Searched) -> Any:
    if isinstance(each, Choice):
        return optuna.distributions.CategoricalDistribution(each.values)
    if each.whole:
        return optuna.distributions.IntDistribution(int(each.low), int(each.high), log=each.log)
    return optuna.distributions.FloatDistribution(each.low, each.high, log=each.log)


def _study(optuna: Any, space: Space, told: Sequence[Trial]) -> Any:
    """A study of the trials that have been told, in their order."""
    pruner = optuna.pruners.MedianPruner(n_startup_trials=MIN_COMPLETE, n_min_trials=MIN_THERE)
    study = optuna.create_study(pruner=pruner)
    distributions = {each.name: _distribution(optuna, each) for each in space.searched}
    for trial in told:
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED
                if trial.state is State.PRUNED
                else optuna.trial.TrialState.COMPLETE,
                value=None if trial.state is State.PRUNED else trial.score.told,
                params=dict(trial.params),
                distributions={name: distributions[name] for name in trial.params},
                intermediate_values={pause: 1.0 - accuracy for pause, accuracy in trial.at_pauses.items()},
            )
        )
    return study


def importances(space: Space, told: Sequence[Trial], seed: int) -> dict[str, float]:
    """How much of the differences between trials each searched setting accounts for, the most first; shares of 1.

    By fANOVA over the ranks of the trials, pruned ones last; none where there are too few trials to tell. A setting
    that has no meaning in a trial counts there as being in the middle of its range, a choice as having its first value.
    """
    known = [trial for trial in told if trial.state is not State.IMPOSSIBLE]
    ranks = _ranks(known)
    if len(known) < MIN_FOR_IMPORTANCE or len(set(ranks)) < 2:
        return {}
    with _quiet() as optuna:
        study = optuna.create_study()
        distributions = {each.name: _distribution(optuna, each) for each in space.searched}
        for trial, rank in zip(known, ranks, strict=True):
            filled = {each.name: trial.params.get(each.name, _middle(each)) for each in space.searched}
            study.add_trial(optuna.trial.create_trial(value=rank, params=filled, distributions=distributions))
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=int(stream(seed, "importance").integers(2**32)))
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {name: float(share) for name, share in shares.items()}


def _ranks(trials: Sequence[Trial]) -> list[float]:
    """The place of each trial from 0, the best, to 1; equal ones share theirs, and all pruned ones are last."""
    told = np.array([np.inf if trial.state is State.PRUNED else trial.score.told for trial in trials])
    return [float((told < each).sum() + ((told == each).sum() - 1) / 2) / max(1, len(told) - 1) for each in told]


def _middle(each: Searched) -> Value:
    """The middle of a range; of a choice, whose values have no order, the first."""
    if isinstance(each, Choice):
        return each.values[0]
    return each.tidy(sqrt(each.low * each.high) if each.log else 0.5 * (each.low + each.high))


@contextmanager
def _quiet() -> Iterator[Any]:
    """Optuna without its lines on the screen and its warnings of what is new in it."""
    optuna = require_optuna()
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)
