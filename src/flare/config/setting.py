"""One setting: its default, what it means and what it may be, declared in one line; the checks that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field, fields
from functools import cache
from typing import Any, TypeVar

from flare.config.option import MAX_BITS, REFUSED, Limits, Option, option_of
from flare.config.options import Options
from flare.units import parse, quantity_of

T = TypeVar("T")


def setting(
    default: T,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    also: tuple[str, ...] = (),
    of: type | None = None,
    kind: type | None = None,
    or_quantity: str = "",
) -> T:
    """A field of a dataclass with its meaning in one line and its limits; its type is the type of the default (or
    `kind`, where the default is itself one of `also`), or one of `also`, or a text with a unit of `or_quantity`; `of`
    is the type of the values of a list.

    A default of type `Options` makes it a table of the file: `[section.name]` with keys that the section does not know.
    """
    limits = Limits(choices, at_least, above, at_most, also, or_quantity=or_quantity)
    return field(default=default, metadata={"doc": doc, "limits": limits, "of": of, "kind": kind})


def declared(each: Field[Any]) -> Option:
    """The option that a field of a dataclass declares by `setting`, or by a plain default."""
    more = {name: each.metadata[name] for name in ("doc", "limits", "of", "kind") if name in each.metadata}
    return option_of(each.name, each.default, **more)


def check(config: Any, section: str) -> None:
    """Bring every setting of a dataclass to the type of its default (a whole number may stand for a number, a text such
    as "400ms" for a number with a unit in its name, a list for a tuple, a table for `Options`); ValueError that names
    the setting and what it may be."""
    for option, measured in _checked(type(config)):  # type: ignore[arg-type]  # a class is hashable
        given = getattr(config, option.name)
        if given is option.default:  # which is of its own type and allowed: there is a test of that
            continue
        name = dotted(section, option.name)
        if isinstance(option.default, Options):
            value: Any = _options(given, name)
        else:
            value = option.converted(_without_unit(given, name, measured))
            if value is REFUSED:
                raise ValueError(f"{name} is {shown(given)}; it must be {option.in_words()}")
        object.__setattr__(config, option.name, value)


@cache
def _checked(section: type) -> list[tuple[Option, str | None]]:
    """The settings of a dataclass that have limits, each with what it measures: found once for all configurations."""
    return [(declared(each), quantity(each)) for each in fields(section) if "limits" in each.metadata]


def dotted(section: str, key: str) -> str:
    """The name of a setting with its section, where it has one."""
    return f"{section}.{key}" if section else key


def shown(value: Any) -> str:
    """A value in an error message, cut where it is long."""
    if isinstance(value, str):
        return f'the text "{_cut(value)}"'
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return "a number of too many digits"
    try:
        return _cut(str(value))
    except ValueError:  # the system writes no list with a number of thousands of digits
        return "a list with a number of too many digits"


def _cut(text: str, max_length: int = 200) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}..."


def quantity(each: Field[Any]) -> str | None:
    """What a setting measures, by the unit in its name, as `units.parse` calls it; None where it is no such number."""
    return quantity_of(each.name) if isinstance(each.default, float) else None


def _without_unit(given: Any, name: str, measured: str | None) -> Any:
    """The number that a text such as "400ms" means for a setting that measures this; anything else as it is."""
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
