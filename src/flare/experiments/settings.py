"""The paper's settings as configurations, and the small ones that stand in for them with `--quick`.

Whatever is not said here is a default of the configuration; what the paper leaves open is decided there and in the
notes on its defaults (docs/results.md names the choices).
"""

from __future__ import annotations

from collections.abc import Iterable

from flare.config import Config, override
from flare.experiments.entry import Entry
from flare.experiments.experiment import Scale
from flare.experiments.trial import Trial

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
DISTRIBUTIONS = {"i.i.d.": "iid", "non-i.i.d.": "shards"}
AMPLE_S = 600.0
"""A deadline that binds nobody, for the figures in which bandwidth is no concern."""

_PAPER = {
    "mnist": (
        "wireless.payload_bits=1e7",
        f"wireless.cycles_per_sample={110.0 * 6272.0}",
        "data.name=mnist",
        "learning.model=mnist-cnn",
        "learning.local_lr=0.005",
        "run.rounds=300",
        "run.evaluate_every=15",
    ),
    "cifar10": (
        "wireless.payload_bits=6.4e7",
        f"wireless.cycles_per_sample={85.0 * 24576.0}",
        "data.name=cifar10",
        "learning.model=cifar-cnn",
        "learning.local_lr=0.01",
        "run.rounds=500",
        "run.evaluate_every=25",
    ),
}
_QUICK = (
    "data.name=digits",
    "learning.model=logistic",
    "learning.local_lr=0.05",
    "wireless.batch_size=10",
    "run.evaluate_every=2",
)
QUICK_ROUNDS = 12


def setting(dataset: str, scale: Scale, *changes: str) -> Config:
    """The paper's setting for a data set with single settings changed; rounds shrink with `--quick`."""
    common = ("learning.precision=tf32", "run.payload=wireless", "scheduling.bound=false")
    cell = override(Config(), [*_PAPER[dataset], *common])
    if scale.quick:  # the radio stays that of the data set, what is learned is small
        cell = override(cell, [*_QUICK, rounds(scale, 0)])
    return override(cell, changes)


def ten_of_forty(scale: Scale, partition: str, policy: str, *changes: str) -> Config:
    """The setting of Fig. 4: ten devices of MNIST, drawn by a policy, with time enough for everyone."""
    ample = (f"wireless.deadline_s={AMPLE_S}", f"scheduling.policy={policy}", "scheduling.options.num_selected=10")
    return setting("mnist", scale, *ample, f"data.partition={partition}", *changes)


def rounds(scale: Scale, full: int) -> str:
    """The setting of so many rounds, few of them with `--quick`."""
    return f"run.rounds={QUICK_ROUNDS if scale.quick else full}"


def over_seeds(scale: Scale, panel: str, curve: str, config: Config, *, plan_only: bool = False) -> list[Trial]:
    """The trials of one curve, one a seed."""
    if plan_only:  # who sends does not depend on what is learned: no files are needed
        config = override(config, ["data.name=digits", "learning.model=logistic"])
    return [Trial(panel, curve, override(config, [f"seed={seed}"]), plan_only) for seed in scale.seeds]


def grid(scale: Scale, panel: str, base: Config, curves: Iterable[Entry]) -> list[Trial]:
    """The trials of a panel: a curve for each entry, under its label."""
    return [trial for one in curves for trial in over_seeds(scale, panel, one.label, override(base, one.changes))]
