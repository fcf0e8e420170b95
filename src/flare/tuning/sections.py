"""The sections of a report that tell of a tuning: the winner beside the start, the search, and what mattered."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape

from flare.report.curves import MIN_SEEDS, Estimate
from flare.report.page import table
from flare.report.panels import Panel, Section, nothing
from flare.report.run_words import percent, points
from flare.sweeps.grid import value_text
from flare.text import plural
from flare.tuning import figures as draw
from flare.tuning.goals import Aim, Standing
from flare.tuning.judge import Judgement, Quantity
from flare.tuning.sampler import MIN_FOR_IMPORTANCE
from flare.tuning.space import Searched, Space, Value
from flare.tuning.study import Tuning
from flare.tuning.trial import State, Trial
from flare.units import human

ABOUT_JUDGED = (
    "Start and winner with seeds that no trial has seen, in pairs of the same seed: the same cell, the same data on "
    "the same devices. The winner of a search looks better than it is with the very seeds that it was picked by; "
    "these numbers do not. In brackets the 95 % interval (Student's t) over the pairs in which both have a value."
)
ABOUT_MATTERED = (
    "How much of the differences between trials each setting accounts for, by itself and together with others "
    "(fANOVA over the ranks of all trials, pruned ones last). It is told of the ranges that were searched, and a "
    "search spends most trials where it is good: it is no experiment."
)


def tuning_sections(
    tuning: Tuning, trials: Sequence[Trial], judged: Judgement, shares: Mapping[str, float]
) -> list[Section]:
    """All sections, the winner first."""
    return [
        Section("The winner beside the start", f"{verdict(judged)} {ABOUT_JUDGED}", [], _judged(tuning.space, judged)),
        Section(
            "The search",
            f"Searched for: {tuning.aim.words()}. {search_in_words(trials, tuning.aim)}",
            [_progress(trials, tuning.aim)],
            _best_trials(trials, tuning.aim),
        ),
        Section("What mattered", ABOUT_MATTERED, _mattered(tuning, trials, shares)),
    ]


def verdict(judged: Judgement) -> str:
    """What the tuning came to, in a sentence or two."""
    trial, aim = judged.trial, judged.aim
    said = []
    if aim.has_target and trial.score.standing is Standing.MISSED:
        said.append(
            f"No trial reached {100.0 * aim.target:g} % with every seed within {human(aim.within_s, 's', 3)}: the "
            f"winner is the best by accuracy, {100.0 * trial.accuracy:.1f} % (trial {trial.number})."
        )
    if judged.is_start:
        return " ".join([*said, "No trial was better than the start settings: they are the winner."])
    main = _main(judged)
    if not main.difference.mean.count:
        said.append(
            f"With fresh seeds the target was reached by the winner with {judged.reached(judged.best)}, by the start "
            f"with {judged.reached(judged.start)} seeds."
        )
    elif main.unit:
        low, high = main.ratio[1:]
        interval = "" if math.isnan(low) else f" [{low:.2g}, {high:.2g}]"
        pairs, fresh = main.difference.mean.count, len(judged.start)
        where = (
            "With fresh seeds"
            if pairs == fresh
            else f"With the {plural(pairs, 'fresh seed')} of {fresh} with which both reach the target"
        )
        said.append(f"{where} the winner takes {main.ratio[0]:.2g}{interval} times the {_short(main)} of the start.")
    else:
        said.append(f"With fresh seeds the winner is {points(main.difference.mean)} points of accuracy from the start.")
    if main.difference.mean.count and not _told_apart(main):
        said.append("The fresh seeds do not tell the two apart.")
    return " ".join(said)


def lead(judged: Judgement) -> str:
    """The verdict, and with how many fresh seeds the target was reached: how the report begins."""
    said, best, start = verdict(judged), judged.reached(judged.best), judged.reached(judged.start)
    if not judged.aim.has_target or "the target was reached by" in said:
        return said
    if judged.is_start:
        return f"{said} They reach the target with {start} fresh seeds."
    return f"{said} The winner reaches the target with {best} fresh seeds, the start with {start}."


def _main(judged: Judgement) -> Quantity:
    """The quantity that was tuned for; the accuracy where hardly a pair has reached the target."""
    by_goal = {"time": 0, "energy": 1, "accuracy": -1}[str(judged.aim.goal)]
    if judged.trial.score.standing is Standing.MISSED:
        return judged.quantities[-1]
    return judged.quantities[by_goal]


def _short(quantity: Quantity) -> str:
    return "simulated time" if quantity.unit == "s" else "energy"


def _told_apart(quantity: Quantity) -> bool:
    if not quantity.unit:
        return abs(quantity.difference.mean.mean) > quantity.difference.mean.half
    low, high = quantity.ratio[1:]
    return high < 1.0 or low > 1.0


def judged_rows(judged: Judgement) -> list[list[str]]:
    """Quantity, start, winner, difference, ratio and in how many pairs it is more: rows of a table, as texts."""
    rows = []
    for each in judged.quantities:
        low, high = each.ratio[1:]
        interval = "" if math.isnan(low) else f" [{low:.2g}, {high:.2g}]"
        count = 0 if judged.is_start else each.difference.mean.count
        difference = each.difference.mean
        apart = "–" if not count else _apart(difference, each.unit) if each.unit else points(difference)
        ahead = each.difference.won if not each.unit else each.difference.lost
        ratio = f"{each.ratio[0]:.2g}{interval}" if each.unit and count else "–"
        better = f"{ahead} of {count}" if count else "–"
        rows.append([each.name, _mean(each.start, each.unit), _mean(each.best, each.unit), apart, ratio, better])
    if judged.aim.has_target:
        rows.append(["target reached", judged.reached(judged.start), judged.reached(judged.best), "", "", ""])
    return rows


JUDGED_HEADER = ("", "start", "winner", "difference", "ratio", "better in")


def _mean(value: Estimate, unit: str) -> str:
    if not value.count:
        return "–"
    if not unit:
        return percent(value)
    around = "" if math.isnan(value.half) else f" ± {human(value.half, unit, 3)}"
    return f"{human(value.mean, unit, 3)}{around}"


def _apart(value: Estimate, unit: str) -> str:
    ends = [value.mean - value.half, value.mean + value.half]
    interval = "" if math.isnan(value.half) else f" [{', '.join(_signed(each, unit) for each in ends)}]"
    return f"{_signed(value.mean, unit)}{interval}"


def _signed(value: float, unit: str) -> str:
    return ("+" if value >= 0.0 else "−") + human(abs(value), unit, 3)


def settings_rows(space: Space, judged: Judgement) -> list[list[str]]:
    """Each searched setting at the start and of the winner."""
    start = space.values_at_start()
    return [[each.name, each.words(), _shown(start.get(each.name)), _shown(judged.trial.params.get(each.name))]
            for each in space.searched]  # fmt: skip


SETTINGS_HEADER = ("setting", "searched", "start", "winner")


def _shown(value: Value | None) -> str:
    return "–" if value is None else value_text(value)


def _judged(space: Space, judged: Judgement) -> str:
    few = f" An interval takes {MIN_SEEDS} seeds." if len(judged.start) < MIN_SEEDS else ""
    return (
        _table("The winner beside the start", JUDGED_HEADER, judged_rows(judged))
        + _table("Settings of the winner", SETTINGS_HEADER, settings_rows(space, judged), text=(1, 2, 3))
        + f'<p class="note">–: nothing that the setting could change.{few}</p>\n'
    )


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, text: Sequence[int] = ()) -> str:
    return table(caption, header, [list(map(escape, row)) for row in rows], text=text)


def search_in_words(trials: Sequence[Trial], aim: Aim) -> str:
    """How many trials there were, and what became of them."""
    pruned = sum(trial.state is State.PRUNED for trial in trials)
    impossible = [trial for trial in trials if trial.state is State.IMPOSSIBLE]
    diverged = sum(any(each.diverged for each in trial.outcomes) for trial in trials)
    reached = sum(trial.reached for trial in trials)
    same = sum(trial.same_as >= 0 for trial in trials)
    parts = [f"{reached} reached the target with every seed"] if aim.has_target else []
    parts += [f"{pruned} {'was' if pruned == 1 else 'were'} pruned as hopeless"] if pruned else []
    parts += [f"in {diverged} a run diverged"] if diverged else []
    parts += (
        [f"{len(impossible)} had settings that no run can have together ({impossible[0].why})"] if impossible else []
    )
    parts += [f"{same} had the settings of an earlier one, and were not carried out again"] if same else []
    return f"{plural(len(trials), 'trial')}" + (f": {'; '.join(parts)}." if parts else ".")


def _progress(trials: Sequence[Trial], aim: Aim) -> Panel:
    values = draw.values_of(trials, aim)
    if not any(map(math.isfinite, values)):
        return nothing("The best so far: no trial was carried out to its end.")
    return Panel(
        "best-so-far",
        f"The best so far: {draw.measured(trials, aim)}",
        "Mean over the tuning seeds. Above the panel: trials without a value.",
        "Trials in their order, with a line for the best so far.",
        partial(draw.best_so_far, trials, aim),
    )


def _mattered(tuning: Tuning, trials: Sequence[Trial], shares: Mapping[str, float]) -> list[Panel]:
    first = nothing(f"Which settings mattered takes {MIN_FOR_IMPORTANCE} trials that differ.")
    if shares:
        spoken = "; ".join(f"{name} {100.0 * share:.0f} %" for name, share in shares.items())
        drawn: Callable[[], object] = partial(draw.importance, shares)
        first = Panel("importance", "Which settings mattered", "The most important on top.", f"{spoken}.", drawn)  # type: ignore[arg-type]
    order = {name: place for place, name in enumerate(shares)}
    searched = sorted(tuning.space.searched, key=lambda each: order.get(each.name, len(order)))
    return [first, *(_effect(number, each, trials, tuning.aim) for number, each in enumerate(searched))]


def _effect(number: int, each: Searched, trials: Sequence[Trial], aim: Aim) -> Panel:
    known = [trial for trial in trials if each.name in trial.params]
    if not any(trial.state is State.COMPLETE for trial in known):
        return nothing(f"{each.name}: no trial with a value of it was carried out to its end.")
    values = draw.values_of(known, aim)
    if sum(map(math.isfinite, values)) == 1 and len(known) == 1:
        return nothing(f"{each.name}: one trial alone has a value of it, {value_text(known[0].params[each.name])}.")
    return Panel(
        f"effect-of-{number}",
        f"Trials by {each.name}",
        "Every trial in which the setting has a meaning; all other settings differ, too.",
        f"{plural(len(known), 'trial')} by {each.name}.",
        partial(draw.effect, each, trials, aim),
    )


def _best_trials(trials: Sequence[Trial], aim: Aim, most: int = 10) -> str:
    """The best trials, in a table."""
    ranked = sorted(
        (t for t in trials if t.state is State.COMPLETE and t.same_as < 0), key=lambda t: (t.score, t.number)
    )
    rows = [
        [f"trial {trial.number}", trial_value(trial, aim), f"{100.0 * trial.accuracy:.1f} %",
         ", ".join(f"{name.rpartition('.')[2]} {value_text(value)}" for name, value in trial.params.items())]
        for trial in ranked[:most]
    ]  # fmt: skip
    return _table("The best trials", ("", aim.measured(), "best accuracy", "settings"), rows, text=(3,))


def trial_value(trial: Trial, aim: Aim) -> str:
    """What a trial came to by the goal, in words."""
    if not aim.has_target:
        return f"{100.0 * (1.0 - trial.score.number):.1f} %"
    return human(trial.score.number, "s" if aim.goal == "time" else "J", 3) if trial.reached else "not reached"
