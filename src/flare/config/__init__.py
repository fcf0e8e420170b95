"""Every setting of a run: frozen dataclasses, read from a TOML file once at the edge."""

from flare.config.option import Limits
from flare.config.options import Options
from flare.config.sections import (
    AUTO,
    FDMA,
    LONGEST_UNSEEN,
    MAX_SEEDS,
    MODELLED,
    OTA,
    SECTIONS,
    WALL,
    Config,
    DataConfig,
    FleetConfig,
    LearningConfig,
    RunConfig,
    SchedulingConfig,
    UplinkConfig,
    settings_of,
)
from flare.config.setting import setting
from flare.config.toml import load, override, to_toml, with_settings
from flare.config.wireless import BROADCAST, NO_BROADCAST, PLAIN, WirelessConfig, checked_guard

__all__ = [
    "AUTO",
    "BROADCAST",
    "FDMA",
    "LONGEST_UNSEEN",
    "MAX_SEEDS",
    "MODELLED",
    "NO_BROADCAST",
    "OTA",
    "PLAIN",
    "SECTIONS",
    "WALL",
    "Config",
    "DataConfig",
    "FleetConfig",
    "LearningConfig",
    "Limits",
    "Options",
    "RunConfig",
    "SchedulingConfig",
    "UplinkConfig",
    "WirelessConfig",
    "checked_guard",
    "load",
    "override",
    "setting",
    "settings_of",
    "to_toml",
    "with_settings",
]
