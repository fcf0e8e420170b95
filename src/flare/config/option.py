"""One option, of whatever part: its name, its default, its type, what it means and what it may be.

Settings of the file (`flare.config.setting`) and the options of policies, methods, models and data sets
(`flare.config.declared`) are checked, read from text and put into words here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final

import numpy as np

from flare.config.options import is_text
from flare.units import example_of, parse

REFUSED: Final = object()
"""What a value that an option cannot have is converted to."""
KINDS = (bool, int, float, str, tuple)
"""The types that are known; an option of any other takes what it is given."""
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Limits:
    """What a setting or an option may be, beside its type."""

    choices: tuple[str, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    also: tuple[str, ...] = ()  # words that may stand for a number
    finite: bool = True  # whether a number must be
    or_quantity: str = ""  # a text with a unit of this quantity (`units.parse`), above 0, may stand for a number

    def hold(self, value: Any) -> bool:
        """Whether a value of the right type is allowed; of a list, whether each of its values is."""
        if isinstance(value, tuple):
            return all(self.hold(each) for each in value)
        if isinstance(value, str) and value in self.also:
            return True
        if isinstance(value, float) and self.finite and not math.isfinite(value):
            return False
        return (
            (not self.choices or value in self.choices)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    def words(self) -> list[str]:
        """The limits on a number, in words."""
        limits = [("at least", self.at_least), ("greater than", self.above), ("at most", self.at_most)]
        return [
            f"{words} {limit if isinstance(limit, int) else format(limit, '.15g')}"
            for words, limit in limits
            if limit is not None
        ]


MAX_BITS = 1024
"""Of a whole number: more than any float has, and few enough to be written as digits."""
NO_LIMITS = Limits(finite=False)


@dataclass(frozen=True)
class Option:
    """An option: `kinds` are the types that it may have (none: any will do), `of` is the type of a list's values."""

    name: str
    default: Any
    kinds: tuple[type, ...]
    doc: str = ""
    limits: Limits = NO_LIMITS
    of: type | None = None

    def converted(self, value: Any) -> Any:
        """The value in the option's type, or `REFUSED`. A whole number is a number, a list a tuple; true and false are
        no numbers; None is a value where it is the default."""
        if value is None:
            return None if self.default is None else REFUSED
        if not self.kinds or (isinstance(value, str) and value in self.limits.also):
            return value
        if self.limits.or_quantity and isinstance(value, str):
            return _with_unit(value, self.limits.or_quantity)
        for kind in self.kinds:
            found = self._listed(value) if kind is tuple else _as(kind, value)
            if found is not REFUSED:
                return found if self.limits.hold(found) else REFUSED
        return REFUSED

    def _listed(self, value: Any) -> Any:
        if self.of is str and isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple):
            return REFUSED
        found = [each if self.of is None else _as(self.of, each) for each in value]
        return REFUSED if any(each is REFUSED for each in found) else tuple(found)

    def read(self, text: str) -> Any:
        """The value that a text means, as the option's type reads it; the text itself where it cannot be read so."""
        if self.default is None and text.lower() == "none":
            return None
        if (bool in self.kinds or not self.kinds) and text.lower() in _TRUTH:
            return _TRUTH[text.lower()]
        if tuple in self.kinds or (not self.kinds and text.startswith("[")):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                return text
        for kind in (int, float):
            if not self.kinds or kind in self.kinds:
                try:
                    return kind(text)
                except ValueError:
                    continue
        return text

    def in_words(self) -> str:
        """What a value must be."""
        if self.limits.choices:
            return "one of " + quoted(self.limits.choices)
        if not self.kinds:
            return "any value" if self.default is None else "any value but none"
        number = "a finite number" if self.limits.finite else "a number"
        words = {bool: "true or false", int: "a whole number", float: number, str: "text in quotes"}
        if tuple in self.kinds:
            values = {int: "whole numbers", float: "numbers", str: "texts in quotes"}
            limits = " and ".join(self.limits.words())
            return f"a list of {values.get(self.of or object, 'values')}" + (f", each {limits}" if limits else "")
        one = " or ".join([*(words[kind] for kind in self.kinds), *(["none"] if self.default is None else [])])
        more = f", or one of {quoted(self.limits.also)}" if self.limits.also else ""
        if self.limits.or_quantity:
            more += f', or a {self.limits.or_quantity} with its unit such as "{example_of(self.limits.or_quantity)}"'
        return ", ".join([one, *self.limits.words()]) + more


def option_of(
    name: str,
    default: Any,
    *,
    doc: str = "",
    limits: Limits = NO_LIMITS,
    of: type | None = None,
    kind: type | None = None,
) -> Option:
    """The option that a default value declares: its type is that of the default, or `kind`."""
    found = kind or type(default)
    kinds = tuple(each for each in KINDS if found is each or (each is tuple and found is list))
    return Option(name, default, kinds, doc, limits, of)


def quoted(words: Iterable[str]) -> str:
    """Words as TOML writes them, with commas."""
    return ", ".join(f'"{word}"' for word in words)


def _with_unit(text: str, quantity: str) -> Any:
    """The text of a number with its unit, or `REFUSED`; a bare number is none, for it would mean something else."""
    try:
        float(text)
    except ValueError:
        try:
            return text if parse(text, quantity) > 0.0 else REFUSED
        except ValueError:
            return REFUSED
    return REFUSED


def _as(kind: type, value: Any) -> Any:
    """The value as one of a type, or `REFUSED`."""
    if isinstance(value, bool | np.bool_):
        return bool(value) if kind is bool else REFUSED
    if kind is str:
        return value if isinstance(value, str) and is_text(value) else REFUSED
    if kind is int:
        return int(value) if isinstance(value, Integral) and int(value).bit_length() <= MAX_BITS else REFUSED
    if kind is float and isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:  # a whole number beyond any float
            return REFUSED
    return REFUSED
