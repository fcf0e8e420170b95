"""The paper's bounds against measurements: on random quadratics, where expectations are exact, and on `synthetic`.

Nothing is trained over a cell: the studies are in flare.theory, and take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from flare.colours import BLUE
from flare.data.embedded import synthetic
from flare.experiments.claims import BEYOND, Claim, Comparison, Effect, Verdict, claim, within
from flare.experiments.drawing import DPI
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.trial import Trial
from flare.report.figures import FAINT, GREY
from flare.report.run_figures import ROUND, at_whole_numbers, legend, looks
from flare.theory import Form
from flare.theory.measure import Study, logistic_study, quadratic_study
from flare.theory.pair import pair_study
from flare.theory.speedup import SpeedUp, speedup_study
from flare.types import Floats

PAIR = "two devices, one never selected"
PROBLEMS = (
    "quadratic, all devices",
    "quadratic, a part of them",
    "synthetic, all devices",
    "synthetic, a part of them",
    PAIR,
)
"""Of which all but the last are drawn for each seed; a part is three of ten devices, drawn each round."""
DRAWN_FROM = 32
"""Devices of which Corollary 1's M are drawn."""
SPREADS = {"equal devices": None, "minima 1 apart": 1.0, "minima 3 apart": 3.0}
FORMS = {Form.PRINTED: "as printed", Form.CORRECTED: "with errata 5 and 6", Form.PROVEN: "as proven here"}
_WITH = {Form.PRINTED: "", Form.CORRECTED: ", with all devices,", Form.PROVEN: ""}
UNITS = {"theorem_1": "the measurement", "lemma_1": "(c/2) times the squared gradient", "theorem_2": "the measurement"}
"""What the room of each bound is a share of. Lemma 1 bounds a change of F, which may vanish: hence its descent term."""
NEAR = 0.05
"""By how much the slope may be above Corollary 1's -1/2 and still count as borne out. Below it may be as it likes: the
corollary is an upper bound on the error."""


def problems_of(theorem: str, form: Form) -> tuple[str, ...]:
    """What a form is put to: CORRECTED, whose conditions a selection breaks (errata 9), to runs with all devices."""
    if form is Form.CORRECTED:
        return tuple(problem for problem in PROBLEMS if problem.endswith("all devices"))
    return PROBLEMS[:-1] if theorem == "theorem_1" else PROBLEMS  # the pair approximates nothing


def trials(scale: Scale) -> list[Trial]:
    """None: the studies are made where they are needed."""
    return []


@lru_cache(maxsize=64)
def study(problem: str, seed: int, rounds: int) -> Study:
    """One run against its bounds."""
    if problem == PAIR:
        return pair_study(10 * rounds)
    part = 3 if problem.endswith("a part of them") else None
    if problem.startswith("quadratic"):
        return quadratic_study(seed, rounds=rounds, num_selected=part)
    data = synthetic(1.0, 1.0, num_devices=10, seed=seed)
    assert data.owner is not None
    devices = [(data.train_x[data.owner == k], data.train_y[data.owner == k]) for k in range(10)]
    return logistic_study(seed, devices, data.num_classes, rounds=rounds, num_selected=part)


@lru_cache(maxsize=8)
def speedup(seeds: tuple[int, ...], rounds: int, kind: str) -> SpeedUp:
    """Corollary 1's error against the number of devices."""
    two = seeds if len(seeds) > 1 else (seeds[0], seeds[0] + 1)  # a slope needs two
    return speedup_study(two, num_devices=DRAWN_FROM, rounds=rounds, spread=SPREADS[kind])


def _rounds(scale: Scale) -> tuple[int, int]:
    return (6, 50) if scale.quick else (40, 1000)


def rooms(one: Study, theorem: str, form: Form) -> Floats:
    """What the bound leaves above the measurement in each round, shape (rounds,), as a share of what `UNITS` names.

    Negative where the bound is broken, nan where its conditions do not hold.
    """
    comparison = getattr(one, theorem)
    unit = one.rates.global_step / 2.0 * one.gradient_sq if theorem == "lemma_1" else np.abs(comparison.measured)
    room: Floats = (comparison.bounds[form] - comparison.measured) / unit
    return room


def least_room(one: Study, theorem: str, form: Form) -> float:
    """The least of the rounds; nan where there is no bound in any."""
    room = rooms(one, theorem, form)
    return float(np.nanmin(room)) if np.isfinite(room).any() else float("nan")


def never_broken(what: str, least: Sequence[float]) -> Comparison:
    """A bound must hold in every run, each with its least room. Where no run meets its conditions: undecided."""
    known = [room for room in least if np.isfinite(room)]
    if not known:
        return Comparison(what, Effect(float("nan"), -np.inf, np.inf, 0), Verdict.UNDECIDED, 0.0)
    effect = Effect(float(np.mean(known)), min(known), max(known), len(known))
    return Comparison(what, effect, Verdict.HOLDS if min(known) >= -1e-9 else Verdict.FAILS, effect.mean)


def claims(results: Results) -> list[Claim]:
    """Every bound in every form, and the slope of Corollary 1."""
    length, long = _rounds(results.scale)
    made = []
    for theorem, unit in UNITS.items():
        for form, words in FORMS.items():
            if theorem == "theorem_1" and form is Form.CORRECTED:
                continue  # nothing in it to correct: the same as printed
            tests = [
                never_broken(p, [least_room(study(p, seed, length), theorem, form) for seed in results.scale.seeds])
                for p in problems_of(theorem, form)
            ]
            title = theorem.replace("_", " ").capitalize()
            made.append(
                claim(
                    f"bounds-{theorem.replace('_', '-')}-{form.value}",
                    f"{title} {words} holds{_WITH[form]} in every round and run that meets its conditions",
                    tests,
                    measure=f"least room as a share of {unit}; mean [least, most] over seeds that meet its conditions",
                    paper="proven there" if form is Form.PRINTED else BEYOND,
                )
            )
    return made + [_speedup_claim(results.scale, long, kind) for kind in SPREADS]


def _speedup_claim(scale: Scale, rounds: int, kind: str) -> Claim:
    one = speedup(scale.seeds, rounds, kind)
    test = within(kind, Effect(one.slope, one.low, one.high, len(one.slopes)), -math.inf, -0.5 + NEAR)
    return claim(
        f"bounds-speedup-{kind.replace(' ', '-')}",
        f"Corollary 1, M of {DRAWN_FROM} devices drawn uniformly in each round: after {rounds:,} rounds the error "
        f"falls at least as fast as 1/√M ({kind}; slope at most {NEAR - 0.5:g})",
        [test],
        measure="slope of log error over log M",
        paper="O(1/√M)",
        depends="the number of rounds (fewer: a flatter fall) and our threshold",
    )


def _loose(axes: Axes, scale: Scale, theorem: str, title: str, quantity: str) -> None:
    """Proven bound over measured, or the room of Lemma 1, for the first seed of each problem."""
    drawn = PROBLEMS[:-1]
    for problem, look in zip(drawn, looks(len(drawn)), strict=True):
        one = study(problem, scale.seeds[0], _rounds(scale)[0])
        ratio = rooms(one, theorem, Form.PROVEN) + (0.0 if theorem == "lemma_1" else 1.0)
        style = (0.0, look.dash) if look.dash else "-"
        every = max(1, len(ratio) // 6)
        axes.plot(1.0 + np.arange(len(ratio)), ratio, color=look.colour, linestyle=style, marker=look.marker,
                  markersize=4.0, markevery=every, linewidth=1.4)  # fmt: skip
    axes.set_title(title, fontsize=9.5)
    axes.set(xlabel=ROUND, ylabel=quantity, yscale="log")
    at_whole_numbers(axes)
    axes.grid(color=FAINT, linewidth=0.5)


def draw(results: Results) -> dict[str, Figure]:
    """How loose the proven bounds are, and the speed-up."""
    scale = results.scale
    figure = Figure(figsize=(7.1, 5.2), layout="constrained", dpi=DPI)
    panels = (
        ("theorem_1", "Theorem 1: approximation error", "bound / measured error"),
        ("lemma_1", "Lemma 1: change of F in a round", "(bound − measured)\n/ (c/2)‖∇F‖²"),
        ("theorem_2", "Theorem 2: mean squared gradient", "bound / measured mean"),
    )
    for place, (theorem, title, quantity) in enumerate(panels):
        _loose(figure.add_subplot(2, 2, place + 1), scale, theorem, title, quantity)
    _draw_speedup(figure.add_subplot(2, 2, 4), speedup(scale.seeds, _rounds(scale)[1], "equal devices"))
    legend(figure, dict(zip(PROBLEMS[:-1], looks(len(PROBLEMS) - 1), strict=True)))
    return {"bounds": figure}


def _draw_speedup(axes: Axes, one: SpeedUp) -> None:
    """The error over the number of devices, beside what Corollary 1 says."""
    axes.loglog(one.num_selected, one.errors.T, color=BLUE, linewidth=0.8, alpha=0.6)
    guide = one.errors.mean(axis=0)[0] * np.sqrt(one.num_selected[0] / one.num_selected)
    axes.loglog(one.num_selected, guide, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_xticks(one.num_selected, [f"{m:g}" for m in one.num_selected])
    axes.minorticks_off()
    axes.set_title(f"Corollary 1: slope {one.slope:.3f}".replace("-", "−"), fontsize=9.5)
    axes.text(0.05, 0.08, "dashed: slope −1/2", transform=axes.transAxes, fontsize=8.0, color=GREY)
    axes.set(xlabel="devices a round, M", ylabel="mean squared gradient,\na line for each seed")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))  # a decade alone would often be a single number
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(color=FAINT, linewidth=0.5)


EXPERIMENT = Experiment("bounds", "The bounds against measurements", trials, claims, draw)
