"""Fig. 4: the four strategies for tau_bar against FedAvg: K = 40, M = 10, mean tau 3, i.i.d. and non-i.i.d. data, and
uniform and grouped selection.

The paper's FedAvg is that of its Section I, which does a fixed number of steps (`fedavg-fixed`). Claims against FedAvg
with the tau_i steps of each device at equal rates (`fedavg`) are ours (names that end in -tau-i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from flare.experiments.claims import BEYOND, Claim, Comparison, above, claim, effect_of, paired, within
from flare.experiments.drawing import plain, two_axes
from flare.experiments.entry import Entry, entry
from flare.experiments.experiment import Experiment, Measure, Results, Scale
from flare.experiments.measures import final_accuracy, mean_accuracy, mean_drop
from flare.experiments.settings import DISTRIBUTIONS, grid, ten_of_forty
from flare.experiments.trial import Trial

POLICIES = ("random", "grouped")
MAS, MES, FMAS, FMES = "mas", "mes", "fmas", "fmes"
FEDAVG, FIXED = "fedavg", "fedavg-fixed"
TAU_BAR = "learning.options.tau_bar"
PRINTED = {"i.i.d.": "4.5 %", "non-i.i.d.": "9.4 %"}
MARGINAL = 2.0
"""Percentage points, either way, within which we call a gain marginal."""


def panel(distribution: str, policy: str) -> str:
    """The name of a panel."""
    return f"{distribution} MNIST, policy {policy}"


PANELS = {panel(distribution, policy): policy for policy in POLICIES for distribution in DISTRIBUTIONS}
"""The policy of each panel."""


def curve_of(what: str, policy: str) -> Entry:
    """FLARE with a strategy for tau_bar, or one of the two FedAvgs."""
    if what in (FEDAVG, FIXED):
        return entry(what, policy)
    changes = () if what == MAS else (f"{TAU_BAR}={what}",)  # the first is the default
    return entry("flare", policy, *changes, told_by=(TAU_BAR,))


def _both(method: str) -> str:
    """A method with either policy, as sentences name it."""
    return " and ".join(entry(method, policy).full_name for policy in POLICIES)


def _values(results: Results, at: str, what: str, measure: Measure) -> list[float]:
    return results.values(at, _label(at, what), measure)


def _label(at: str, what: str) -> str:
    return curve_of(what, PANELS[at]).label


def trials(scale: Scale) -> list[Trial]:
    """Six curves in four panels."""
    made = []
    for policy in POLICIES:
        curves = [curve_of(what, policy) for what in (MAS, MES, FMAS, FMES, FEDAVG, FIXED)]
        for distribution, partition in DISTRIBUTIONS.items():
            base = ten_of_forty(scale, partition, policy)
            made += grid(scale, panel(distribution, policy), base, curves)
    return made


def _points(results: Results, at: str, ours: str, theirs: str, measure: Measure = final_accuracy) -> Comparison:
    """Whether one curve lies above another, in percentage points."""
    effect = paired(_values(results, at, ours, measure), _values(results, at, theirs, measure), scale=100.0)
    return above(f"{_label(at, ours)} over {_label(at, theirs)}, {at}", effect)


def claims(results: Results) -> list[Claim]:
    """What Section V-B says of Fig. 4."""
    made = [each for distribution in PRINTED for ours in (MAS, MES) for each in _over(results, ours, distribution)]
    faster = [_points(results, at, MAS, MES, mean_accuracy) for at in results.panels]
    says = f"{_both('flare')} converge faster with tau_bar mas than with mes"
    made.append(claim("fig4-mas-faster", says, faster, measure="mean of all tests, points"))
    made.append(
        _drops(
            results,
            "fig4-mes-steadier",
            f"{_both('flare')} grow more steadily with tau_bar mes than with mas",
            MAS,
            MES,
        )
    )
    sturdier = _drops(
        results, "fig4-fmes-sturdier", f"{_both('flare')} are sturdier with tau_bar fmes than with fmas", FMAS, FMES
    )
    return [*made, _grouped(results), sturdier, _marginal(results)]


def _over(results: Results, ours: str, distribution: str) -> tuple[Claim, Claim]:
    fixed, tau_i = (
        [_points(results, panel(distribution, policy), ours, reading) for policy in POLICIES]
        for reading in (FIXED, FEDAVG)
    )
    return over_fedavg(ours, distribution, fixed, tau_i)


def over_fedavg(
    ours: str, distribution: str, fixed: Sequence[Comparison], tau_i: Sequence[Comparison]
) -> tuple[Claim, Claim]:
    """The paper's claim, against FedAvg with a fixed number of steps, and ours, against FedAvg with tau_i steps.

    Each needs its tests under both ways to select; the paper's says where its verdict rests on the reading.
    """
    name = f"fig4-{ours}-over-fedavg-{distribution.replace('.', '')}"
    measure = "final test accuracy, points"
    other = claim(
        f"{name}-tau-i",
        f"{_both('flare')}, tau_bar {ours}, end above {_both(FEDAVG)} (tau_i steps) on {distribution} data",
        tau_i,
        measure=measure,
        paper=BEYOND,
    )
    printed = claim(
        name,
        f"{_both('flare')}, tau_bar {ours}, end above {_both(FIXED)} (3 steps) on {distribution} data",
        fixed,
        measure=measure,
        paper=f"up to {PRINTED[distribution]}",
    )
    if other.verdict is not printed.verdict:
        printed = replace(
            printed, depends=f"the reading of “FedAvg”: over fedavg with tau_i steps, {other.verdict.value}"
        )
    return printed, other


def _grouped(results: Results) -> Claim:
    uniform, grouped = (_values(results, panel("non-i.i.d.", policy), MAS, final_accuracy) for policy in POLICIES)
    loss = paired(uniform, grouped, scale=100.0)
    return claim(
        "fig4-grouped-loss",
        "flare:grouped, tau_bar mas, loses little to flare:random on non-i.i.d. data (at most twice what is printed)",
        [within("flare:random less flare:grouped, at most twice what the paper prints", loss, -math.inf, 4.8)],
        measure="final test accuracy, points",
        paper="2.4 %",
        depends="what is little: our threshold",
    )


def _drops(results: Results, name: str, says: str, ours: str, theirs: str) -> Claim:
    """Whether one strategy drops more than another from test to test, and so is less steady (less sturdy)."""
    tests = []
    for at in results.panels:
        drops = [_values(results, at, what, mean_drop) for what in (ours, theirs)]
        what = f"{_label(at, ours)} against {_label(at, theirs)}, {at}"
        tests.append(above(what, paired(drops[0], drops[1], scale=100.0)))
    return claim(name, says, tests, measure=f"how much more tau_bar {ours} drops from test to test, points")


def _marginal(results: Results) -> Claim:
    tests = []
    for at in results.panels:
        gain = [
            100.0 * (ours - theirs)
            for ours, theirs in zip(
                _values(results, at, FMES, final_accuracy), _values(results, at, FEDAVG, final_accuracy), strict=True
            )
        ]
        tests.append(
            within(f"{_label(at, FMES)} over {_label(at, FEDAVG)}, {at}", effect_of(gain), -MARGINAL, MARGINAL)
        )
    return claim(
        "fig4-fmes-marginal",
        f"{_both('flare')}, tau_bar fmes, end within {MARGINAL:g} points of {_both(FEDAVG)} (tau_i steps), either way: "
        "the gain is marginal",
        tests,
        measure="final test accuracy, points",
        paper=BEYOND,
        depends="what is marginal: our threshold",
    )


def draw(results: Results) -> dict[str, Figure]:
    """Accuracy against rounds and seconds."""
    return two_axes(results, "fig4", plain(results))


EXPERIMENT = Experiment("fig4", "Fig. 4: strategies for tau_bar", trials, claims, draw)
