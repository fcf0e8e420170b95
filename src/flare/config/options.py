"""Options of a part that the settings do not know: a policy's, say. A name and a value each, checked as such only.

Whether a policy has an option of that name, and what it may be, the policy knows.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

Value = bool | int | float | str | tuple["bool | int | float | str", ...]

MAX_OPTIONS = 100
MAX_NAME = 64
MAX_TEXT = 1000
MAX_LIST = 10_000
_MAX_WHOLE = 2**63 - 1  # what a TOML file can hold
_KINDS = "true or false, a finite number, text, or a list of these"


class Options(Mapping[str, Value]):
    """Values by name that never change: `Options(num_selected=3)` or `Options({"num_selected": 3})`.

    Two are equal where they say the same, in whatever order; they can be hashed, pickled and written to a file. A list
    becomes a tuple, a number of numpy's a plain one. ValueError names the option that cannot be one, and why.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        given = {**(values or {}), **named}
        if len(given) > MAX_OPTIONS:
            raise ValueError(f"there are {len(given)} options; give at most {MAX_OPTIONS}")
        checked = {_name(name): _value(name, value) for name, value in given.items()}
        self._values: dict[str, Value] = dict(sorted(checked.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, Options) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Options({self})"

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.items())

    def only(self, names: Iterable[str]) -> Options:
        """Those of the options that have one of these names."""
        wanted = set(names)
        return Options({name: value for name, value in self.items() if name in wanted})


NO_OPTIONS = Options()


def is_text(value: str) -> bool:
    """Whether a text can be written to a file: a name in no known encoding, from the command line, cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(name: Any) -> str:
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name):
        raise ValueError(f"{name!r:.80} is no name of an option; write letters, digits and _, such as num_selected")
    if len(name) > MAX_NAME:
        raise ValueError(f"the name of an option has {len(name)} letters; give at most {MAX_NAME}")
    return name


def _value(name: str, value: Any) -> Value:
    if not isinstance(value, list | tuple):
        return _single(name, value)
    if len(value) > MAX_LIST:
        raise ValueError(f"option {name} is a list of {len(value)} values; give at most {MAX_LIST}")
    return tuple(_single(name, each) for each in value)


def _single(name: str, value: Any) -> bool | int | float | str:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > MAX_TEXT or not is_text(value):
            raise ValueError(f"option {name} is a text of {len(value)} characters; give at most {MAX_TEXT}, in UTF-8")
        return value
    if isinstance(value, Integral) and abs(int(value)) <= _MAX_WHOLE:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value):
        return float(value)
    if isinstance(value, Integral):
        least, most = -_MAX_WHOLE, _MAX_WHOLE
        raise ValueError(f"option {name} is a whole number beyond what can be kept; give one from {least} to {most}")
    raise ValueError(f"option {name} is {value!r:.80}; it must be {_KINDS}")
