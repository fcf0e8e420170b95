"""What is run on the testbed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flare.config import Config, override
from flare.config.toml import split_settings
from flare.learning.methods import make_method
from flare.scheduling import POLICIES
from flare.testbed.network import MAX_DEVICES
from flare.testbed.task import hidden_units

POLICIES_COMPARED = ("exact", "greedy", "cp", "dm", "cm")
CALIBRATION = "calibration"
"""The run without a guard from whose overhead the guard of the others is derived."""
CALIBRATION_POLICY = "cm"
"""It serves the most devices, and so tells the most of the overhead."""
MIN_UPDATE_BITS, MAX_UPDATE_BITS = 1e5, 1e8


@dataclass(frozen=True)
class Settings:
    """A comparison on the testbed.

    Parameters
    ----------
    policies : the policies that are compared, all on the same rounds of the same cell.
    rounds : how many rounds each.
    devices : how many devices, and so SuperNodes.
    update_bits : the size of an update, about.
    calibration_rounds : rounds without a guard, from which the guard is derived; 0: the guard is `wireless.guard` of
        the settings.
    tls : whether nodes and server speak TLS.
    changed : settings of the cell and the learning, such as "wireless.deadline_s=10".
    plugins : files of policies and methods of the user's own.
    """

    policies: tuple[str, ...] = POLICIES_COMPARED
    rounds: int = 10
    devices: int = 8
    update_bits: float = 4e6
    calibration_rounds: int = 4
    tls: bool = True
    changed: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise ValueError(f"the policies are {', '.join(self.policies) or 'none'}; name at least one, each once")
        for policy in self.policies:
            POLICIES.find(policy)
        _in_range("rounds", self.rounds, 1, 1000)
        _in_range("devices", self.devices, 1, MAX_DEVICES)
        _in_range("calibration rounds", self.calibration_rounds, 0, 1000)
        _in_range("the size of an update in bit", self.update_bits, MIN_UPDATE_BITS, MAX_UPDATE_BITS)
        self._refuse_changed()

    def config(self, policy: str, *, rounds: int | None = None, guard: str | None = None) -> Config:
        """The settings of one run.

        The cell is the paper's, slower: a band of 125 kHz instead of 10 MHz and steps of about a second, so that an
        update takes seconds, and the pauses of Flower's programs can be told from it.
        """
        config = override(Config(seed=1), [*_CELL, *self._own(policy), *self.changed])
        if guard is not None:
            config = replace(config, wireless=replace(config.wireless, guard=guard))
        run = replace(config.run, rounds=self.rounds if rounds is None else rounds)
        return replace(config, run=run, plugins=self.plugins)

    def _refuse_changed(self) -> None:
        """ValueError where a changed setting has an option of its own, or asks for what the nodes here do not do."""
        changed = split_settings(self.changed)
        for name in changed:
            if name in _OPTIONS:
                raise ValueError(f"--set {name} is not possible on the testbed; use {_OPTIONS[name]} instead")
        if "wireless.guard" in changed and self.calibration_rounds:
            raise ValueError(
                "--set wireless.guard: the guard is derived from the calibration; leave it out, or give "
                "--calibration 0 for a guard of your own"
            )
        config = self.config(self.policies[0])
        if make_method(config.learning).needs_gradients:
            raise ValueError(
                f"--set learning.method={config.learning.method}: it asks devices for gradients before they train, "
                "which the nodes of the testbed do not time; take a method without, such as learning.method=fedavg"
            )
        if config.fleet.evaluate_share > 0.0:
            raise ValueError(
                "--set fleet.evaluate_share: the nodes of the testbed train and do not test; leave it at 0, and use "
                "flare run, or nodes of your own, to see accuracies"
            )

    def _own(self, policy: str) -> Iterable[str]:
        yield f"wireless.num_devices={self.devices}"
        yield f"learning.model_options.hidden={hidden_units(self.update_bits)}"
        yield f"scheduling.policy={policy}"


_OPTIONS = {
    "scheduling.policy": "--policy",
    "wireless.num_devices": "--devices",
    "run.rounds": "--rounds",
    "learning.model_options.hidden": "--update",
}
"""What `--set` may not change, for each run is named or counted by it, and the option that does."""

_CELL = (
    "wireless.total_bandwidth_hz=1.25e5",
    "wireless.deadline_s=20.0",
    "wireless.cycles_per_sample=6e7",
    "wireless.fading=rayleigh",
    "scheduling.bound=false",
    "data.name=digits",
    "learning.method=flare",
    "learning.model=mlp",
    "learning.local_lr=0.05",
    "run.payload=model",
)


def _in_range(what: str, value: float, least: float, greatest: float) -> None:
    if not math.isfinite(value) or not least <= value <= greatest:
        raise ValueError(f"{what}: {value:g} is not possible; it must be from {least:g} to {greatest:g}")
