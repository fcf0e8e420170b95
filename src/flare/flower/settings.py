"""The settings of a run from Flower's run configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

from flare.config import FDMA, PLAIN, Config, override
from flare.learning.methods import make_method
from flare.rounds.base_station import codec_of, downlink_codec_of, policy_options
from flare.scheduling import lacks_number

Value = bool | int | float | str


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
    if not method.plain_gradients:
        raise ValueError(
            f"learning.method is '{config.learning.method}', whose devices take gradients uphill, train a part of the "
            "model or compare features with those of other models; a node of a fleet trains by your own step, which "
            "does none of it; take another method, or simulate the run (flare run)"
        )
    if config.data.share_labels:
        raise ValueError("data.share_labels is true, but nodes do not tell their labels; set it to false")
    if lacks_number(config.scheduling.policy, policy_options(config)):
        raise ValueError(
            f"policy '{config.scheduling.policy}' needs scheduling.options.num_selected here: the simulator tunes it "
            "on its cell, and a fleet has none"
        )
