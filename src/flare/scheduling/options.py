"""The options of a policy: which there are, what they may be, and how they are read from `name=value`."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

RESERVED = ("problem", "policy", "rng", "memory", "history")
"""What `solve` itself hands to policies or is told by its caller: no option can have these names."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Option:
    """An option: its name, its default value, and the types that it may have; none are given where any will do."""

    name: str
    default: Any
    kinds: tuple[type, ...]

    def accepts(self, value: Any) -> bool:
        """Whether a value is of the option's type. A whole number is a number; true and false are no numbers."""
        if not self.kinds or (value is None and self.default is None):
            return True
        if isinstance(value, bool | np.bool_):
            return bool in self.kinds
        if isinstance(value, int | np.integer):
            return int in self.kinds or float in self.kinds
        if isinstance(value, float | np.floating):
            return float in self.kinds
        return isinstance(value, str) and str in self.kinds

    def read(self, text: str) -> Any:
        """The value that a text means, as the option's type reads it; the text itself where it cannot be read so."""
        if self.default is None and text.lower() == "none":
            return None
        if (bool in self.kinds or not self.kinds) and text.lower() in _TRUTH:
            return _TRUTH[text.lower()]
        for kind in (int, float):
            if not self.kinds or kind in self.kinds:
                try:
                    return kind(text)
                except ValueError:
                    continue
        return text

    def in_words(self) -> str:
        """What a value must be."""
        words = [_WORDS[kind] for kind in self.kinds] + (["none"] if self.default is None else [])
        return " or ".join(words)


MAX_DEVICES = Option("max_devices", None, (int,))
"""How many devices may send at most: a setting of `solve`, for every policy that gives utilities."""


def options_of(policy: str, function: Callable[..., Any]) -> dict[str, Option]:
    """The options that a policy's function takes: every parameter after the first that `solve` does not fill itself."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise ValueError(f"policy '{policy}': its function must take the problem as its first argument")
    options = {}
    for one in parameters[1:]:
        if one.name in ("problem", "policy"):
            raise ValueError(f"policy '{policy}': no option can have the name '{one.name}'; choose another")
        if one.name in RESERVED:
            continue
        if one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ValueError(f"policy '{policy}': name its options; '{one}' would hide which there are")
        if one.default is inspect.Parameter.empty:
            raise ValueError(f"policy '{policy}': its option '{one.name}' has no default value; give it one")
        options[one.name] = Option(one.name, one.default, _kinds(function, one))
    return options


def _kinds(function: Callable[..., Any], parameter: inspect.Parameter) -> tuple[type, ...]:
    """The types an option may have: its default's, or, where that is None, those of its annotation."""
    if parameter.default is not None:
        kind = type(parameter.default)
        return (kind,) if kind in _WORDS else ()
    try:
        hint = typing.get_type_hints(function).get(parameter.name)
    except Exception:  # an annotation may name anything, also what cannot be found from here
        return ()
    named = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    return tuple(kind for kind in _WORDS if kind in named)


def check_options(policy: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> None:
    """ValueError where a given option is none of the policy's, or is not of its type."""
    for name, value in given.items():
        known = ", ".join(options) or "none"
        if name in RESERVED:
            raise ValueError(
                f"{name!r:.80} is no option of policy '{policy}': it is handed to policies by the round itself "
                f"(its options: {known})"
            )
        if name not in options:
            raise ValueError(f"policy '{policy}' has no option {name!r:.80} (its options: {known})")
        if not options[name].accepts(value):
            raise ValueError(
                f"option '{name}' of policy '{policy}' is {value!r:.80}; it must be {options[name].in_words()}"
            )


def split_options(given: Iterable[str]) -> dict[str, str]:
    """`name=value` texts as a dict of texts; ValueError where one is not of that form, or a name is given twice."""
    texts: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or not value:
            raise ValueError(f"--option: {text!r:.80} is not of the form name=value, such as num_selected=5")
        if name in texts:
            raise ValueError(f"--option: {name!r:.80} is given twice; give it once")
        texts[name] = value
    return texts
