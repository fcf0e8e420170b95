"""What to call a group of runs: METHOD:POLICY as the user gave them, then what else sets it apart from the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from flare.config import BROADCAST, FDMA, NO_BROADCAST, OTA, PLAIN
from flare.config.code_parts import CODE_PARTS
from flare.text import cut, one_line
from flare.units import human

MAX_PARTS = 4
"""Differing settings written into a label; more only where labels would be the same without."""
MAX_CHARACTERS = 48
"""Of one part of a label."""

METHOD, POLICY = "learning.method", "scheduling.policy"
PAPER_NAMES = {
    "SPF": "the paper's scheduling policy with FLARE: Algorithm 1 selects, FLARE sets the learning rates, τ̄ "
    "by the maximum strategy (MaS): the most steps of a selected device",
    "SP": "the same scheduling policy without FLARE's learning rates",
    "PS": "pre-tuned scheduling: devices drawn at random, their number tuned beforehand",
    "CP": "channel proportion: the best channels, as many as the deadline allows",
    "DM": "device maximization: whoever lengthens the round least, on equal bandwidths",
    "CM": "computation minimization: the shortest computing times, as many as the deadline allows",
}
"""What the paper calls some pairs of method and policy (section V-C), and what it means by that."""
PAPER_PAIRS = {("flare", "greedy"): "SPF", ("fedavg", "greedy"): "SP"} | {
    ("fedavg", policy): policy.upper() for policy in ("ps", "cp", "dm", "cm")
}
"""Which pair of method and policy each of them is."""


def own_key(part: str) -> str:
    """What a user's own code of a part is called among the settings of a group."""
    return f"own {part}"


# What is a user's own, and the setting that names it.
_CODE_OF = {own_key(part): setting for part, setting in CODE_PARTS.items()} | {"own data": "data.name"}
# Settings that come first in a label, and how they are written there.
_WRITTEN: dict[str, Callable[[Any], str]] = {
    "learning.options.tau_bar": lambda value: f"tau_bar {value}",
    "learning.options.tau_eff": lambda value: f"tau_eff {value}",
    "learning.local_lr": lambda value: f"lr {value:g}",
    "learning.global_lr": lambda value: f"global lr {value:g}",
    "learning.options.prox_mu": lambda value: f"μ {value:g}",
    "learning.options.fixed_steps": lambda value: f"{value} steps",
    "scheduling.gamma": lambda value: f"γ {value}" if isinstance(value, str) else f"γ {value:g}",
    "scheduling.options": str,
    "uplink.air": lambda value: "over the air" if value == OTA else "",
    "uplink.codec": lambda value: "uncoded" if value == PLAIN else str(value),
    "uplink.bits": lambda value: "" if value == "default" else f"{value} bits",
    "uplink.share": lambda value: "" if value == "default" else f"share {value:g}",
    "uplink.options": str,
    "uplink.air_scheme": str,
    "uplink.air_senders": lambda value: "best senders" if value == "best" else "",
    "uplink.air_options": str,
    "wireless.downlink": lambda value: "no broadcast" if value == NO_BROADCAST else str(value),
    "wireless.downlink_codec": lambda value: "" if value == PLAIN else f"model in {value}",
    "wireless.downlink_options": str,
    "wireless.deadline_s": lambda value: f"deadline {human(value, 's')}",
    "wireless.guard": lambda value: f"guard {value}" if isinstance(value, str) else f"guard {100.0 * value:g} %",
    "data.name": str,
    "data.partition": str,
    "data.dirichlet_alpha": lambda value: f"α {value:g}",
    "data.shared_fraction": lambda value: f"{100.0 * value:g} % shared data" if value else "no shared data",
    "data.shared_part": lambda value: f"{100.0 * value:g} % of them each",
    "data.options": str,
    "learning.model": str,
    "learning.model_options": str,
    "wireless.num_devices": lambda value: f"{value} devices",
    "run.rounds": lambda value: f"{value} rounds",
    # What a program put in their place:
    **dict.fromkeys(("own data", "own model", *_CODE_OF), str),
}
ONLY_WITH = {
    "data.shards_per_device": ("data.partition", "shards"),
    "data.dirichlet_alpha": ("data.partition", "dirichlet"),
    "data.quantity_skew": ("data.partition", "quantity"),
    "wireless.rician_k_db": ("wireless.fading", "rician"),
    "uplink.codec": ("uplink.air", FDMA),
    "uplink.air_scheme": ("uplink.air", OTA),
    "uplink.air_senders": ("uplink.air", OTA),
    "uplink.air_noise": ("uplink.air_senders", "best"),
    "uplink.air_options": ("uplink.air", OTA),
    "wireless.downlink_power_dbm": ("wireless.downlink", BROADCAST),
    "wireless.downlink_codec": ("wireless.downlink", BROADCAST),
    "wireless.downlink_options": ("wireless.downlink", BROADCAST),
}
"""Settings that mean nothing unless another one has a certain value."""
_UNITS = {"_hz": "Hz", "_s": "s", "_m": "m", "_bits": "bit"}

Settings = dict[str, Any]


def differing(tables: Sequence[Settings]) -> list[str]:
    """The settings in which groups differ, the seed aside; those that say most first."""
    every = dict.fromkeys(key for table in tables for key in table)
    first = [key for key in (METHOD, POLICY, *_WRITTEN) if key in every]
    order = first + [key for key in every if key not in first]
    return [key for key in order if key != "seed" and _differs(key, tables)]


def _differs(key: str, tables: Sequence[Settings]) -> bool:
    """Whether groups differ in a setting; in an option or in code of a user's own, groups of one name."""
    named = METHOD if key.startswith("learning.options.") else _CODE_OF.get(key)
    first: dict[Any, Any] = {}
    for table in tables:
        among = table[named] if named else ""
        if first.setdefault(among, table.get(key)) != table.get(key):
            return True
    return False


def labels_of(tables: Sequence[Settings]) -> list[str]:
    """A label for the settings of each group, no two the same: method and policy, then other settings that differ, but
    not what nearly all have."""
    keys = differing(tables) if tables else []
    rest = [key for key in keys if key not in (METHOD, POLICY)]
    usual = {key: _usual([table.get(key) for table in tables]) for key in rest}
    labels = [label_of(table, [key for key in rest if table.get(key) != usual[key]]) for table in tables]
    for key in rest:  # now also for groups where it means nothing
        labels = _told_apart(labels, key, tables)
    times = Counter(labels)
    return [f"{label} ({place + 1})" if times[label] > 1 else label for place, label in enumerate(labels)]


_NOTHING = object()


def _usual(values: Sequence[Any]) -> Any:
    """What more than three of four groups have; nothing that any has where there is none."""
    value, times = Counter(values).most_common(1)[0]
    return value if 4 * times > 3 * len(values) else _NOTHING


def label_of(table: Settings, keys: Sequence[str]) -> str:
    """Method and policy as `flare compare --entry` takes them, then the first of these settings that mean something."""
    parts = [part for part in _parts(table, keys) if part]
    return _joined([f"{_cut(table[METHOD])}:{_cut(table[POLICY])}", *parts[: MAX_PARTS - 1]])


def full_name(label: str, table: Settings) -> str:
    """The label, with the paper's name in brackets where it has one."""
    name = paper_name(table)
    return f"{label} ({name})" if name else label


def paper_name(table: Settings) -> str:
    """What the paper calls the method with the policy; empty where it has no name. Its SPF takes tau_bar by MaS."""
    name = PAPER_PAIRS.get((table[METHOD], table[POLICY]), "")
    return "" if name == "SPF" and table.get("learning.options.tau_bar", "mas") != "mas" else name


def _told_apart(labels: list[str], key: str, tables: Sequence[Settings]) -> list[str]:
    """Labels that are the same, longer by the key where that tells them apart."""
    values: dict[str, set[Any]] = {}
    for label, table in zip(labels, tables, strict=True):
        values.setdefault(label, set()).add(table.get(key))
    return [
        _joined([label, _part(key, table.get(key))]) if len(values[label]) > 1 else label
        for label, table in zip(labels, tables, strict=True)
    ]


def _parts(table: Settings, keys: Sequence[str]) -> list[str]:
    meant = [key for key in keys if key in table and _means_something(key, table)]
    return [_part(key, table[key]) for key in meant]


def _means_something(key: str, table: Settings) -> bool:
    other, value = ONLY_WITH.get(key, (METHOD, table[METHOD]))
    return bool(table[other] == value)


def _part(key: str, value: Any) -> str:
    """A setting in a few words; none where the group has no such setting."""
    if value is None:
        return ""
    if key in _WRITTEN:
        return _cut(_WRITTEN[key](value))
    name = key.rpartition(".")[2]
    for suffix, unit in _UNITS.items():
        if name.endswith(suffix) and isinstance(value, int | float) and math.isfinite(value):
            return f"{name.removesuffix(suffix).replace('_', ' ')} {human(value, unit)}"
    shown = (
        ("on" if value else "off") if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
    )
    return _cut(f"{name.replace('_', ' ')} {shown}")


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if part)


def _cut(text: str) -> str:
    """The text as one printable line, not too long."""
    return cut(one_line(text), MAX_CHARACTERS)
