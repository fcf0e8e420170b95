"""One setting: its default, what it means and what it may be, declared in one line; the checks that come of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar

from flare.config.options import Options, is_text
from flare.units import parse, quantity_of

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a setting may be, beside its type."""

    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    also: tuple[str, ...] = ()  # words that may stand for a number

    def hold(self, value: Any) -> bool:
        """Whether a value of the right type is allowed; of a list, whether each of its values is."""
        if isinstance(value, tuple):
            return all(self.hold(each) for each in value)
        if isinstance(value, str) and value in self.also:
            return True
        return (
            (not self.choices or value in self.choices)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def words(self) -> list[str]:
        """The limits on a number, in words."""
        limits = [("at least", self.at_least), ("greater than", self.above), ("at most", self.at_most)]
        return [f"{words} {limit:.15g}" for words, limit in limits if limit is not None]


def setting(
    default: T,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    also: tuple[str, ...] = (),
) -> T:
    """A field with its meaning in one line and its limits; its type is the type of the default, or one of `also`.

    A default of type `Options` makes it a table of the file: `[section.name]` with keys that the section does not know.
    """
    return field(default=default, metadata={"doc": doc, "limits": Limits(choices, at_least, above, at_most, also)})


def check(config: Any, section: str) -> None:
    """Bring every setting of a dataclass to the type of its default (a whole number may stand for a number, a text such
    as "400ms" for a number with a unit in its name, a list for a tuple, a table for `Options`); ValueError that names
    the setting and what it may be."""
    for each in fields(config):
        if "limits" not in each.metadata:
            continue
        given, name = getattr(config, each.name), dotted(section, each.name)
        limits: Limits = each.metadata["limits"]
        if isinstance(each.default, Options):
            value: Any = _options(given, name)
        elif isinstance(given, str) and given in limits.also:
            value = given
        else:
            value = _converted(_without_unit(given, name, each), each.default)
        if value is None or not limits.hold(value):
            raise ValueError(f"{name} is {shown(given)}; it must be {_allowed(each.default, limits)}")
        object.__setattr__(config, each.name, value)


def dotted(section: str, key: str) -> str:
    """The name of a setting with its section, where it has one."""
    return f"{section}.{key}" if section else key


def quoted(words: Iterable[str]) -> str:
    """Words as TOML writes them, with commas."""
    return ", ".join(f'"{word}"' for word in words)


def shown(value: Any) -> str:
    """A value in an error message, cut where it is long."""
    if isinstance(value, str):
        return f'the text "{_cut(value)}"'
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, bool):
        return str(value).lower()
    return _cut(str(value))


def _cut(text: str, max_length: int = 200) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}..."


def quantity(each: Field[Any]) -> str | None:
    """What a setting measures, by the unit in its name, as `units.parse` calls it; None where it is no such number."""
    return quantity_of(each.name) if isinstance(each.default, float) else None


def _without_unit(given: Any, name: str, each: Field[Any]) -> Any:
    """The number that a text such as "400ms" means in the unit of the setting's name; anything else as it is."""
    measured = quantity(each)
    if measured is None or not isinstance(given, str):
        return given
    try:
        return parse(given, measured)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _options(given: Any, name: str) -> Options:
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} is {shown(given)}; it must be a table: write [{name}], its keys below")
    try:
        return Options(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _converted(value: Any, default: Any) -> Any:
    """The value in the type of the default, or None where it is of another type."""
    if isinstance(default, tuple):
        numbers = [_converted(each, 0) for each in value] if isinstance(value, list | tuple) else [None]
        return None if None in numbers else tuple(numbers)
    if isinstance(default, bool):
        return value if isinstance(value, bool) else None
    if isinstance(default, str):
        return value if isinstance(value, str) and is_text(value) else None
    if isinstance(value, bool) or not isinstance(value, Integral if isinstance(default, int) else Real):
        return None
    try:
        number = type(default)(value)
    except OverflowError:  # a whole number beyond any float
        return None
    return number if isinstance(number, int) or math.isfinite(number) else None


def _allowed(default: Any, limits: Limits) -> str:
    if limits.choices:
        return "one of " + quoted(limits.choices)
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, str):
        return "text in quotes"
    if isinstance(default, tuple):
        return "a list of whole numbers, each " + " and ".join(limits.words())
    allowed = ", ".join(["a whole number" if isinstance(default, int) else "a finite number", *limits.words()])
    return allowed + (f", or one of {quoted(limits.also)}" if limits.also else "")
