"""The settings of a run from Flower's run configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields

from flare.config import FDMA, MODELLED, PLAIN, Config, override
from flare.learning.methods import make_method
from flare.rounds.asynchrony import is_asynchronous, what_says_so
from flare.rounds.base_station import codec_of, downlink_codec_of, policy_options
from flare.scheduling import POLICIES, lacks_number

Value = bool | int | float | str
MAX_NORM = 1e100
"""Longer than any vector of numbers of 32 bits."""


def from_run_config(run_config: Mapping[str, Value], *, base: Config | None = None) -> Config:
    """The configuration that `[tool.flwr.app.config]` and `flwr run --run-config` describe.

    Keys are those of flare with their section, such as `wireless.deadline_s`, and `seed`; others belong to the app and
    are left alone. ValueError names the key that is wrong.
    """
    sections = {each.name for each in fields(Config)}
    own = {key: value for key, value in run_config.items() if key.partition(".")[0] in sections}
    return override(base or Config(), (f"{key}={json.dumps(value)}" for key, value in own.items()))


def refuse_settings(config: Config) -> None:
    """ValueError where the settings ask for what a fleet cannot have."""
    method = make_method(config.learning)
    if config.uplink.air != FDMA:
        raise ValueError(
            f'uplink.air is "{config.uplink.air}", but the nodes of a fleet send messages, each its own, and no analog '
            'signals that add up in the air; set it to "fdma", or simulate the run (flare run)'
        )
    codec_of(config, method)
    downlink_codec_of(config, method)
    if config.wireless.downlink_codec != PLAIN:
        raise ValueError(
            f'wireless.downlink_codec is "{config.wireless.downlink_codec}", but nodes are sent the model as it is; '
            f'set it to "{PLAIN}"'
        )
    no_data = "goes by the smoothness of the loss on the devices' data, which the server of a fleet does not see"
    if isinstance(config.scheduling.gamma, str):
        raise ValueError(f'scheduling.gamma is "{config.scheduling.gamma}", which {no_data}; set it to a number')
    if method.needs_smoothness:
        options = f"with learning.options {config.learning.options}" if config.learning.options else "as it is set"
        raise ValueError(f"method '{config.learning.method}' {options} {no_data}; take another")
    if method.needs_widths:
        raise not_for_nodes(config)
    if is_asynchronous(config, method) and config.uplink.bits == "auto":
        raise ValueError(
            f'uplink.bits is "auto" and {what_says_so(config, method)}: bits are chosen with the schedule, and a node '
            "that computes across rounds has coded its update before it is scheduled; set uplink.bits to a number"
        )
    if config.learning.attack != "none":
        raise ValueError(
            f'learning.attack is "{config.learning.attack}", but the nodes of a fleet are real and send what they '
            'send; set it to "none", or simulate the run (flare run)'
        )
    if config.data.shared_fraction:
        raise ValueError(
            f"data.shared_fraction is {config.data.shared_fraction:g}, but nodes bring data of their own, and the "
            "server of a fleet has none that it could send them; set it to 0, or simulate the run (flare run)"
        )
    if POLICIES.find(config.scheduling.policy).needs_hardware:
        raise ValueError(
            f"policy '{config.scheduling.policy}' goes by processor speeds and transmit powers or sets them, and a "
            "node of a fleet computes and sends as it can; take another policy, or simulate the run (flare run)"
        )
    _refuse_untold(config)
    if lacks_number(config.scheduling.policy, policy_options(config)):
        raise ValueError(
            f"policy '{config.scheduling.policy}' needs scheduling.options.num_selected here: the simulator tunes it "
            "on its cell, and a fleet has none"
        )


def refuse_other_loop(config: Config, asynchronous: bool) -> None:
    """ValueError where a loop of Flower's own cannot drive the rounds, because it waits for every answer."""
    if config.fleet.deadline == MODELLED and not asynchronous:
        return
    why = "devices compute across rounds" if asynchronous else f'fleet.deadline is "{config.fleet.deadline}"'
    raise ValueError(f"{why}, but this loop of Flower's own waits for every answer; call FlareStrategy.start instead")


def _refuse_untold(config: Config) -> None:
    """ValueError where the policy goes by what nodes do not tell, or the settings say that they do."""
    policy = POLICIES.find(config.scheduling.policy)
    options = config.scheduling.options
    if policy.probes(options):
        raise ValueError(
            f"policy '{policy.name}' asks devices before it selects what they know of the new model, and nodes of a "
            "fleet are asked for their resources alone; take another policy, or options with which it does not ask, or "
            "simulate the run (flare run)"
        )
    untold = {"norms": "the length of a gradient", "gradients": "gradients before they train"}
    for word, what in untold.items():
        if word in policy.needed(options):
            raise ValueError(
                f"policy '{policy.name}' goes by what nodes do not tell, {what}; take another, or simulate the run "
                "(flare run)"
            )
        if getattr(config.data, f"share_{word}"):
            raise ValueError(f"data.share_{word} is true, but nodes do not tell {what}; set it to false")


def refuse_out_of_range(given: Mapping[str, tuple[float | None, bool]]) -> None:
    """ValueError where a parameter of the strategy is no finite number greater than 0, nor None where it may be."""
    for name, (value, may_be_none) in given.items():
        if value is None and may_be_none:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            raise ValueError(f"{name} is {value!r:.40}; it must be a number greater than 0")
        if value > MAX_NORM:
            raise ValueError(f"{name} is {value!r:.40}; it must be a number up to {MAX_NORM:g}")


def not_for_nodes(config: Config) -> ValueError:
    """The refusal of a method whose devices train a part of the model."""
    return ValueError(
        f"learning.method is '{config.learning.method}', whose devices train a part of the model, and the server of a "
        "fleet has arrays alone: it cannot tell which channels of one layer feed those of the next; take another "
        "method, or simulate the run (flare run)"
    )
