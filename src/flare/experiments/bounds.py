"""The paper's bounds against measurements: on random quadratics, where expectations are exact, and on `synthetic`.

Nothing is trained over a cell: the studies are in flare.theory, and take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flare.data.embedded import synthetic
from flare.experiments.claims import BEYOND, Claim, Comparison, Effect, Verdict, claim, within
from flare.experiments.drawing import DPI, legend
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.trial import Trial
from flare.report.figures import FAINT
from flare.report.run_figures import looks
from flare.theory import Form
from flare.theory.measure import Study, logistic_study, quadratic_study
from flare.theory.speedup import SpeedUp, speedup_study

PROBLEMS = ("quadratic, all devices", "quadratic, a part of them", "synthetic, all devices")
FORMS = {Form.PRINTED: "as printed", Form.CORRECTED: "with errata 5 and 6", Form.PROVEN: "as proven here"}
THEOREMS = ("theorem_1", "lemma_1", "theorem_2")
NEAR = 0.05
"""How near to -1/2 we call Corollary 1's slope borne out."""


def trials(scale: Scale) -> list[Trial]:
    """None: the studies are made where they are needed."""
    return []


@lru_cache(maxsize=64)
def study(problem: str, seed: int, rounds: int) -> Study:
    """One run against its bounds."""
    if problem == PROBLEMS[0]:
        return quadratic_study(seed, rounds=rounds)
    if problem == PROBLEMS[1]:
        return quadratic_study(seed, rounds=rounds, num_selected=3)
    data = synthetic(1.0, 1.0, num_devices=10, seed=seed)
    assert data.owner is not None
    devices = [(data.train_x[data.owner == k], data.train_y[data.owner == k]) for k in range(10)]
    return logistic_study(seed, devices, data.num_classes, rounds=rounds)


@lru_cache(maxsize=4)
def speedup(seeds: tuple[int, ...], rounds: int) -> SpeedUp:
    """Corollary 1's error against the number of devices."""
    return speedup_study(seeds if len(seeds) > 1 else (seeds[0], seeds[0] + 1), rounds=rounds)


def _rounds(scale: Scale) -> tuple[int, int]:
    return (6, 50) if scale.quick else (40, 1000)


def slack(one: Study, theorem: str, form: Form) -> float:
    """The least room between bound and measurement over the rounds, as a share of the measurement; negative where the
    bound is broken, nan where its conditions nowhere hold."""
    comparison = getattr(one, theorem)
    room = (comparison.bounds[form] - comparison.measured) / np.abs(comparison.measured)
    return float(np.nanmin(room)) if np.isfinite(room).any() else float("nan")


def never_broken(what: str, rooms: Sequence[float]) -> Comparison:
    """A bound must hold in every run: one that breaks it is enough. Where no run meets its conditions: undecided."""
    known = [room for room in rooms if np.isfinite(room)]
    if not known:
        return Comparison(what, Effect(float("nan"), -np.inf, np.inf, 0), Verdict.UNDECIDED, 0.0)
    effect = Effect(float(np.mean(known)), min(known), max(known), len(known))
    return Comparison(what, effect, Verdict.HOLDS if min(known) >= -1e-9 else Verdict.FAILS, min(known))


def claims(results: Results) -> list[Claim]:
    """Every bound in every form, and the slope of Corollary 1."""
    length, long = _rounds(results.scale)
    made = []
    for theorem in THEOREMS:
        for form, words in FORMS.items():
            tests = [
                never_broken(p, [slack(study(p, seed, length), theorem, form) for seed in results.scale.seeds])
                for p in PROBLEMS
            ]
            title = theorem.replace("_", " ").capitalize()
            made.append(
                claim(
                    f"bounds-{theorem.replace('_', '-')}-{form.value}",
                    f"{title} {words} holds in every round of every run",
                    tests,
                    measure="least room as a share of the measurement; mean [least, most] over seeds",
                    paper="proven there" if form is Form.PRINTED else BEYOND,
                )
            )
    slope = speedup(results.scale.seeds, long)
    test = within("slope", Effect(slope.slope, slope.low, slope.high, len(slope.slopes)), -0.5 - NEAR, -0.5 + NEAR)
    says = f"Corollary 1: the error falls with M as its power of -1/2 (within {NEAR:g})"
    return [*made, claim("bounds-speedup", says, [test], measure="slope of log error over log M", paper="-1/2")]


def _loose(axes: Axes, scale: Scale, theorem: str, title: str) -> None:
    """Measured and proven bound on one axis, for the first seed of each problem."""
    for problem, look in zip(PROBLEMS, looks(len(PROBLEMS)), strict=True):
        one = getattr(study(problem, scale.seeds[0], _rounds(scale)[0]), theorem)
        ratio = one.promised(Form.PROVEN) if theorem == "lemma_1" else one.looseness(Form.PROVEN)
        style = (0.0, look.dash) if look.dash else "-"
        every = max(1, len(ratio) // 6)
        axes.plot(1.0 + np.arange(len(ratio)), ratio, color=look.colour, linestyle=style, marker=look.marker,
                  markersize=4.0, markevery=every, linewidth=1.4)  # fmt: skip
    axes.set_title(title, fontsize=9.5)
    axes.set_xlabel("round")
    axes.grid(color=FAINT, linewidth=0.5)
    axes.axhline(1.0, color=FAINT, linewidth=1.2, zorder=0)


def draw(results: Results) -> dict[str, Figure]:
    """How loose the proven bounds are, and the speed-up."""
    scale = results.scale
    figure = Figure(figsize=(7.1, 5.2), layout="constrained", dpi=DPI)
    panels = (
        ("theorem_1", "Theorem 1: bound / measured", "log"),
        ("lemma_1", "Lemma 1: promised / measured descent", "linear"),
        ("theorem_2", "Theorem 2: bound / measured", "log"),
    )
    for place, (theorem, title, kind) in enumerate(panels):
        axes = figure.add_subplot(2, 2, place + 1)
        _loose(axes, scale, theorem, title)
        axes.set_yscale(kind)
        if kind == "linear":
            axes.set_ylim(-2.0, 1.1)
    axes = figure.add_subplot(2, 2, 4)
    one = speedup(scale.seeds, _rounds(scale)[1])
    axes.loglog(one.num_selected, one.errors.T, color="#0072B2", linewidth=0.8, alpha=0.6)
    guide = one.errors.mean(axis=0)[0] * np.sqrt(one.num_selected[0] / one.num_selected)
    axes.loglog(one.num_selected, guide, color="#6B6B6B", linestyle="--", linewidth=1.2)
    axes.set_xticks(one.num_selected, [f"{m:g}" for m in one.num_selected])
    axes.minorticks_off()
    axes.set_title(f"Corollary 1: slope {one.slope:.3f} (dashed: -1/2)", fontsize=9.5)
    axes.set(xlabel="devices a round, M", ylabel="mean squared gradient")
    axes.grid(color=FAINT, linewidth=0.5)
    legend(figure, dict(zip(PROBLEMS, looks(len(PROBLEMS)), strict=True)))
    return {"bounds": figure}


EXPERIMENT = Experiment("bounds", "The bounds against measurements", trials, claims, draw)
