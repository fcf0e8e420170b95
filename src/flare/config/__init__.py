"""Every setting of a run: frozen dataclasses, read from a TOML file once at the edge."""

from flare.config.option import Limits
from flare.config.options import Options
from flare.config.sections import (
    BROADCAST,
    FDMA,
    MAX_SEEDS,
    NO_BROADCAST,
    OTA,
    PLAIN,
    SECTIONS,
    Config,
    DataConfig,
    LearningConfig,
    RunConfig,
    SchedulingConfig,
    UplinkConfig,
    WirelessConfig,
    settings_of,
)
from flare.config.setting import setting
from flare.config.toml import load, override, to_toml, with_settings

__all__ = [
    "BROADCAST",
    "FDMA",
    "MAX_SEEDS",
    "NO_BROADCAST",
    "OTA",
    "PLAIN",
    "SECTIONS",
    "Config",
    "DataConfig",
    "LearningConfig",
    "Limits",
    "Options",
    "RunConfig",
    "SchedulingConfig",
    "UplinkConfig",
    "WirelessConfig",
    "load",
    "override",
    "setting",
    "settings_of",
    "to_toml",
    "with_settings",
]
