"""The settings of a run from Flower's run configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

from flare.config import Config, override

Value = bool | int | float | str


def from_run_config(run_config: Mapping[str, Value], *, base: Config | None = None) -> Config:
    """The configuration that `[tool.flwr.app.config]` and `flwr run --run-config` describe.

    Keys are those of flare with their section, such as `wireless.deadline_s`, and `seed`; others belong to the app and
    are left alone. ValueError names the key that is wrong.
    """
    sections = {each.name for each in fields(Config)}
    own = {key: value for key, value in run_config.items() if key.partition(".")[0] in sections}
    return override(base or Config(), (f"{key}={json.dumps(value)}" for key, value in own.items()))
