"""The options that a user's function or class declares by its parameters: which there are, and what they may be.

A policy, whose option is `patience`:

    def spread(problem, *, history, patience=5.0): ...

A data set, whose option `alpha` has a meaning and limits:

    def synthetic(*, alpha: Annotated[float, "how much they differ", Limits(at_least=0)] = 1.0): ...

A method, whose options are its fields:

    @dataclass(frozen=True)
    class Mine(PlainMethod):
        mu: float = setting(0.1, "weight of the pull", at_least=0.0)
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

from flare.config.option import KINDS, NO_LIMITS, REFUSED, Limits, Option, option_of
from flare.config.options import Options
from flare.config.setting import declared
from flare.registry import Named, Registry

_HIDING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Interface:
    """How the functions of a kind are called: `first` by position, `handed` by name where they ask for it.

    `reserved` names belong to the caller: no option can have them.
    """

    kind: str
    first: tuple[str, ...] = ()
    handed: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()

    def options_of(self, name: str, code: Callable[..., Any]) -> dict[str, Option]:
        """The options of a function or class: every parameter that its caller does not fill."""
        parameters = list(inspect.signature(code).parameters.values())
        by_position = [one for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        if len([one for one in by_position if one.kind is not inspect.Parameter.VAR_KEYWORD]) < len(self.first):
            ordinal = "argument" if len(self.first) == 1 else "arguments"
            raise ValueError(
                f"{self.kind} '{name}': its function must take the {' and the '.join(self.first)} as its first "
                f"{ordinal}"
            )
        options = {}
        for one in parameters[len(self.first) :]:
            if one.name in self.handed:
                continue
            self._refuse(name, one)
            options[one.name] = _option(code, one)
        return options

    def _refuse(self, name: str, one: inspect.Parameter) -> None:
        if one.name in self.reserved:
            raise ValueError(f"{self.kind} '{name}': no option can have the name '{one.name}'; choose another")
        if one.kind in _HIDING:
            raise ValueError(f"{self.kind} '{name}': name its options; '{one}' would hide which there are")
        if one.default is inspect.Parameter.empty:
            raise ValueError(f"{self.kind} '{name}': its option '{one.name}' has no default value; give it one")

    def takes(self, code: Callable[..., Any]) -> frozenset[str]:
        """Those of the `handed` names that a function asks for."""
        return frozenset(self.handed) & set(inspect.signature(code).parameters)

    def checked(self, name: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options in their types; ValueError for one that there is not, or that is not of its type."""
        known = ", ".join(options) or "none"
        values = {}
        for option, value in given.items():
            if option in (*self.handed, *self.reserved):
                raise ValueError(
                    f"{option!r:.80} is no option of {self.kind} '{name}': flare itself hands it over "
                    f"(its options: {known})"
                )
            if option not in options:
                raise ValueError(f"{self.kind} '{name}' has no option {option!r:.80} (its options: {known})")
            values[option] = options[option].converted(value)
            if values[option] is REFUSED:
                raise ValueError(
                    f"option '{option}' of {self.kind} '{name}' is {value!r:.80}; it must be "
                    f"{options[option].in_words()}"
                )
        return values


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


@dataclass(frozen=True, eq=False)
class Kind:
    """What is registered by name: a line about it, and the options that it takes. Each kind of things derives its own,
    with its `interface`."""

    interface: ClassVar[Interface]
    name: str
    summary: str
    options: dict[str, Option]

    def check_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options in their types; ValueError for one that there is not, or that cannot be."""
        return self.interface.checked(self.name, self.options, given)


def settable(thing: Named) -> Mapping[str, Option]:
    """The options that can be set with a thing: its own, and those that whoever asks it has for all of its kind."""
    options: Mapping[str, Option] = getattr(thing, "settable", thing.options)
    return options


def read(thing: Named, texts: Mapping[str, str]) -> dict[str, Any]:
    """The values of options that texts mean, checked."""
    known, unknown = settable(thing), Option("", "", ())  # what a text looks like, for the error
    values = {name: known.get(name, unknown).read(text) for name, text in texts.items()}
    thing.check_options(values)
    return values


def of_each(
    registry: Registry[Any],
    names: Sequence[str],
    given: Options,
    texts: Mapping[str, str] | None = None,
    setting: str = "",
) -> dict[str, Options]:
    """The options of each of several policies, or methods, that are compared: those of the given that it has, changed
    by texts. ValueError for an option that none of them has; `setting` is where the given are written, for it."""
    known = {name: settable(registry.find(name)) for name in names}
    said = texts or {}
    unknown = next((one for one in (*given, *said) if not any(one in each for each in known.values())), None)
    if unknown is not None:
        remedy = f"; it is {setting}.{unknown:.80} of your settings (the file, or --set): take it out there"
        raise ValueError(
            f"none of the {registry.plural} has an option {unknown!r:.80} (their options: {listed(registry, known)})"
            + (remedy if setting and unknown not in said else "")
        )
    return {
        name: changed(
            given.only(options), read(registry.find(name), {one: text for one, text in said.items() if one in options})
        )
        for name, options in known.items()
    }


def listed(registry: Registry[Any], names: Iterable[str]) -> str:
    """Names, each with its options."""
    return "; ".join(f"{name}: {', '.join(registry.find(name).options) or 'none'}" for name in names)


def changed(options: Options, values: Mapping[str, Any]) -> Options:
    """Options with some of them changed. One that shall be none is left out: none is what it is then."""
    return Options({name: value for name, value in {**options, **values}.items() if value is not None})


def _option(code: Callable[..., Any], parameter: inspect.Parameter) -> Option:
    """The option that a parameter declares. Its type is that of its default, or, where that is None, of its annotation
    (a whole default of a number is a number); in an `Annotated` one, a text is its meaning, `Limits` are its limits."""
    if is_dataclass(code):
        for each in fields(code):
            if each.name == parameter.name and "limits" in each.metadata:
                return declared(each)
    hint, notes = _hint(code, parameter.name)
    doc = next((note for note in notes if isinstance(note, str)), "")
    limits = next((note for note in notes if isinstance(note, Limits)), NO_LIMITS)
    a_number = float if hint is float and type(parameter.default) is int else None  # `share: float = 1`
    option = option_of(parameter.name, parameter.default, doc=doc, limits=limits, kind=a_number)
    if parameter.default is not None:
        return option
    named = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else (hint,)
    return replace(option, kinds=tuple(kind for kind in KINDS if kind in named))


def _hint(code: Callable[..., Any], name: str) -> tuple[Any, tuple[Any, ...]]:
    """The type that a parameter is annotated with, and what stands beside it in `Annotated`."""
    source = inspect.getattr_static(code, "__init__") if isinstance(code, type) and not is_dataclass(code) else code
    try:
        hint: Any = typing.get_type_hints(source, include_extras=True).get(name)
    except Exception:  # an annotation may name anything, also what cannot be found from here
        return None, ()
    if typing.get_origin(hint) is typing.Annotated:
        return hint.__origin__, hint.__metadata__
    return hint, ()
