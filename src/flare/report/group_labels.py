"""What to call a group of runs: what sets it apart from the others, in the paper's words where it has some."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from flare.text import cut, one_line
from flare.units import human

MAX_PARTS = 4
"""Differing settings written into a label; more only where labels would be the same without."""
MAX_CHARACTERS = 48
"""Of one part of a label."""

METHOD, POLICY = "learning.method", "scheduling.policy"
# What the paper calls a method with a policy (section V-C).
_PAPER = {("flare", "greedy"): "SPF", ("fedavg", "greedy"): "SP"} | {
    ("fedavg", policy): policy.upper() for policy in ("ps", "cp", "dm", "cm")
}
_WORDS = {
    "flare": "FLARE", "fedavg": "FedAvg", "fedavg-fixed": "FedAvg (fixed steps)", "fedprox": "FedProx",
    "fednova": "FedNova", "scaffold": "SCAFFOLD", "fedlin": "FedLin",
    "ps": "PS", "cp": "CP", "dm": "DM", "cm": "CM", "lp": "LP",
    "mas": "MaS", "mes": "MeS", "fmas": "FMaS", "fmes": "FMeS", "safe": "safe τ̄",
}  # fmt: skip
# Settings that come first in a label, and how they are written there.
_WRITTEN: dict[str, Callable[[Any], str]] = {
    "learning.options.tau_bar": lambda value: _WORDS[value],
    "learning.local_lr": lambda value: f"lr {value:g}",
    "learning.global_lr": lambda value: f"global lr {value:g}",
    "learning.options.prox_mu": lambda value: f"μ {value:g}",
    "learning.options.fixed_steps": lambda value: f"{value} steps",
    "scheduling.gamma": lambda value: f"γ {value}" if isinstance(value, str) else f"γ {value:g}",
    "scheduling.options": str,
    "wireless.deadline_s": lambda value: f"deadline {human(value, 's')}",
    "data.name": str,
    "data.partition": str,
    "data.dirichlet_alpha": lambda value: f"α {value:g}",
    "data.options": str,
    "learning.model": str,
    "learning.model_options": str,
    "wireless.num_devices": lambda value: f"{value} devices",
    "run.rounds": lambda value: f"{value} rounds",
    **dict.fromkeys(("own data", "own model", "own method", "own policy"), str),  # what a program put in their place
}
# Settings that mean nothing unless another one has a certain value.
_ONLY_WITH = {
    "data.shards_per_device": ("data.partition", "shards"),
    "data.dirichlet_alpha": ("data.partition", "dirichlet"),
    "data.quantity_skew": ("data.partition", "quantity"),
    "wireless.rician_k_db": ("wireless.fading", "rician"),
}
_UNITS = {"_hz": "Hz", "_s": "s", "_m": "m", "_bits": "bit"}

Settings = dict[str, Any]


def differing(tables: Sequence[Settings]) -> list[str]:
    """The settings in which groups differ, the seed aside; those that say most first."""
    every = dict.fromkeys(key for table in tables for key in table)
    first = [key for key in (METHOD, POLICY, *_WRITTEN) if key in every]
    order = first + [key for key in every if key not in first]
    return [key for key in order if key != "seed" and _differs(key, tables)]


def _differs(key: str, tables: Sequence[Settings]) -> bool:
    """Whether groups differ in a setting; in an option of a method, groups of one method."""
    first: dict[Any, Any] = {}
    for table in tables:
        among = table[METHOD] if key.startswith("learning.options.") else ""
        if first.setdefault(among, table.get(key)) != table.get(key):
            return True
    return False


def labels_of(tables: Sequence[Settings]) -> list[str]:
    """A label for the settings of each group, no two the same; one alone is method and policy."""
    keys = differing(tables) if tables else []
    names = _names(tables, keys)
    rest = [key for key in keys if key not in (METHOD, POLICY)]
    sure = MAX_PARTS - any(names)
    labels = [_joined([name, *_parts(table, rest[:sure])]) for name, table in zip(names, tables, strict=True)]
    for key in (*rest[sure:], *rest[:sure]):  # the last ones again, now also for groups where they mean nothing
        labels = _told_apart(labels, key, tables)
    labels = [label or _full_name(table) for label, table in zip(labels, tables, strict=True)]
    times = Counter(labels)
    return [f"{label} ({place + 1})" if times[label] > 1 else label for place, label in enumerate(labels)]


def _told_apart(labels: list[str], key: str, tables: Sequence[Settings]) -> list[str]:
    """Labels that are the same, longer by the key where that tells them apart."""
    values: dict[str, set[Any]] = {}
    for label, table in zip(labels, tables, strict=True):
        values.setdefault(label, set()).add(table.get(key))
    return [
        _joined([label, _part(key, table.get(key))]) if len(values[label]) > 1 else label
        for label, table in zip(labels, tables, strict=True)
    ]


def _names(tables: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """Method and policy as far as they differ; both where a group stands alone."""
    if (METHOD in keys and POLICY in keys) or not keys:
        return [_full_name(table) for table in tables]
    if METHOD in keys or POLICY in keys:
        key = METHOD if METHOD in keys else POLICY
        return [_paper_name(table) or _word(table[key]) for table in tables]
    return [""] * len(tables)


def _full_name(table: Settings) -> str:
    return _paper_name(table) or f"{_word(table[METHOD])} + {_word(table[POLICY])}"


def _word(name: str) -> str:
    return _WORDS.get(name, _cut(name))


def _paper_name(table: Settings) -> str:
    """The paper's SPF takes tau_bar by MaS."""
    name = _PAPER.get((table[METHOD], table[POLICY]), "")
    return "" if name == "SPF" and table.get("learning.options.tau_bar", "mas") != "mas" else name


def _parts(table: Settings, keys: Sequence[str]) -> list[str]:
    there = [key for key in keys if key in table]
    meant = [key for key in there if key not in _ONLY_WITH or table[_ONLY_WITH[key][0]] == _ONLY_WITH[key][1]]
    return [_part(key, table[key]) for key in meant]


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
