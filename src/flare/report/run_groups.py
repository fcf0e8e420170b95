"""Runs that differ only in their seed, put together as a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flare.config import Config, Options, settings_of
from flare.config.code_parts import CODE_PARTS, code_key
from flare.learning.methods import METHODS
from flare.records.run import RunNumbers
from flare.report.group_labels import MAX_CHARACTERS, Settings, full_name, labels_of, own_key
from flare.text import cut, one_line

_SHORT = 6  # digits of a checksum that tell two apart


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed, the smallest seed first, and what sets them apart from other groups."""

    label: str
    runs: tuple[RunNumbers, ...]

    def __repr__(self) -> str:
        return f"<Group {self.label}: seeds {', '.join(str(run.config.seed) for run in self.runs)}>"

    @property
    def config(self) -> Config:
        """The configuration of the first seed."""
        return self.runs[0].config

    @property
    def settings(self) -> Settings:
        """All that may set the group apart from others, by name: its settings, and what is a program's own."""
        return _settings(self.runs[0])

    @property
    def full_name(self) -> str:
        """The label, with the paper's name in brackets where it has one."""
        return full_name(self.label, self.settings)


def runs_of(groups: Sequence[Group]) -> list[RunNumbers]:
    """All runs of the groups, one group after the other."""
    return [run for group in groups for run in group.runs]


def group_runs(runs: Sequence[RunNumbers]) -> tuple[list[Group], list[RunNumbers]]:
    """Groups with their labels, in the order of their first run; and the runs left out.

    Runs of other data, another model or other code are another group, whatever their settings say. Two folders with
    one configuration and one seed hold one run: the longer record counts, the other is left out, or the seeds would
    look more alike than they are.
    """
    by_kind: dict[tuple[Config, tuple[str, ...]], dict[int, RunNumbers]] = {}
    left_out = []
    for run in runs:
        seeds = by_kind.setdefault((_one_spelling(replace(run.config, seed=0, plugins=())), _made_of(run)), {})
        kept = seeds.setdefault(run.config.seed, run)
        if kept is not run:
            seeds[run.config.seed], other = (run, kept) if run.num_rounds > kept.num_rounds else (kept, run)
            left_out.append(other)
    groups = [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in by_kind.values()]
    return [Group(label, group) for label, group in zip(_labels(groups), groups, strict=True)], left_out


def _labels(groups: Sequence[tuple[RunNumbers, ...]]) -> list[str]:
    """What a user called a group; of the others, what sets them apart from each other. No two are the same."""
    given = [_given_label(group) for group in groups]
    others = iter(labels_of([_settings(group[0]) for group, own in zip(groups, given, strict=True) if not own]))
    labels = [own or next(others) for own in given]
    return labels if len(set(labels)) == len(labels) else labels_of([_settings(group[0]) for group in groups])


def _given_label(runs: Sequence[RunNumbers]) -> str:
    """What a user called the runs of a group, in a comparison of her own; empty where they are not called one thing."""
    names = {str(run.manifest.get("label") or "") for run in runs}
    return cut(one_line(names.pop()), MAX_CHARACTERS) if len(names) == 1 else ""


def _made_of(run: RunNumbers) -> tuple[str, ...]:
    """What all seeds of a group have in common beside their settings.

    That is the samples (who holds them is drawn with the seed), or where they are drawn with the seed, too, the code
    that draws them; the kind of model (its start is drawn with the seed); and the code of method, policy, codecs and
    air scheme. Nothing for runs of settings alone that do not tell.
    """
    told = run.identity
    data = _data_code(run) if run.data_by_seed else told.get("samples", "")
    return (data, *(told.get(key, "") for key in ("layers", *map(code_key, CODE_PARTS))))


def _settings(run: RunNumbers) -> Settings:
    """The settings, and beside them what a program put in the place of some."""
    told = run.identity
    own = {own_key(part): _short(told, code_key(part)) for part in CODE_PARTS}
    own["own data"] = _data_code(run)[:_SHORT]
    if run.data != run.config.data.name:
        own["own data"] = f"{run.data} {_short(told, 'samples')}"
    own["own model"] = f"{run.model} {_short(told, 'layers')}" if run.model != run.config.learning.model else ""
    return settings_table(run.config) | own


def settings_table(config: Config) -> Settings:
    """Every setting by its dotted name; the options of the method one by one, also those left to their defaults, as
    far as it is known here."""
    learning, table = config.learning, settings_of(_one_spelling(config))
    del table["plugins"]  # what of them was used, the code of method, policy, data and model says
    known = METHODS[learning.method].options if learning.method in METHODS else {}
    options = {**{name: option.default for name, option in known.items()}, **table.pop("learning.options")}
    return table | {f"learning.options.{name}": value for name, value in options.items()}


_SETTINGS_OF_CODECS = {"qsgd": "bits", "topk": "share"}


def _one_spelling(config: Config) -> Config:
    """The same settings, an option of a codec that is also a setting given as that."""
    uplink = config.uplink
    name, options = _SETTINGS_OF_CODECS.get(uplink.codec, ""), dict(uplink.options)
    if name not in options:
        return config
    changes: dict[str, Any] = {name: options.pop(name), "options": Options(options)}
    return replace(config, uplink=replace(uplink, **changes))


def _data_code(run: RunNumbers) -> str:
    """The checksum of a user's own code that draws the samples with the seed; empty where there is none."""
    return str(run.manifest.get("data_code") or "")


def _short(identity: Mapping[str, str], part: str) -> str:
    return identity.get(part, "")[:_SHORT]
