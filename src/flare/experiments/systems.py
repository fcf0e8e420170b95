"""Every method and policy on the cells of Figs. 5 and 6, each at its best of the same three local rates.

A system is a method with a policy: every policy with `fedavg`, every method with `exact`, and a few pairs more, among
them policies that ask devices before they select, as in their papers, beside those that go by what was last heard.
Which rate is its best is decided in each cell by other seeds than those it is judged by, on MNIST over a part of the
rounds; then it is run at that rate alone. What a system needs of the settings stands beside its name; all else is the
default. Each data set is an experiment of its own, with its own claims and pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
from matplotlib.figure import Figure

from flare.config import Config, override
from flare.experiments.claims import BEYOND, Claim, Comparison, above, claim, effect_of, paired
from flare.experiments.drawing import mean_of, two_axes
from flare.experiments.entry import Entry, entry, listed
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.measures import fairness, final_accuracy, seconds_to
from flare.experiments.outcome import Outcome
from flare.experiments.policy_figures import panel
from flare.experiments.settings import DISTRIBUTIONS, grid, setting
from flare.experiments.systems_shown import Cell, accuracy_dots, seconds_dots, table, told_of_runs
from flare.experiments.trial import Trial
from flare.scheduling.probe import ALL, BATCH

RATES = {"mnist": (0.005, 0.02, 0.08), "cifar10": (0.01, 0.04, 0.16)}
"""Local rates; the first is the paper's, and in experiment `rates` nobody's best is below it."""
TUNING_SEEDS = (100,)
TUNING = {"mnist": ("run.rounds=100",), "cifar10": ("run.evaluate_every=50",)}
"""What is otherwise while rates are chosen. On CIFAR-10 runs go over all rounds: after 200, most systems on i.i.d. data
are best at a rate at which they diverge later. There the last five tests are of rounds 300 to 500."""
TEST_EVERY = {"mnist": 10, "cifar10": 20}
TARGETS = {"mnist": 0.9, "cifar10": 0.5}
"""Test accuracies whose time on the clock is told."""
CELLS = tuple(
    Cell(panel(dataset, distribution, deadline_s), dataset, distribution, deadline_s, TARGETS[dataset])
    for dataset, deadlines_s in {"mnist": (0.4, 1.0), "cifar10": (1.5, 5.0)}.items()
    for deadline_s in deadlines_s
    for distribution in DISTRIBUTIONS
)
_QUICK_RATE = 0.05
_QUICK = (
    "learning.model=mlp",  # it has a hidden layer, whose width HeteroFL divides
    "wireless.num_devices=10",
    "wireless.total_bandwidth_hz=5e5",  # narrow enough for a small model that not everybody can send
    "run.rounds=4",
    "run.evaluate_every=2",
)

LOSSES, NORMS, LABELS = ("data.share_losses=true",), ("data.share_norms=true",), ("data.share_labels=true",)
POLICY_NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("exact", "greedy", "lp", "ps", "cp", "dm", "cm"), ()),
    **dict.fromkeys(("random", "grouped", "round-robin", "proportional-fair", "all"), ()),
    **dict.fromkeys(("amiri-bc", "fedcs", "tran", "chen", "xu", "luo"), ()),
    **dict.fromkeys(("amiri-bn2", "amiri-bc-bn2", "amiri-bn2-c", "ren", "divfl"), ()),
    **dict.fromkeys(("oort", "power-of-choice"), LOSSES),
    **dict.fromkeys(("hu", "fedcgd"), LABELS),
}
"""Every policy that takes part, with `fedavg`, and the settings that it needs."""
METHOD_NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("flare", "fedavg", "fedavg-fixed", "fedprox", "fednova", "scaffold", "fedlin"), ()),
    **dict.fromkeys(("fedavgm", "fedadam", "fedyogi", "fedsam", "moon", "heterofl", "fedbuff"), ()),
    "fedpaq": ("uplink.codec=qsgd",),
}
"""Every method that takes part, with `exact`, and the settings that it needs."""
_OLD_DEFAULTS = {("mnist", "xu"): ("scheduling.options.horizon=100",)}
"""By data set and policy: options that the runs on the page had by default, and that have another default now."""
IN_TURN = "round-robin"
"""The policy of devices that compute across rounds: one that goes by steps never hears an update of few of them."""


@final
@dataclass(frozen=True)
class System:
    """A method with a policy, the settings that it needs, and those of them that are part of its name."""

    method: str
    policy: str
    needs: tuple[str, ...] = ()
    told_by: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry:
        """The system as a curve."""
        return entry(self.method, self.policy, *self.needs, told_by=self.told_by)

    @property
    def label(self) -> str:
        """The name of its curve."""
        return self.entry.label


def with_policy(policy: str) -> System:
    """A policy with `fedavg`."""
    return System("fedavg", policy, POLICY_NEEDS[policy])


def with_method(method: str) -> System:
    """A method with `exact`, or in turn."""
    return System(method, IN_TURN if method == "fedbuff" else "exact", METHOD_NEEDS[method])


def asking(policy: str, option: str, samples: str, needs: tuple[str, ...]) -> System:
    """A policy that asks devices before it selects, and pays for it."""
    return System("fedavg", policy, (*needs, f"scheduling.options.{option}={samples}"), ("scheduling.options",))


SPF = System("flare", "greedy")
ASKED = {"mnist": ALL, "cifar10": BATCH}
"""On which of its samples a device that is asked answers: on CIFAR-10, where all are 50,000 in every round, on a batch,
as Cho et al. do in their cpow-d."""
ASKING = {
    dataset: (
        asking("power-of-choice", "losses", samples, LOSSES),
        asking("amiri-bn2", "norms", samples, NORMS),
        asking("ren", "norms", samples, NORMS),
        asking("divfl", "gradients", samples, ("data.share_gradients=true",)),
    )
    for dataset, samples in ASKED.items()
}
"""Policies that ask devices before they select, by data set."""
_ALL_ASKING = tuple(one for those in ASKING.values() for one in those)
SHARED = System("fedavg", "exact", ("data.shared_fraction=0.1",), ("data.shared_fraction",))
ASYNCHRONOUS = System("fedavg", IN_TURN, ("learning.asynchronous=true",), ("learning.asynchronous",))
KINDS: tuple[tuple[System, ...], ...] = (
    tuple(map(with_policy, POLICY_NEEDS)),
    tuple(with_method(name) for name in METHOD_NEEDS if name != "fedavg"),
    (SPF, SHARED, ASYNCHRONOUS, *_ALL_ASKING),
)
"""All that take part: policies, methods and other pairs."""
SYSTEMS = tuple(one for kind in KINDS for one in kind)


def is_run(cell: Cell, one: System) -> bool:
    """Whether a system is run in a cell: those that ask do it on the samples that the data set has for it."""
    return one not in _ALL_ASKING or one in ASKING[cell.dataset]


def base(cell: Cell, scale: Scale) -> Config:
    """The settings of a cell, the size of an update being that of the model."""
    changes = (
        f"wireless.deadline_s={cell.deadline_s}",
        f"data.partition={DISTRIBUTIONS[cell.distribution]}",
        "run.payload=model",
        f"run.evaluate_every={TEST_EVERY[cell.dataset]}",
    )
    return setting(cell.dataset, scale, *changes, *(_QUICK if scale.quick else ()))


def rates(cell: Cell, scale: Scale) -> tuple[float, ...]:
    """The local rates among which the best is looked for: with `--quick` one, so that there is nothing to look for."""
    return (_QUICK_RATE,) if scale.quick else RATES[cell.dataset]


def entry_in(cell: Cell, one: System) -> Entry:
    """A system with the settings that it has in a cell."""
    return replace(one, needs=(*one.needs, *_OLD_DEFAULTS.get((cell.dataset, one.policy), ()))).entry


def at_rate(cell: Cell, one: System, rate: float) -> Entry:
    """A system at a local rate, under a name of its own."""
    return entry_in(cell, one).at(f"learning.local_lr={rate}")


def cells_with(dataset: str) -> list[Cell]:
    """The cells with a data set."""
    return [cell for cell in CELLS if cell.dataset == dataset]


def cells_in(results: Results) -> list[Cell]:
    """The cells of which there are results."""
    return [cell for cell in CELLS if cell.name in results.panels]


def tuning_seeds(scale: Scale) -> tuple[int, ...]:
    """The seeds by which rates are chosen: none of those by which systems are judged."""
    free = max(scale.seeds) + 1
    return tuple(free + place if seed in scale.seeds else seed for place, seed in enumerate(TUNING_SEEDS))


def tuning(dataset: str, scale: Scale) -> list[Trial]:
    """Every system at every rate, on MNIST over a part of the rounds; nothing where there is one rate."""
    made, seeds = list[Trial](), Scale(tuning_seeds(scale), scale.quick)
    for cell in cells_with(dataset):
        tried = rates(cell, scale)
        if len(tried) > 1:
            part = () if scale.quick else TUNING[cell.dataset]
            curves = [at_rate(cell, one, rate) for one in SYSTEMS if is_run(cell, one) for rate in tried]
            made += grid(seeds, cell.name, override(base(cell, scale), part), curves)
    return made


def best_rate(results: Results, cell: Cell, one: System) -> float:
    """The rate with the best mean final accuracy over the seeds for tuning, the lower of equals."""
    tried = rates(cell, results.scale)
    if len(tried) == 1:
        return tried[0]
    return max(tried, key=lambda rate: mean_of(results, cell.name, at_rate(cell, one, rate).label, final_accuracy))


def judged(dataset: str, results: Results) -> list[Trial]:
    """Every system at the rate that `results`, those of `tuning`, say is its best, under its own name."""
    made = []
    for cell in cells_with(dataset):
        own = base(cell, results.scale)
        for one in SYSTEMS:
            if is_run(cell, one):
                rate = f"learning.local_lr={best_rate(results, cell, one)}"
                made += grid(results.scale, cell.name, override(own, [rate]), [entry_in(cell, one)])
    return made


# --- claims -----------------------------------------------------------------------------------------------------

GROUPS: dict[str, tuple[str, ...]] = {
    "both": ("oort", "amiri-bc-bn2", "amiri-bn2-c", "ren", "luo", "hu", "fedcgd"),
    "channel": ("cp", "dm", "fedcs", "amiri-bc", "chen"),
    "importance": ("power-of-choice", "amiri-bn2", "divfl"),
    "blind": ("random", "round-robin", "grouped"),
}
"""Policies by what they go by in these cells: how much a device is worth to learning and its channel, or one of them,
or neither. All devices hold as many samples, so that `chen` goes by channels; channels never change, so that nothing is
left to `proportional-fair`."""
_WORDS = {
    "both": "importance and channel",
    "channel": "the channel without importance",
    "importance": "importance without the channel",
    "blind": "neither importance nor channel",
}
_POINTS = "final test accuracy, points"
_EARLIER = "times as early, as a power of two"


def claims(results: Results) -> list[Claim]:
    """What knowing importance and channel brings, what methods bring, and where the paper's systems stand; none of
    systems that are not run together anywhere."""
    made = [_group_claim(results, *pair) for pair in _PAIRS]
    made += [*_paper_claims(results), *_method_claims(results), _fairer(results)]
    return [each for each in made if each is not None]


_PAIRS = (
    ("both", "channel"), ("both", "importance"), ("both", "blind"), ("channel", "blind"), ("importance", "blind"),
)  # fmt: skip


def _paper_claims(results: Results) -> Iterator[Claim | None]:
    """The paper's method with its policy and with ours against every policy."""
    ours, policies = with_method("flare"), [with_policy(name) for name in POLICY_NEEDS]
    for one, short in ((ours, "flare-exact"), (SPF, "flare-greedy")):
        says = f"{one.entry.full_name} ends above every policy with fedavg"
        yield _claim(results, f"{short}-over-policies", says, _over(results, one, policies))
    says = f"{ours.entry.full_name} has the target accuracy before every policy with fedavg"
    earlier = [test for rival in policies for test in _earlier(results, ours, rival)]
    yield _claim(results, "flare-exact-earlier", says, earlier, _EARLIER)


def _method_claims(results: Results) -> Iterator[Claim | None]:
    """Every method, shared data and asynchrony against `fedavg`, each with the same policy."""
    for one in KINDS[1]:
        fedavg = with_policy(one.policy)
        says = f"{one.entry.full_name} ends above {fedavg.entry.full_name}"
        yield _claim(results, f"{one.method}-over-fedavg", says, _over(results, one, [fedavg]))
    fedavg = with_policy("exact")
    uneven = [cell for cell in cells_in(results) if DISTRIBUTIONS[cell.distribution] != "iid"]
    says = f"{SHARED.entry.full_name}, ends above {fedavg.entry.full_name} on non-i.i.d. data"
    yield _claim(results, "sharing-over-fedavg", says, _over(results, SHARED, [fedavg], uneven))
    waiting = with_policy(IN_TURN)
    says = f"{ASYNCHRONOUS.entry.full_name}, ends above {waiting.entry.full_name}"
    yield _claim(results, "asynchronous-over-fedavg", says, _over(results, ASYNCHRONOUS, [waiting]))


def _claim(
    results: Results, name: str, says: str, tests: Sequence[Comparison], measure: str = _POINTS, depends: str = ""
) -> Claim | None:
    """A claim; None where there is nothing to tell it by."""
    if not tests:
        return None
    said = f"{says}, each at its best local rate"
    return claim(f"{_name(results)}-{name}", said, tests, measure=measure, paper=BEYOND, depends=depends)


def _name(results: Results) -> str:
    """What the experiment with the cells of these results is called."""
    return name_of(cells_in(results)[0].dataset)


def _run_together(results: Results, systems: Sequence[System], cells: Sequence[Cell] | None = None) -> list[Cell]:
    """The cells in which all of these are run."""
    among = cells_in(results) if cells is None else cells
    return [cell for cell in among if all(one.label in results.curves(cell.name) for one in systems)]


def _over(
    results: Results, ours: System, rivals: Sequence[System], cells: Sequence[Cell] | None = None
) -> list[Comparison]:
    """Whether a system ends above others, in each cell."""
    tests = []
    for rival in rivals:
        for cell in _run_together(results, (ours, rival), cells):
            values = [results.values(cell.name, one.label, final_accuracy) for one in (ours, rival)]
            tests.append(above(f"{ours.label} over {rival.label}, {cell.name}", paired(values[0], values[1], 100.0)))
    return tests


def _group(name: str, results: Results, cell: Cell) -> list[System]:
    """The policies of a group that are run in a cell."""
    return [one for one in map(with_policy, GROUPS[name]) if one.label in results.curves(cell.name)]


def _group_claim(results: Results, ours: str, theirs: str) -> Claim | None:
    """Whether the policies of a group end above those of another, seed by seed, each group by its mean."""
    tests = []
    for cell in cells_in(results):
        groups = [_group(name, results, cell) for name in (ours, theirs)]
        if all(groups):
            values = [[results.values(cell.name, one.label, final_accuracy) for one in group] for group in groups]
            means = [np.mean(each, axis=0).tolist() for each in values]  # (seeds,) each
            tests.append(above(f"{ours} over {theirs}, {cell.name}", paired(means[0], means[1], 100.0)))
    named = [listed([one.label for one in map(with_policy, GROUPS[name]) if one in SYSTEMS]) for name in (ours, theirs)]
    says = f"{named[0]}, which go by {_WORDS[ours]}, end on average above {named[1]}, which go by {_WORDS[theirs]}"
    return _claim(results, f"{ours}-over-{theirs}", says, tests, depends="which policy is put into which group")


def _earlier(results: Results, ours: System, rival: System) -> list[Comparison]:
    """How many times as early, as a power of two, a system has the target accuracy of each cell, seed by seed."""
    tests = []
    for cell in _run_together(results, (ours, rival)):
        pairs = zip(*(results.runs(cell.name, one.label) for one in (ours, rival)), strict=True)
        ratios = [times_earlier(mine, other, cell.target) for mine, other in pairs]
        tests.append(above(f"{ours.label} against {rival.label}, {cell.name}", effect_of(ratios)))
    return tests


def times_earlier(ours: Outcome, theirs: Outcome, target: float) -> float:
    """log2 of their time to the target over ours. A run that never has it counts with the time at its end, but never
    as earlier than one that has it; where neither has it they are equal."""
    mine_s, other_s = (seconds_to(run, target) for run in (ours, theirs))
    if math.isfinite(mine_s) and math.isfinite(other_s):
        return math.log2(other_s / mine_s)
    if math.isfinite(mine_s):
        return math.log2(max(theirs.end_s, mine_s) / mine_s)
    if math.isfinite(other_s):
        return math.log2(other_s / max(ours.end_s, other_s))
    return 0.0


def _fairer(results: Results) -> Claim | None:
    """Whether devices take part more evenly under `exact` than under policies that go by the channel."""
    ours, tests = with_policy("exact"), []
    for rival in map(with_policy, GROUPS["channel"]):
        for cell in _run_together(results, (ours, rival)):
            values = [results.values(cell.name, one.label, fairness) for one in (ours, rival)]
            tests.append(above(f"{ours.label} over {rival.label}, {cell.name}", paired(values[0], values[1])))
    says = f"{ours.entry.full_name} lets devices take part more evenly than policies that go by {_WORDS['channel']}"
    return _claim(results, "exact-fairer", says, tests, "Jain's index of the times that devices sent")


LINES = (
    SPF, with_method("flare"), with_policy("exact"), with_policy("greedy"), with_policy("oort"), with_policy("fedcs"),
    with_policy("amiri-bn2-c"), with_policy("power-of-choice"), with_method("scaffold"), with_method("fedadam"),
)  # fmt: skip
"""Whose curves are drawn; the others are in the table and in the picture of all."""


def draw(results: Results) -> dict[str, Figure]:
    """All systems by final accuracy and by the time to the target, and curves of some."""
    name, cells = _name(results), cells_in(results)
    run = {curve for cell in cells for curve in results.curves(cell.name)}
    names = [[(one.entry.full_name, one.label) for one in kind if one.label in run] for kind in KINDS]
    lines = [(one.entry.full_name, one.label) for one in LINES]
    curves = two_axes(results, name, lambda at: [line for line in lines if line[1] in results.curves(at)], columns=2)
    return {
        name: accuracy_dots(results, names, cells),
        f"{name}-target": seconds_dots(results, names, cells),
        **curves,
    }


def survey(results: Results) -> str:
    """The table of all systems that were run, and before it which runs diverged and which are missing."""
    cells = cells_in(results)
    run = {curve for cell in cells for curve in results.curves(cell.name)}
    counts = {
        cell.name: {
            curve: (len(runs), sum(one.diverged for one in runs))
            for curve in results.curves(cell.name)
            for runs in [results.runs(cell.name, curve)]
        }
        for cell in cells
    }
    lines = [(f"`{one.label}`", one.label) for one in SYSTEMS if one.label in run]
    parts = (told_of_runs(counts, len(results.scale.seeds)), table(results, lines, cells))
    return "\n\n".join(part for part in parts if part)


def name_of(dataset: str) -> str:
    """The name of the experiment with a data set."""
    return f"systems-{dataset}"


EXPERIMENTS = tuple(
    Experiment(name_of(data), title, partial(tuning, data), claims, draw, then=partial(judged, data))
    for data, title in {
        "mnist": "Every system in the cells of Fig. 5, MNIST",
        "cifar10": "Every system in the cells of Fig. 6, CIFAR-10",
    }.items()
)
