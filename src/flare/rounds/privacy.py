"""What devices tell the base station beside their updates: only what the user lets them, named where it is missing."""

from __future__ import annotations

from collections.abc import Iterable

from flare.config import Config, DataConfig
from flare.scheduling.registry import POLICIES, TOLD

SETTINGS = {word: f"data.share_{word}" for word in TOLD}
"""The setting that lets devices tell each thing that a policy may need."""


def shared(data: DataConfig) -> list[str]:
    """What devices may tell by these settings, words of `TOLD`."""
    return [word for word in TOLD if getattr(data, f"share_{word}")]


def refuse_unshared(configs: Iterable[Config]) -> None:
    """ValueError where policies need what devices do not tell by the settings: it names each, and what to set."""
    missing: dict[str, list[str]] = {}
    for config in configs:
        policy = config.scheduling.policy
        words = POLICIES.find(policy).needed(config.scheduling.options)
        lacking = [word for word in words if word not in shared(config.data)]
        if lacking:
            missing[policy] = lacking
    if not missing:
        return
    who = "; ".join(f"policy '{policy}' needs {_words(lacking)}" for policy, lacking in missing.items())
    settings = [SETTINGS[word] for word in TOLD if any(word in lacking for lacking in missing.values())]
    lets = " ".join(f"--set {setting}=true" for setting in settings)
    others = "another policy" if len(missing) == 1 else "other policies"
    raise ValueError(
        f"{who}, which devices keep to themselves; where they may tell it, set {' and '.join(settings)} to true "
        f"({lets}), or take {others}"
    )


def _words(told: Iterable[str]) -> str:
    return " and ".join(TOLD[word] for word in told)
