"""Fig. 4: the four strategies for tau_bar against FedAvg: K = 40, M = 10, mean tau 3, i.i.d. and non-i.i.d. data, and
uniform and grouped selection.

The paper's FedAvg is that of its Section I, which does a fixed number of steps. Claims against FedAvg with the tau_i
steps of each device at equal rates are ours (names that end in -tau-i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from flare.experiments.claims import BEYOND, Claim, Comparison, above, claim, effect_of, paired, within
from flare.experiments.drawing import plain, two_axes
from flare.experiments.experiment import Experiment, Measure, Results, Scale
from flare.experiments.measures import final_accuracy, mean_accuracy, mean_drop
from flare.experiments.settings import DISTRIBUTIONS, grid, ten_of_forty
from flare.experiments.trial import Trial

SELECTIONS = {"uniform": "random", "grouped": "grouped"}
FEDAVG, FIXED = "FedAvg (tau_i steps)", "FedAvg (3 steps)"
CURVES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("MaS", ("learning.method=flare",)),
    ("MeS", ("learning.method=flare", "learning.options.tau_bar=mes")),
    ("FMaS", ("learning.method=flare", "learning.options.tau_bar=fmas")),
    ("FMeS", ("learning.method=flare", "learning.options.tau_bar=fmes")),
    (FEDAVG, ("learning.method=fedavg",)),
    (FIXED, ("learning.method=fedavg-fixed",)),
)
PRINTED = {"i.i.d.": "4.5 %", "non-i.i.d.": "9.4 %"}
MARGINAL = 2.0
"""Percentage points, either way, within which we call a gain marginal."""


def panel(distribution: str, selection: str) -> str:
    """The name of a panel."""
    return f"{distribution} MNIST, {selection} selection"


def trials(scale: Scale) -> list[Trial]:
    """Six curves in four panels."""
    made = []
    for selection, policy in SELECTIONS.items():
        for distribution, partition in DISTRIBUTIONS.items():
            base = ten_of_forty(scale, partition, policy)
            made += grid(scale, panel(distribution, selection), base, CURVES)
    return made


def _points(results: Results, at: str, ours: str, theirs: str, measure: Measure = final_accuracy) -> Comparison:
    """Whether one curve lies above another, in percentage points."""
    effect = paired(results.values(at, ours, measure), results.values(at, theirs, measure), scale=100.0)
    return above(f"{ours} over {theirs}, {at}", effect)


def _everywhere(results: Results, pairs: Sequence[tuple[str, str]], measure: Measure) -> list[Comparison]:
    return [_points(results, at, ours, theirs, measure) for at in results.panels for ours, theirs in pairs]


def claims(results: Results) -> list[Claim]:
    """What Section V-B says of Fig. 4."""
    made = [each for distribution in PRINTED for ours in ("MaS", "MeS") for each in _over(results, ours, distribution)]
    faster = _everywhere(results, [("MaS", "MeS")], mean_accuracy)
    made.append(claim("fig4-mas-faster", "MaS converges faster than MeS", faster, measure="mean of all tests, points"))
    steadier = [
        above(
            f"MaS against MeS, {at}",
            paired(results.values(at, "MaS", mean_drop), results.values(at, "MeS", mean_drop), scale=100.0),
        )
        for at in results.panels
    ]
    made.append(
        claim(
            "fig4-mes-steadier",
            "MeS grows more steadily than MaS",
            steadier,
            measure="how much more MaS drops from test to test, points",
        )
    )
    return [*made, _grouped(results), _sturdier(results), _marginal(results)]


def _over(results: Results, ours: str, distribution: str) -> tuple[Claim, Claim]:
    fixed, tau_i = (
        [_points(results, panel(distribution, selection), ours, reading) for selection in SELECTIONS]
        for reading in (FIXED, FEDAVG)
    )
    return over_fedavg(ours, distribution, fixed, tau_i)


def over_fedavg(
    ours: str, distribution: str, fixed: Sequence[Comparison], tau_i: Sequence[Comparison]
) -> tuple[Claim, Claim]:
    """The paper's claim, against FedAvg with a fixed number of steps, and ours, against FedAvg with tau_i steps.

    Each needs its tests under both ways to select; the paper's says where its verdict rests on the reading.
    """
    name = f"fig4-{ours.lower()}-over-fedavg-{distribution.replace('.', '')}"
    measure = "final test accuracy, points"
    other = claim(
        f"{name}-tau-i",
        f"{ours} ends above FedAvg with tau_i steps on {distribution} data, under both ways to select",
        tau_i,
        measure=measure,
        paper=BEYOND,
    )
    printed = claim(
        name,
        f"{ours} ends above FedAvg (3 steps) on {distribution} data, under both ways to select",
        fixed,
        measure=measure,
        paper=f"up to {PRINTED[distribution]}",
    )
    if other.verdict is not printed.verdict:
        printed = replace(printed, depends=f"the reading of “FedAvg”: with tau_i steps, {other.verdict.value}")
    return printed, other


def _grouped(results: Results) -> Claim:
    uniform, grouped = (results.values(panel("non-i.i.d.", s), "MaS", final_accuracy) for s in SELECTIONS)
    loss = paired(uniform, grouped, scale=100.0)
    return claim(
        "fig4-grouped-loss",
        "grouped selection costs MaS little on non-i.i.d. data (at most twice what is printed)",
        [within("uniform less grouped, at most twice what the paper prints", loss, -math.inf, 4.8)],
        measure="final test accuracy, points",
        paper="2.4 %",
        depends="what is little: our threshold",
    )


def _sturdier(results: Results) -> Claim:
    """Sturdier: it varies less from seed to seed and test to test; measured by its drops."""
    tests = [
        above(
            f"FMaS against FMeS, {at}",
            paired(results.values(at, "FMaS", mean_drop), results.values(at, "FMeS", mean_drop), scale=100.0),
        )
        for at in results.panels
    ]
    return claim(
        "fig4-fmes-sturdier",
        "FMeS is sturdier than FMaS",
        tests,
        measure="how much more FMaS drops from test to test, points",
    )


def _marginal(results: Results) -> Claim:
    tests = []
    for at in results.panels:
        gain = [
            100.0 * (ours - theirs)
            for ours, theirs in zip(
                results.values(at, "FMeS", final_accuracy), results.values(at, FEDAVG, final_accuracy), strict=True
            )
        ]
        tests.append(within(f"FMeS over {FEDAVG}, {at}", effect_of(gain), -MARGINAL, MARGINAL))
    return claim(
        "fig4-fmes-marginal",
        f"FMeS ends within {MARGINAL:g} points of FedAvg with tau_i steps, either way: its gain is marginal",
        tests,
        measure="final test accuracy, points",
        paper=BEYOND,
        depends="what is marginal: our threshold",
    )


def draw(results: Results) -> dict[str, Figure]:
    """Accuracy against rounds and seconds."""
    return two_axes(results, "fig4", plain(results))


EXPERIMENT = Experiment("fig4", "Fig. 4: strategies for tau_bar", trials, claims, draw)
