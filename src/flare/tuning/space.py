"""Which settings are searched, and where: a range or a choice each, and the settings of a run that come of values.

Texts, as `--search` takes them:

    learning.local_lr=0.01..0.3:log     a range, on a logarithmic or a linear scale
    wireless.deadline_s=200ms..1s       with units
    uplink.bits=2..8                    whole numbers, where the setting or the option is one
    learning.method=flare,fedavg        a choice
    scheduling.policy                   as it is by default
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from flare.config import OTA, Config, with_settings
from flare.config.declared import settable
from flare.config.option import REFUSED, Option
from flare.config.toml import split_settings
from flare.learning.tau_bar import TAU_BARS
from flare.rounds.privacy import refuse_unshared
from flare.scheduling import POLICIES
from flare.sweeps import Task
from flare.sweeps.grid import setting_in, value_text
from flare.sweeps.parts import CODEC, PARTS, POLICY, Part, check_parts
from flare.sweeps.task import check_run
from flare.text import did_you_mean

Value = bool | int | float | str
Params = dict[str, Value]
"""Values of searched settings by their names; one that means nothing for the others is not in."""

ALL = "all"
MAX_CHOICES = 100
_NAMES = {f"{part.section}.{part.key}": part for part in PARTS}  # settings that name a part
_TABLES = {f"{part.section}.{part.table}": part for part in PARTS}  # settings that are its options
_CODED = ("bits", "share")  # options of codecs that are settings too
_BY_OBJECTIVE = ("exact", "greedy")  # policies of ours that go by gamma
_LOG_FROM = 10.0  # how many times the lower end the upper one is where the scale is logarithmic if nothing is said
_DIGITS = 4  # of values that are drawn: nobody wants to read more

_METHODS = ("flare", "fedavg", "fedprox", "fednova", "scaffold")
_POLICIES = ("exact", "greedy", "ps", "cp", "dm", "cm")
_CODECS = ("none", "float16", "qsgd", "topk")
_TIMES = {"learning.local_lr": 10.0, "learning.global_lr": 4.0, "scheduling.gamma": 10.0, "wireless.deadline_s": 2.0}
"""Settings that are searched from so many times less than they are at the start to so many times more."""
_USUAL_GAMMA = 10.0  # where the start says "auto", or 0
_BITS = (2, 8)


@final
@dataclass(frozen=True)
class Choice:
    """A setting that has one of several values."""

    name: str
    values: tuple[Value, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is one of them."""
        return value in self.values

    def tidy(self, value: Any) -> Value:
        """A value that was drawn, as it is used."""
        found: Value = value
        return found

    def tried(self) -> tuple[Value, ...]:
        """Values that are checked before anything runs."""
        return self.values

    def words(self) -> str:
        """The values in words."""
        return ", ".join(map(value_text, self.values))


@final
@dataclass(frozen=True)
class Range:
    """A setting that is a number between two ends, both among its values."""

    name: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value is between the ends."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high and (not self.whole or float(value).is_integer())

    def tidy(self, value: Any) -> Value:
        """A value that was drawn, in few digits and within the ends."""
        if self.whole:
            return int(value)
        return min(self.high, max(self.low, float(f"{value:.{_DIGITS}g}")))

    def tried(self) -> tuple[Value, ...]:
        """Values that are checked before anything runs."""
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def words(self) -> str:
        """The range in words."""
        scale = (", whole numbers" if self.whole else "") + (", logarithmic" if self.log else "")
        return f"{value_text(self.tried()[0])} to {value_text(self.tried()[1])}{scale}"


Searched = Choice | Range
Wanted = str | Sequence[Any] | None
"""A range or a choice as users give it: a text, a pair of numbers, a list of values; None: the default."""


@final
@dataclass(frozen=True)
class Space:
    """All that is searched around the settings of the start; what names a part comes first."""

    start: Config
    searched: tuple[Searched, ...]

    def config(self, params: Mapping[str, Value]) -> Config:
        """The settings with these values: the very start, where they are its own. A method, policy or codec gets those
        options of the start that it has."""
        whole = self.start
        if params and params == self.start_params():
            return whole
        for name, part in _NAMES.items():
            if name in params:
                whole = _with_part(whole, part, str(params[name]))
        return with_settings(whole, {name: value for name, value in params.items() if name not in _NAMES})

    def asked(self, params: Mapping[str, Value]) -> list[Searched]:
        """What has a meaning with these values of the settings that name parts, and has no value yet."""
        whole = self.config({name: value for name, value in params.items() if name in _NAMES})
        return [each for each in self.searched if each.name not in params and _has_meaning(each.name, whole)]

    def values_at_start(self) -> dict[str, Any]:
        """The values at the start of what has a meaning there."""
        return {each.name: _now(self.start, each.name) for each in self.asked({})}

    def start_params(self) -> Params | None:
        """The values at the start; None where one is not among those that are searched."""
        values = self.values_at_start()
        return values if all(each.holds(values[each.name]) for each in self.asked({})) else None


def is_part(name: str) -> bool:
    """Whether a setting names a part: its method, policy, codec."""
    return name in _NAMES


def space_of(start: Config, search: Mapping[str, Wanted], left_out: Iterable[str] = ()) -> Space:
    """What is searched: the default around the start, with `search` added or in its place, without what is `left_out`
    ("all": the whole default). The plugins of the start are taken to be executed.

    ValueError for a setting that there is not, for a range or a value that no run can have, and where nothing is left.
    """
    named, without = _refuse_contradictions(start, search, left_out), set(left_out)
    usual = {each.name: each for each in _usual(start)}
    found = {} if ALL in without else {name: each for name, each in usual.items() if name not in without}
    for name, wanted in named.items():
        if wanted is None and name not in usual:
            raise ValueError(
                f"--search {name}: it has no range of its own here; write one, such as {name}=0.1..0.5, or {name}=A,B"
            )
        found[name] = usual[name] if wanted is None else _searched(start, name, wanted)
        if wanted is not None:
            _check_each(start, found[name])
    meant = [each for name, each in found.items() if name in named or _can_matter(start, name, found)]
    kept = [each if named.get(each.name) else _possible(start, each) for each in meant]
    searched = sorted((each for each in kept if each is not None), key=lambda each: not is_part(each.name))
    if not searched:
        raise ValueError("nothing is searched; give one setting at least, such as --search learning.local_lr")
    return Space(start, tuple(searched))


def read_search(texts: Iterable[str]) -> dict[str, Wanted]:
    """The texts of `--search` by the settings that they name; ValueError where one is named twice."""
    found: dict[str, Wanted] = {}
    for text in texts:
        name, equals, wanted = (part.strip() for part in text.partition("="))
        if not name or (equals and not wanted):
            raise ValueError(f"--search: {text!r:.80} is not of the form NAME=LOW..HIGH or NAME=A,B,C")
        if name in found:
            raise ValueError(f"--search: {name} is given twice; give it once")
        found[name] = wanted if equals else None
    return found


def _refuse_contradictions(
    start: Config, search: Mapping[str, Wanted], left_out: Iterable[str]
) -> Mapping[str, Wanted]:
    """ValueError for names that are no settings, and for one that is searched and left out."""
    usual = [each.name for each in _usual(start)]
    for name in left_out:
        if name in search:
            raise ValueError(f"{name} is in --search and in --no-search; give it once")
        if name not in (*usual, ALL):
            raise ValueError(
                f"--no-search {name}: it is not searched{did_you_mean(name, usual)} Searched are {', '.join(usual)}"
            )
    for name in search:
        if name in ("seed", "plugins") or name.startswith(("run.", "data.")):
            raise ValueError(f"--search {name}: it is what trials have in common; search what a network can choose")
    return search


def _usual(start: Config) -> list[Searched]:
    """What is searched where nothing is said."""
    found: list[Searched] = [
        Choice("learning.method", _with(start.learning.method, _METHODS)),
        Choice("scheduling.policy", _with(start.scheduling.policy, _POLICIES)),
    ]
    if start.uplink.air != OTA:  # over the air nothing is coded
        found.append(Choice("uplink.codec", _with(start.uplink.codec, _CODECS)))
    for name, times in _TIMES.items():
        value = setting_in(start, name)
        middle = value if isinstance(value, float) and value > 0.0 else _USUAL_GAMMA
        found.append(Range(name, _rounded(middle / times), _rounded(middle * times), log=True))
    found.append(Choice("learning.options.tau_bar", tuple(TAU_BARS)))
    if start.uplink.air != OTA:
        found.append(Range("uplink.bits", *_BITS, whole=True))
    return found


def _with(name: str, others: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((name, *others)))


def _rounded(value: float) -> float:
    return float(f"{value:.12g}")


def _searched(start: Config, name: str, wanted: Wanted) -> Searched:
    """A range or a choice from what a user gave; ValueError where it is none."""
    if isinstance(wanted, str):
        return _from_text(start, name, wanted)
    if isinstance(wanted, tuple) and len(wanted) == 2 and all(_is_number(each) for each in wanted):
        return _range(start, name, wanted[0], wanted[1], "")
    if isinstance(wanted, Sequence) and wanted:
        return _choice(start, name, list(wanted))
    raise ValueError(f"search of {name}: {wanted!r:.80} is no pair of numbers, no list of values and no text A..B")


def _from_text(start: Config, name: str, text: str) -> Searched:
    if ".." not in text:
        return _choice(start, name, [_value(each) for each in text.split(",")])
    ends, _, scale = text.partition(":")
    low, _, high = ends.partition("..")
    first, last = (_value(each) for each in (low, high))
    return _range(start, name, first, last, scale)


def _value(text: str) -> Any:
    """What a text means, read as `--set` reads it."""
    return split_settings([f"value={text.strip()}"])["value"]


def _choice(start: Config, name: str, values: Sequence[Any]) -> Choice:
    """A choice with its values as the settings hold them."""
    held = [_held(start, name, value) for value in values]
    if len(set(map(str, held))) < len(held):
        raise ValueError(f"--search {name}: a value is given twice; give each once")
    if len(held) > MAX_CHOICES:
        raise ValueError(f"--search {name}: there are {len(held)} values; give at most {MAX_CHOICES}, or a range")
    return Choice(name, tuple(held))


def _range(start: Config, name: str, low: Any, high: Any, scale: str) -> Range:
    ends = [_held(start, name, each) for each in (low, high)]
    words = f"--search {name}: a range is LOW..HIGH, :log or :linear behind it where wanted"
    if not all(map(_is_number, ends)) or not ends[0] < ends[1]:
        raise ValueError(f"{words}; here {low} and {high} are no numbers, or not the lower one first")
    if scale not in ("", "log", "linear") or (scale == "log" and ends[0] <= 0):
        raise ValueError(f"{words}; here the scale is '{scale}', and the lower end must be above 0 on the scale log")
    whole = all(isinstance(each, int) for each in ends)
    log = scale == "log" or (not scale and not whole and ends[0] > 0.0 and ends[1] >= _LOG_FROM * ends[0])
    return Range(name, float(ends[0]), float(ends[1]), log, whole)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _held(start: Config, name: str, value: Any) -> Any:
    """A value as the settings hold it: 0.4 for "400ms"; ValueError where the setting cannot have it."""
    try:
        if name in _NAMES:
            _NAMES[name].registry.find(value)
            return value
        held = setting_in(with_settings(start, {name: value}), name)
    except ValueError as error:
        raise ValueError(f"--search {name}: {error}") from None
    option = _declared(start, name)
    converted = REFUSED if option is None else option.converted(held)
    return held if converted is REFUSED else converted  # what is refused is told with all else that a run cannot have


def _declared(start: Config, name: str) -> Option | None:
    """The option that a setting is, as the start's part declares it or else the first that has it; None: it is none."""
    table, _, option = name.rpartition(".")
    part = _TABLES.get(table)
    for having in () if part is None else (part.name(start), *part.registry):
        if part is not None and option in (known := settable(part.registry.find(having))):
            return known[option]
    return None


def _check_each(start: Config, each: Searched) -> None:
    """ValueError where a run cannot have one of the values, all else being as at the start."""
    for value in each.tried():
        try:
            check_config(_one(start, each.name, value))
        except ValueError as error:
            raise ValueError(f"--search {each.name}={value_text(value)}: {error}") from None


def _possible(start: Config, each: Searched) -> Searched | None:
    """Of a default choice the values that a run can have; None where there is but one, or a range has no meaning."""
    if isinstance(each, Range):
        return each
    values = tuple(value for value in each.values if _is_possible(_one(start, each.name, value)))
    return Choice(each.name, values) if len(values) > 1 else None


def _is_possible(config: Config) -> bool:
    try:
        check_config(config)
    except ValueError:
        return False
    return True


def _one(start: Config, name: str, value: Value) -> Config:
    """The start with one value changed; an option with a part that has it, where the start's does not."""
    whole = start
    if not _has_meaning(name, start):
        part = CODEC if name.startswith("uplink.") else _TABLES.get(name.rpartition(".")[0])
        option = name.rpartition(".")[2]
        for having in () if part is None else part.registry:
            if part is not None and option in settable(part.registry.find(having)):
                whole = _with_part(start, part, having)
                break
    return Space(whole, ()).config({name: value})


def check_config(config: Config) -> None:
    """ValueError where no run can have these settings; a round is tried, and nothing is written."""
    check_parts(config)
    refuse_unshared([config])
    check_run(Task("", config, None))


def _with_part(whole: Config, part: Part, name: str) -> Config:
    """The settings with another part of that name, and those options that it has."""
    known = settable(part.registry.find(name))
    whole = part.set(whole, name, part.options(whole).only(known) if name != part.name(whole) else part.options(whole))
    if part is CODEC:
        lacking = {f"uplink.{each}": "default" for each in _CODED if each not in known}
        whole = with_settings(whole, lacking)
    return whole


def _has_meaning(name: str, whole: Config) -> bool:
    """Whether a setting changes anything with these parts."""
    table, _, option = name.rpartition(".")
    if table in _TABLES:
        part = _TABLES[table]
        return option in settable(part.registry.find(part.name(whole)))
    if table == "uplink" and option in _CODED:
        return option in settable(CODEC.registry.find(CODEC.name(whole)))
    if name == "scheduling.gamma":
        policy = POLICY.name(whole)
        return policy in _BY_OBJECTIVE or not POLICIES.origin(policy).built_in or whole.uplink.bits == "auto"
    return True


def _can_matter(start: Config, name: str, found: Mapping[str, Searched]) -> bool:
    """Whether a setting changes anything with one of the parts that a trial may have."""
    part = _TABLES.get(name.rpartition(".")[0])
    if name.startswith("uplink."):
        part = CODEC
    elif name == "scheduling.gamma":
        part = POLICY
    if part is None or name in _NAMES:
        return True
    searched = found.get(f"{part.section}.{part.key}")
    others = searched.values if isinstance(searched, Choice) else (part.name(start),)
    return any(_has_meaning(name, _with_part(start, part, str(other))) for other in others)


def _now(whole: Config, name: str) -> Any:
    """The value of a setting; of an option that is not given, its default, and None where its part has no such one."""
    table, _, option = name.rpartition(".")
    part = _TABLES.get(table)
    if table == "uplink" and option in _CODED and setting_in(whole, name) == "default":
        part = CODEC
    if part is None:
        return setting_in(whole, name)
    known = settable(part.registry.find(part.name(whole)))
    return part.options(whole).get(option, known[option].default if option in known else None)


__all__ = [
    "Choice", "Params", "Range", "Searched", "Space", "Value", "Wanted", "check_config", "is_part",
    "read_search", "space_of",
]  # fmt: skip
