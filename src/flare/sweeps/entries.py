"""What is compared with what: pairs of method and policy, each with the options that are its own, and what a run of one
is called."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from flare.config import OTA, Config, Options, override
from flare.config.declared import of_each, settable
from flare.config.options import NO_OPTIONS
from flare.rounds.air import BEST
from flare.sweeps.parts import METHOD, PARTS, POLICY, Part, dealt


def run_name(method: str, policy: str, seed: int) -> str:
    """What a run is called."""
    return f"{method}-{policy}-seed{seed}"


def name_of(whole: Config) -> str:
    """What a run with these settings is called."""
    return run_name(whole.learning.method, whole.scheduling.policy, whole.seed)


def new_folder(base: Path, name: str, taken: Collection[Path] = ()) -> Path:
    """The first of name, name-2, name-3, ... that is not there yet, nor taken."""
    number = 1
    while (folder := base / (name if number == 1 else f"{name}-{number}")).exists() or folder in taken:
        number += 1
    return folder


def pair_of(entry: str, where: str = "") -> tuple[str, str]:
    """Method and policy of "METHOD:POLICY"; ValueError, which names `where`, for other texts."""
    method, colon, policy = entry.partition(":")
    if not colon or not method or not policy:
        raise ValueError(f"{where}'{entry}' is not of the form METHOD:POLICY, such as flare:greedy")
    return method, policy


@final
@dataclass(frozen=True)
class TextEntry:
    """An entry of a comparison as it is typed: "METHOD:POLICY", or "METHOD:POLICY,section.key=value,...": with settings
    of its own. Among these `label=WORDS` is no setting but what the entry is called in reports."""

    method: str
    policy: str
    settings: tuple[str, ...] = ()
    label: str = ""

    @classmethod
    def read(cls, text: str, where: str = "") -> TextEntry:
        """From a text; ValueError, which names `where`, for what is none."""
        first, *settings = _BETWEEN_SETTINGS.split(text)
        named = [each.partition("=")[0].strip() for each in settings]
        for place, name in enumerate(named):
            if name in named[:place]:
                raise ValueError(f"{where}'{text}' sets {name} twice; set it once")
            if name in _NOT_OF_AN_ENTRY:
                raise ValueError(f"{where}'{text}' sets {name}, {_NOT_OF_AN_ENTRY[name]}")
        labels = [_unquoted(each.partition("=")[2].strip()) for each in settings if _is_label(each)]
        if "" in labels:
            raise ValueError(f"{where}'{text}' has a label without words; write label=WORDS, or leave it out")
        own = tuple(each for each in settings if not _is_label(each))
        return cls(*pair_of(first.strip(), where), own, "".join(labels))

    def meant_options(self) -> str:
        """What to write for settings that are no settings but options of its policy or method; "" where none is."""
        found = [
            f"{part.section}.{part.table}.{each.strip()}"
            for each in self.settings
            for part, thing in ((POLICY, self.policy), (METHOD, self.method))
            if each.partition("=")[0].strip() in settable(part.registry.find(thing))
        ]
        return f"; an option of it is written {', '.join(found)}" if found else ""

    def name(self, seed: int) -> str:
        """What its run with a seed is called, and its folder: with the last words of its settings, which tell it from
        another entry of the same pair."""
        own = "-".join(
            each.partition("=")[0].rpartition(".")[2] + "=" + each.partition("=")[2] for each in self.settings
        )
        plain = re.sub(r"[^\w.=-]+", "_", own)[:_MAX_NAME].strip("_-.")
        return run_name(self.method, f"{self.policy}-{plain}" if plain else self.policy, seed)

    def __str__(self) -> str:
        return ",".join((f"{self.method}:{self.policy}", *self.settings))


def refuse_equal_labels(entries: Sequence[TextEntry]) -> None:
    """ValueError where two entries have the same label."""
    labels = [entry.label for entry in entries if entry.label]
    twice = next((label for place, label in enumerate(labels) if label in labels[:place]), None)
    if twice is not None:
        raise ValueError(f"two entries are called '{twice}'; give one of them another label")


def _unquoted(text: str) -> str:
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _is_label(text: str) -> bool:
    return text.partition("=")[0].strip() == "label"


_BETWEEN_SETTINGS = re.compile(r"\s*,\s*(?=[A-Za-z_][\w.-]*\s*=)")  # a comma in a list, as in [4,6], is none of these
_NOT_OF_AN_ENTRY = {
    "seed": "and all entries are run with the same seeds; give --seeds",
    "learning.method": "which it has before the comma: METHOD:POLICY",
    "scheduling.policy": "which it has before the comma: METHOD:POLICY",
    "plugins": "which are of all entries; give --plugin",
}
_MAX_NAME = 60


def of_entries(whole: Config, entries: Sequence[TextEntry], texts: Sequence[str] = (), where: str = "") -> list[Config]:
    """The settings of each entry of a comparison, those of its own on top; `texts` are options, `name=value`.
    ValueError where two are alike, or one cannot be: then it says which, behind `where`."""
    refuse_twins([(entry.name(whole.seed), str(entry)) for entry in entries], "name it once")
    refuse_equal_labels(entries)
    shared = of_pairs(whole, [(entry.method, entry.policy) for entry in entries], texts)
    configs = [_with_own(one, entry, where) for one, entry in zip(shared, entries, strict=True)]
    refuse_equals([(one, str(entry)) for one, entry in zip(configs, entries, strict=True)])
    return configs


def _with_own(shared: Config, entry: TextEntry, where: str) -> Config:
    try:
        return override(shared, entry.settings)
    except ValueError as error:
        raise ValueError(f"{where}{entry}: {str(error).removeprefix('--set ')}{entry.meant_options()}") from None


def refuse_twins(named: Sequence[tuple[str, str]], remedy: str) -> None:
    """ValueError where runs of two entries would have one name; `named` are the name of each and what users call it.

    Large and small letters are the same here, as they are in the folders of some systems.
    """
    names = [name.lower() for name, _ in named]
    for place, (_, called) in enumerate(named):
        if names[place] in names[:place]:
            raise ValueError(f"two entries are called '{called}'; each is run once, so {remedy}")


def refuse_equals(named: Sequence[tuple[Config, str]]) -> None:
    """ValueError where two entries have the very same settings; `named` are those of each and what users call it."""
    for place, (config, called) in enumerate(named):
        for other, earlier in named[:place]:
            if config == other:
                raise ValueError(
                    f"the entries '{earlier}' and '{called}' have the same settings; leave one of them out"
                )


def with_pair(whole: Config, method: str, policy: str) -> Config:
    """The settings with that method and policy, and no options of either."""
    return METHOD.set(POLICY.set(whole, policy, NO_OPTIONS), method, NO_OPTIONS)


def policies_in_vain(configs: Sequence[Config]) -> str | None:
    """What to tell where policies are compared that nobody asks, so that their runs are alike; None: all are asked."""
    unasked = dict.fromkeys(
        one.scheduling.policy for one in configs if one.uplink.air == OTA and one.uplink.air_senders == BEST
    )
    if len(unasked) < 2:
        return None
    return (
        f'uplink.air_senders is "{BEST}": the best senders are chosen in the place of a policy, so that runs that '
        f'differ in their policy alone ({", ".join(unasked)}) are alike; set it to "policy" to compare policies'
    )


def of_pairs(whole: Config, pairs: Sequence[tuple[str, str]], texts: Sequence[str] = ()) -> list[Config]:
    """The settings of each pair of a comparison; `texts` are options, `name=value`.

    A policy or method gets those of the options that it has; ValueError for an option that none of them has. All
    policies get `max_devices`, which every round can be given.
    """
    named = {METHOD: [method for method, _ in pairs], POLICY: [policy for _, policy in pairs]}
    own = dealt(whole, named[METHOD], named[POLICY], texts)
    for part in PARTS:
        if part in named:  # each pair has its own
            continue
        name = part.name(whole)
        whole = part.set(whole, name, _of_each(part, [name], whole, own[part])[name])
    options = {part: _of_each(part, names, whole, own[part]) for part, names in named.items()}
    return [
        METHOD.set(POLICY.set(whole, policy, options[POLICY][policy]), method, options[METHOD][method])
        for method, policy in pairs
    ]


def _of_each(part: Part, names: Sequence[str], whole: Config, texts: Mapping[str, str]) -> dict[str, Options]:
    return of_each(part.registry, names, part.options(whole), texts, f"{part.section}.{part.table}")
