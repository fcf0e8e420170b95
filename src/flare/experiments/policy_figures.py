"""What Figs. 5 and 6 share: the policies of the paper and ours on one data set at two deadlines."""

from __future__ import annotations

from collections.abc import Sequence

from flare.experiments.claims import BEYOND, Claim, Comparison, above, claim, paired
from flare.experiments.drawing import Line, mean_of, two_axes
from flare.experiments.entry import Entry, entry, listed
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.measures import final_accuracy
from flare.experiments.settings import DISTRIBUTIONS, NAMES, grid, setting
from flare.experiments.trial import Trial

SPF, SP = entry("flare", "greedy"), entry("fedavg", "greedy")
EXACT_FLARE, EXACT = entry("flare", "exact"), entry("fedavg", "exact")
PS, CP, DM, CM = (entry("fedavg", policy) for policy in ("ps", "cp", "dm", "cm"))
RIVALS = (PS, CP, DM, CM)
LINES = (SPF, SP, EXACT_FLARE, EXACT, *RIVALS)
PS_NUMBERS = {0.4: (2, 3, 5), 1.0: (5, 9, 14), 1.5: (1, 2, 3), 5.0: (4, 7, 11)}
"""Devices a round tried for policy `ps` at each deadline: each panel shows the best of them."""


def panel(dataset: str, distribution: str, deadline_s: float) -> str:
    """The name of a panel."""
    return f"{distribution} {NAMES[dataset]}, {deadline_s:g} s"


def panel_names(dataset: str, deadlines_s: Sequence[float]) -> list[str]:
    """All panels of a figure, as the paper orders them."""
    return [panel(dataset, distribution, deadline) for deadline in deadlines_s for distribution in DISTRIBUTIONS]


def experiment(name: str, dataset: str, deadlines_s: Sequence[float]) -> Experiment:
    """A figure of the policies on a data set."""
    return Experiment(
        name,
        f"Fig. {name[-1]}: policies on {NAMES[dataset]}",
        trials=lambda scale: trials(dataset, deadlines_s, scale),
        claims=lambda results: claims(name, dataset, deadlines_s, results),
        draw=lambda results: two_axes(results, name, lambda panel: lines(results, panel)),
    )


def trials(dataset: str, deadlines_s: Sequence[float], scale: Scale) -> list[Trial]:
    """The paper's six curves and ours, `ps` with several numbers of devices."""
    made = []
    for deadline in deadlines_s:
        curves = [SPF, SP, EXACT_FLARE, EXACT, CP, DM, CM, *map(ps_with, PS_NUMBERS[deadline])]
        for distribution, partition in DISTRIBUTIONS.items():
            base = setting(dataset, scale, f"wireless.deadline_s={deadline}", f"data.partition={partition}")
            made += grid(scale, panel(dataset, distribution, deadline), base, curves)
    return made


def ps_with(num_selected: int) -> Entry:
    """Policy `ps` with a number of devices."""
    return PS.at(f"scheduling.options.num_selected={num_selected}", "scheduling.options")


def curve_of(results: Results, at: str, line: Entry) -> str:
    """The curve that a line shows: for `ps` the number of devices with the best final accuracy over these very seeds,
    which favours it."""
    if line != PS:
        return line.label
    tried = [curve for curve in results.curves(at) if curve.startswith(f"{PS.label}, ")]
    return max(tried, key=lambda curve: mean_of(results, at, curve, final_accuracy))


def lines(results: Results, at: str) -> list[Line]:
    """What a panel shows."""
    return [(line.full_name, curve_of(results, at, line)) for line in LINES]


def compare(results: Results, at: str, ours: Entry, theirs: Entry) -> Comparison:
    """Whether one line ends above another, in percentage points."""
    values = [results.values(at, curve_of(results, at, line), final_accuracy) for line in (ours, theirs)]
    return above(f"{ours.label} over {theirs.label}, {at}", paired(values[0], values[1], scale=100.0))


SAME_CHANNEL = "a channel that is the same in all rounds: cp and dm then call the same few devices"


def claims(name: str, dataset: str, deadlines_s: Sequence[float], results: Results) -> list[Claim]:
    """What Section V-C says of a figure."""
    names, points, data = panel_names(dataset, deadlines_s), "final test accuracy, points", NAMES[dataset]
    made = []
    for ours, short in ((SPF, "flare-greedy"), (SP, "fedavg-greedy")):
        tests = [compare(results, at, ours, rival) for at in names for rival in RIVALS]
        says = f"{ours.full_name} ends above {listed([one.full_name for one in RIVALS])} in every panel of {data}"
        made.append(claim(f"{name}-{short}-over-rivals", says, tests, measure=points, depends=SAME_CHANNEL))
    tests = [compare(results, at, other, CM) for at in names for other in (PS, CP, DM)]
    says = f"{CM.full_name} is the worst of the paper's in every panel of {data}"
    made.append(claim(f"{name}-cm-worst", says, tests, measure=points, depends=SAME_CHANNEL))
    tests = [compare(results, at, other, DM) for at in names for other in (PS, CP)]
    says = f"{DM.full_name} is the next worst on {data}"
    made.append(claim(f"{name}-dm-next", says, tests, measure=points, depends=SAME_CHANNEL))
    tests = [compare(results, at, SPF, SP) for at in names]
    says = f"{SPF.full_name} ends above {SP.full_name} on {data}"
    made.append(claim(f"{name}-flare-over-fedavg-greedy", says, tests, measure=points))
    made.append(_more_so(name, dataset, deadlines_s, results))
    tests = [compare(results, at, EXACT_FLARE, SPF) for at in names]
    says = f"{EXACT_FLARE.full_name} ends above {SPF.full_name} on {data}: exact schedules are worth accuracy"
    return [*made, claim(f"{name}-exact-over-greedy", says, tests, measure=points, paper=BEYOND)]


def _more_so(name: str, dataset: str, deadlines_s: Sequence[float], results: Results) -> Claim:
    """Whether FLARE's gain over FedAvg, both with `greedy`, is larger on non-i.i.d. data, seed by seed."""

    def gain(at: str) -> list[float]:
        pairs = (results.values(at, line.label, final_accuracy) for line in (SPF, SP))
        return [ours - theirs for ours, theirs in zip(*pairs, strict=True)]

    tests = []
    for deadline in deadlines_s:
        even, uneven = (gain(panel(dataset, distribution, deadline)) for distribution in DISTRIBUTIONS)
        tests.append(above(f"gain on non-i.i.d. less gain on i.i.d. data, {deadline:g} s", paired(uneven, even, 100.0)))
    says = f"{SPF.full_name} gains more over {SP.full_name} on non-i.i.d. data ({NAMES[dataset]})"
    return claim(f"{name}-more-so-non-iid", says, tests, measure="difference of gains, points")
