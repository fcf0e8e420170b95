"""Things by name: policies, methods, models, data sets, and whatever else a user may add by a decorator.

A registry is a mapping from names to the things of one kind. It also knows where each comes from, and that decides
what a second registration of a name means:

    the same file again, or interactive code again    the new one replaces the old one (a cell that is run again)
    another file                                      ValueError that names both
    a name of flare's own                             ValueError
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flare.text import did_you_mean, one_line

MAX_NAME = 64
_REFUSED = "/\\:,"  # names are parts of folders, of METHOD:POLICY and of lists with commas
_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Origin:
    """Where a thing comes from: flare itself, a file, or code that was typed in (a notebook, a console, a script)."""

    path: str | None = None
    built_in: bool = False

    def __str__(self) -> str:
        if self.built_in:
            return "built in"
        return self.path or "interactive code"


BUILT_IN, INTERACTIVE = Origin(built_in=True), Origin()


class Named(Protocol):
    """What a registry holds: a thing with a name, one line about it, and options by name."""

    @property
    def name(self) -> str:
        """What it is asked for by."""
        ...

    @property
    def summary(self) -> str:
        """What it is, in one line."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options by name."""
        ...

    def check_options(self, given: Mapping[str, Any]) -> Any:
        """ValueError for an option that it does not have, or that cannot be."""
        ...


T = TypeVar("T", bound=Named)

REGISTRIES: dict[str, Registry[Any]] = {}
"""Every registry by what it holds: "policy", "method", ..."""


class Registry(Mapping[str, T], Generic[T]):
    """The things of one kind by name, in the order of their registration: `Registry("policy", "policies")`."""

    def __init__(self, kind: str, plural: str) -> None:
        self.kind, self.plural = kind, plural
        self._things: dict[str, T] = {}
        self._origins: dict[str, Origin] = {}
        REGISTRIES[kind] = self

    def __getitem__(self, name: str) -> T:
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __delitem__(self, name: str) -> None:
        """Forget what was registered by this name."""
        del self._things[name], self._origins[name]

    def __repr__(self) -> str:
        return f"<{self.plural}: {', '.join(self)}>"

    def origin(self, name: str) -> Origin:
        """Where the thing of that name comes from."""
        return self._origins[name]

    def find(self, name: str) -> T:
        """The thing of that name; ValueError with the nearest name and the whole list where there is none."""
        if isinstance(name, str) and name in self._things:
            return self._things[name]
        if callable(name):
            raise ValueError(f"a {self.kind} is asked for by its name, a text; {name!r:.80} is none")
        hint = did_you_mean(str(name), self)
        raise ValueError(f"there is no {self.kind} {name!r:.80}{hint} {self.plural.capitalize()}: {', '.join(self)}")

    def refuse_bare(self, name: Any, decorator: str) -> None:
        """ValueError where a decorator was written without a name, and so was given what it stands above."""
        if callable(name):
            code = getattr(name, "__name__", type(name).__name__)
            raise ValueError(
                f'@{decorator} above {code} has no name; write @{decorator}("NAME"), with the name that the '
                f"{self.kind} is asked for by"
            )

    def add(self, thing: T, code: Any) -> None:
        """Register a thing that is made of `code`, a function or a class, by its name."""
        name, origin = thing.name, _origin_of(code)
        self._refuse_name(name)
        known = self._origins.get(name)
        if known is not None and known != origin:
            there = "flare has one of its own (built in)" if known.built_in else f"one is of {known}"
            here = "" if known.built_in else f", and this one is of {origin}"
            raise ValueError(f"there is already a {self.kind} '{name}': {there}{here}; choose another name")
        if (self.kind, name) in _added and known == origin and origin.path == _loading:
            raise ValueError(f"the {self.kind} '{name}' is registered twice in {origin}; choose another name")
        if _loading is not None and not origin.built_in:  # a plugin may be the first to import a part of flare
            _added.append((self.kind, name))
        self._things[name], self._origins[name] = thing, origin

    def _refuse_name(self, name: Any) -> None:
        sound = isinstance(name, str) and 0 < len(name) <= MAX_NAME and one_line(name) == name
        if not sound or name[0] in "-." or any(each in _REFUSED for each in name):
            raise ValueError(
                f"{name!r:.80} is no name of a {self.kind}; write a word of at most {MAX_NAME} characters without "
                f"{' '.join(_REFUSED)}, beginning with none of - and ."
            )

    def _go_back(self, things: dict[str, T], origins: dict[str, Origin]) -> None:
        """Be again as once, with what is built in and came since."""
        for name, origin in self._origins.items():
            if origin.built_in:
                things[name], origins[name] = self._things[name], origin
        self._things, self._origins = things, origins

    def drop_from(self, path: str) -> None:
        """Forget all that a file registered."""
        for name in [name for name, origin in self._origins.items() if origin.path == path]:
            del self[name]


_loading: str | None = None  # the plugin file that is being executed
_added: list[tuple[str, str]] = []  # kinds and names that it has registered so far


@contextmanager
def loading(path: str) -> Iterator[list[tuple[str, str]]]:
    """While a plugin file is executed: collects what it registers, kind and name; where it fails, nothing stays.

    What the same file registered before is forgotten first.
    """
    global _loading, _added
    outer, before = (_loading, _added), {each.kind: (dict(each._things), dict(each._origins)) for each in _all()}
    _loading, _added = path, []
    for each in _all():
        each.drop_from(path)
    try:
        yield _added
    except BaseException:
        for each in _all():
            each._go_back(*before.get(each.kind, ({}, {})))
        raise
    finally:
        _loading, _added = outer


def _all() -> list[Registry[Any]]:
    return list(REGISTRIES.values())


def _origin_of(code: Any) -> Origin:
    """The file of a function or class; code of `__main__`, or of a file that does not exist, was typed in."""
    module = getattr(code, "__module__", None) or ""
    if module.partition(".")[0] == _PACKAGE:
        return BUILT_IN
    function = inspect.unwrap(code) if callable(code) else code
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    if file is None:
        file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module in ("__main__", "__mp_main__") or not os.path.isfile(file):
        return INTERACTIVE
    return Origin(os.path.realpath(file))


def first_line(code: Any) -> str:
    """The first line of the text that documents a function or class; empty where it has none of its own."""
    text = inspect.cleandoc(vars(code).get("__doc__") or "") if isinstance(code, type) else inspect.getdoc(code) or ""
    generated = isinstance(code, type) and text.startswith(f"{code.__name__}(")  # by a dataclass
    return "" if generated else text.split("\n")[0]
