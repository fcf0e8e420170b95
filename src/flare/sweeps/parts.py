"""Options of the parts of a run, such as its policy and its method: whose `-o name=value` is, and who gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flare.config import Config, Options
from flare.config.declared import changed, listed, read, settable, split_options
from flare.config.option import Option
from flare.config.toml import shown_default
from flare.data.sources import SOURCES
from flare.learning.methods import METHODS
from flare.learning.models import MODELS
from flare.registry import Registry
from flare.scheduling import POLICIES
from flare.text import one_line
from flare.uplink import CODECS
from flare.uplink.air import AIR_SCHEMES


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a run that has options: the registry that it is from, and its settings, such as learning.method and
    learning.options."""

    registry: Registry[Any]
    section: str
    key: str
    table: str

    def name(self, whole: Config) -> str:
        """Which one a configuration names."""
        return str(getattr(getattr(whole, self.section), self.key))

    def options(self, whole: Config) -> Options:
        """The options that a configuration gives it."""
        given: Options = getattr(getattr(whole, self.section), self.table)
        return given

    def set(self, whole: Config, name: str, options: Options) -> Config:
        """The configuration with another one, with these options."""
        section = replace(getattr(whole, self.section), **{self.key: name, self.table: options})
        return replace(whole, **{self.section: section})

    def check(self, whole: Config) -> None:
        """ValueError where there is none of that name, or it does not have an option."""
        self.registry.find(self.name(whole)).check_options(self.options(whole))


POLICY = Part(POLICIES, "scheduling", "policy", "options")
METHOD = Part(METHODS, "learning", "method", "options")
MODEL = Part(MODELS, "learning", "model", "model_options")
DATA = Part(SOURCES, "data", "name", "options")
CODEC = Part(CODECS, "uplink", "codec", "options")
AIR = Part(AIR_SCHEMES, "uplink", "air_scheme", "air_options")
PARTS = (POLICY, METHOD, MODEL, DATA, CODEC, AIR)
_BROADCAST = Part(CODECS, "wireless", "downlink_codec", "downlink_options")  # none of those that `-o` reaches


def check_parts(whole: Config) -> None:
    """ValueError where a configuration names a part that there is not, or gives one an option that it does not have."""
    for part in PARTS:
        part.check(whole)


def with_options(whole: Config, texts: Sequence[str]) -> Config:
    """The settings with options of its parts changed by texts of the form `name=value`."""
    named = {part: [part.name(whole)] for part in PARTS}
    for part, own in _dealt(whole, named, texts).items():
        name = part.name(whole)
        whole = part.set(whole, name, changed(part.options(whole), read(part.registry.find(name), own)))
    return whole


def dealt(whole: Config, methods: Iterable[str], policies: Iterable[str], texts: Sequence[str]) -> dict[Part, Any]:
    """The texts `name=value` of a comparison as dicts, by the part that has an option of that name."""
    named = {part: [part.name(whole)] for part in PARTS}
    named |= {METHOD: list(dict.fromkeys(methods)), POLICY: list(dict.fromkeys(policies))}
    return _dealt(whole, named, texts)


def _dealt(whole: Config, named: Mapping[Part, Sequence[str]], texts: Sequence[str]) -> dict[Part, dict[str, str]]:
    """Texts by the part that they are for; ValueError where none has such an option, or several parts have."""
    found: dict[Part, dict[str, str]] = {part: {} for part in named}
    for option, text in split_options(texts).items():
        having = [
            part for part, names in named.items() if any(option in settable(part.registry.find(name)) for name in names)
        ]
        if len(having) > 1:
            kinds = " and ".join(part.registry.kind for part in having)
            written = " or ".join(f"--set {_written(part, option, text)}" for part in having)
            raise ValueError(f"--option: {kinds} both have an option {option!r:.80}; write {written}")
        if not having:
            _refuse(whole, named, option, text)
        found[having[0]][option] = text
    return found


def _refuse(whole: Config, named: Mapping[Part, Sequence[str]], option: str, text: str) -> None:
    """ValueError for an option that no part has; where the codec of the broadcast has it, with how to set it there."""
    (policy, policies), *others = named.items()
    rest = ", ".join(
        f"{part.registry.kind} '{name}' ({', '.join(part.registry.find(name).options) or 'none'})"
        for part, names in others
        for name in names
    )
    words = f"none of the policies has an option {option!r:.80} (their options: {listed(policy.registry, policies)})"
    if len(policies) == 1:
        try:
            policy.registry.find(policies[0]).check_options({option: text})
        except ValueError as error:
            words = str(error)
    codec = _BROADCAST.name(whole)
    if option in settable(_BROADCAST.registry.find(codec)):
        rest += f"; the codec of the broadcast, '{codec}', has: write --set {_written(_BROADCAST, option, text)}"
    raise ValueError(f"{words}; nor has {rest}")


def _written(part: Part, option: str, text: str) -> str:
    """An option as a setting."""
    return f"{part.section}.{part.table}.{option}={text}"


def notes() -> dict[str, list[str]]:
    """A line for every option of everything that is registered, by the table of the configuration that it goes into."""
    lines: dict[str, list[str]] = {}
    for part in PARTS:
        own = lines.setdefault(f"{part.section}.{part.table}", [])
        for name, thing in part.registry.items():
            own += [one_line(f"{name}: {described(option)}") for option in thing.options.values()]
    return lines


def described(option: Option) -> str:
    """An option in a line: its default, what it means and what it may be."""
    words = "; ".join([*([option.doc] if option.doc else []), option.in_words()])
    return f"{option.name} = {shown_default(option)} ({words})"
