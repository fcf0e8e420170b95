"""What smaller uploads bring: every codec and over-the-air sums against simulated seconds, on the same cell and data.

A run lasts a number of simulated seconds, the same for all, and is charged what its messages really take. The limit
is a cell in which uploads take no time: the devices that have computed before the deadline have also sent. Everything
is compared at one local rate, the paper's, and once more with each at its best of a small grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from flare.experiments.claims import BEYOND, Claim, Comparison, above, claim, effect_of, paired
from flare.experiments.drawing import Line, mean_of, panels
from flare.experiments.entry import Entry, entry
from flare.experiments.experiment import Experiment, Results, Scale
from flare.experiments.measures import final_accuracy, seconds_to
from flare.experiments.outcome import Outcome
from flare.experiments.settings import DISTRIBUTIONS, NAMES, grid, setting
from flare.experiments.trial import Trial
from flare.report.curves import Curve, over_seeds

DEADLINES_S = {"mnist": 0.4, "cifar10": 1.5}
SECONDS = {"mnist": 60.0, "cifar10": 60.0}
RATES = {"mnist": (0.005, 0.02, 0.08), "cifar10": (0.01, 0.04)}
"""Local rates; the first is the paper's."""
_QUICK_ROUNDS = 4
_NO_TIME = ("run.payload=wireless", "wireless.payload_bits=1")  # a bit: 1e-7 of what the models take
POLICIES = ("greedy", "exact")
CODECS: dict[str, tuple[str, ...]] = {
    "none": (),
    "float16": ("uplink.codec=float16",),
    "qsgd-4": ("uplink.codec=qsgd", "uplink.bits=4"),
    "qsgd-2": ("uplink.codec=qsgd", "uplink.bits=2"),
    "auto": ("uplink.codec=qsgd", "uplink.bits=auto"),
    "ternary": ("uplink.codec=ternary",),
    "sign": ("uplink.codec=sign",),
    "topk": ("uplink.codec=topk", "uplink.share=0.01"),
    "ota": ("uplink.air=ota",),
}
"""How updates travel, by the short names in claims."""
FIXED_BITS = ("none", "float16", "qsgd-4", "qsgd-2")
_TIMES = 60
_TIMES_EARLIER = "times as early, as a power of two"


def coded(policy: str, codec: str) -> Entry:
    """A policy with a codec."""
    return entry("flare", policy, *CODECS[codec], told_by=tuple(change.partition("=")[0] for change in CODECS[codec]))


def curve(policy: str, codec: str, rate: float) -> Entry:
    """The runs of a policy with a codec at a local rate."""
    return coded(policy, codec).at(f"learning.local_lr={rate}")


def is_run(policy: str, codec: str) -> bool:
    """Whether a policy is run with a codec: bits are chosen by `exact` alone."""
    return policy == "exact" or codec != "auto"


def limit(policy: str, rate: float) -> Entry:
    """The runs in which uploads take no time."""
    return entry("flare", policy, *_NO_TIME, told_by=("wireless.payload_bits",)).at(f"learning.local_lr={rate}")


def panel(dataset: str, distribution: str) -> str:
    """The name of a panel."""
    return f"{distribution} {NAMES[dataset]}, {DEADLINES_S[dataset]:g} s a round"


def trials(scale: Scale) -> list[Trial]:
    """Both data sets and distributions; two policies, the codecs that are run with them and the limit, at each rate."""
    made = []
    for dataset in DEADLINES_S:
        for distribution, partition in DISTRIBUTIONS.items():
            changes = (
                f"wireless.deadline_s={DEADLINES_S[dataset]}",
                f"data.partition={partition}",
                "run.payload=model",
                f"run.rounds={_QUICK_ROUNDS if scale.quick else 100000}",
                f"run.seconds={SECONDS[dataset]}",
                f"run.evaluate_every={2 if scale.quick else 5}",
            )
            base = setting(dataset, scale, *changes)
            for rate in RATES[dataset]:
                curves = [
                    curve(policy, codec, rate) for policy in POLICIES for codec in CODECS if is_run(policy, codec)
                ]
                curves += [limit(policy, rate) for policy in POLICIES]
                made += grid(scale, panel(dataset, distribution), base, curves)
    return made


Name = tuple[str, str]
"""A policy and a codec, or "limit"."""


def label(results: Results, at: str, name: Name, *, own_rate: bool) -> str:
    """The curve of a policy with a codec: at the paper's rate, or at the rate with the best mean final accuracy."""
    dataset = next(each for each, told in NAMES.items() if f" {told}," in at)
    make = partial(limit, name[0]) if name[1] == "limit" else partial(curve, *name)
    rates = RATES[dataset] if own_rate else RATES[dataset][:1]
    return max((make(rate).label for rate in rates), key=lambda one: mean_of(results, at, one, final_accuracy))


SPF, BASE = ("greedy", "none"), ("exact", "none")


def claims(results: Results) -> list[Claim]:
    """What codecs, bits chosen with the schedule and the air bring; each at the same rate, and at its own best."""
    return [
        made
        for own_rate, short, told in (
            (False, "same-rate", "at the paper's local rate"),
            (True, "own-rate", "each at its best local rate"),
        )
        for made in _claims(results, own_rate, short, told)
    ]


def _claims(results: Results, own_rate: bool, short: str, told: str) -> list[Claim]:
    def ends(ours: Name, theirs: Name, level: float = 0.0) -> list[Comparison]:
        return [_ends_above(results, at, ours, theirs, own_rate, level=level) for at in results.panels]

    def put(name: str, says: str, tests: list[Comparison], depends: str = "", measure: str = _POINTS) -> Claim:
        return claim(f"uplink-{name}-{short}", f"{says}, {told}", tests, measure=measure, paper=BEYOND, depends=depends)

    made = [
        put(
            f"{codec}-over-none",
            f"{coded('exact', codec).full_name}, ends above float32 after the same simulated time",
            ends(("exact", codec), BASE),
        )
        for codec in CODECS
        if codec != "none"
    ]
    earlier = [_earlier(results, at, ("exact", "qsgd-2"), SPF, own_rate) for at in results.panels]
    chosen = [
        _ends_above(results, at, ("exact", "auto"), ("exact", _best_bits(results, at, own_rate)), own_rate)
        for at in results.panels
    ]
    few = coded("exact", "qsgd-2")
    both = [codec for codec in CODECS if is_run("greedy", codec)]
    greedy = [each for codec in both for each in ends(("exact", codec), ("greedy", codec))]
    return [
        *made,
        put(
            "earlier",
            f"{few.full_name}, has the final accuracy of {coded(*SPF).full_name} with float32 4 times as early or more",
            earlier,
            "how early is many times as early: our threshold, 4",
            _TIMES_EARLIER,
        ),
        put(
            "near-limit",
            f"{few.full_name}, ends at most a point below a cell in which uploads take no time",
            ends(("exact", "qsgd-2"), ("exact", "limit"), -1.0),
            "what is near: our threshold, a point",
        ),
        put("auto-over-fixed", f"{coded('exact', 'auto').full_name}, ends above the best fixed number of bits", chosen),
        put(
            "exact-over-greedy",
            f"{coded(*BASE).full_name} ends above {coded(*SPF).full_name} with the same codec",
            greedy,
        ),
        put(
            "ota-over-qsgd-2",
            f"{coded('exact', 'ota').full_name}, ends above {few.full_name}",
            ends(("exact", "ota"), ("exact", "qsgd-2")),
        ),
    ]


_POINTS = "final test accuracy, points"


def _best_bits(results: Results, at: str, own_rate: bool) -> str:
    """The number of bits that ends highest over these very seeds, which favours it."""

    def final(codec: str) -> float:
        return mean_of(results, at, label(results, at, ("exact", codec), own_rate=own_rate), final_accuracy)

    return max(FIXED_BITS, key=final)


def _ends_above(
    results: Results, at: str, ours: Name, theirs: Name, own_rate: bool, *, level: float = 0.0
) -> Comparison:
    labels = [label(results, at, name, own_rate=own_rate) for name in (ours, theirs)]
    values = [results.values(at, one, final_accuracy) for one in labels]
    return above(f"{labels[0]} over {labels[1]}, {at}", paired(values[0], values[1], 100.0), level)


def _earlier(results: Results, at: str, ours: Name, theirs: Name, own_rate: bool) -> Comparison:
    """How many times as early, as a power of two, `ours` has the final accuracy of `theirs`, seed by seed; a run that
    never has it counts with the time at its end."""
    labels = [label(results, at, name, own_rate=own_rate) for name in (ours, theirs)]
    ratios = []
    for mine, other in zip(*(results.runs(at, one) for one in labels), strict=True):
        target = final_accuracy(other)
        theirs_s, ours_s = (min(seconds_to(run, target), run.end_s) for run in (other, mine))
        ratios.append(math.log2(theirs_s / ours_s))
    return above(f"{labels[0]} against {labels[1]}, {at}", effect_of(ratios), 2.0)


def by_seconds(runs: Sequence[Outcome]) -> Curve:
    """The newest test at equally spaced simulated times; a guess before the first."""
    times_s = np.linspace(0.0, min(run.end_s for run in runs), _TIMES + 1)[1:]
    table = np.empty((len(runs), len(times_s)))
    for row, run in zip(table, runs, strict=True):
        newest = np.searchsorted(run.test_s, times_s, side="right") - 1
        guess = 1.0 / run.num_classes
        row[:] = guess
        row[newest >= 0] = run.test_accuracy[newest[newest >= 0]]
        if run.diverged:
            row[times_s > run.end_s] = guess
    return over_seeds(times_s, table)


LINES: tuple[Name, ...] = (
    SPF,
    *(("exact", codec) for codec in ("float16", "qsgd-4", "qsgd-2", "auto", "sign", "topk", "ota", "limit")),
)
"""What is drawn; `ternary` and float32 with `exact` would lie on others."""


def name_of(line: Name) -> str:
    """What a line is called in the legend."""
    if line[1] == "limit":
        return f"flare:{line[0]}, uploads take no time"
    return coded(*line).full_name


def draw(results: Results) -> dict[str, Figure]:
    """Accuracy against simulated seconds, at one rate and at each one's best."""

    def lines(at: str, *, own_rate: bool) -> list[Line]:
        return [(name_of(line), label(results, at, line, own_rate=own_rate)) for line in LINES]

    return {
        f"uplink-{short}": panels(
            results,
            partial(lines, own_rate=own_rate),
            by_seconds,
            x_label="simulated seconds",
            y_label="test accuracy",
        )
        for own_rate, short in ((False, "same-rate"), (True, "own-rate"))
    }


EXPERIMENT = Experiment("uplink", "The uplink: codecs and the air against simulated seconds", trials, claims, draw)
