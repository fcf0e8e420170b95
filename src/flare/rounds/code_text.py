"""The text of a user's own code, by which a run is known again: of a class or function, and of what it uses by name."""

from __future__ import annotations

import dis
import functools
import inspect
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_NOT_CODE = {"__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"}
"""Attributes of a class that say where it stands and how it is explained."""


def text_of(code: Any) -> str:
    """`source_of` a class or function, and of what it uses by name where that is a user's own: functions and classes,
    whole modules, and numbers and texts that its module does not set anew.

    Not looked into are lists, arrays and objects, which may change while a run goes on, what such modules use in turn,
    and files that are read.
    """
    told: dict[str, str] = {}
    _tell(code, told, set())
    return "\n".join([source_of(code), *(f"{name}: {text}" for name, text in sorted(told.items()))])


def source_of(code: type | Any) -> str:
    """The text of a class or function; where there is none, as of what was typed into a console, what it was compiled
    to; empty where there is neither."""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return _compiled(code)


def _compiled(code: Any) -> str:
    """What functions and classes are made of: instructions, names, constants, default values, attributes. Values go by
    their text, where they are plain, and functions within by what they are made of: no address in memory is in it."""
    if isinstance(code, type):
        return repr([(name, _compiled(each)) for name, each in sorted(vars(code).items()) if name not in _NOT_CODE])
    if isinstance(code, staticmethod | classmethod):
        return _compiled(code.__func__)
    if isinstance(code, property):
        return repr([_compiled(each) for each in (code.fget, code.fset, code.fdel)])
    made = code if isinstance(code, CodeType) else getattr(code, "__code__", None)
    if not isinstance(made, CodeType):
        return _plain(code)
    constants = [_compiled(each) if isinstance(each, CodeType) else repr(each) for each in made.co_consts]
    named = sorted((getattr(code, "__kwdefaults__", None) or {}).items())
    defaults = [_plain(getattr(code, "__defaults__", None)), [(name, _plain(each)) for name, each in named]]
    return repr((made.co_code, made.co_names, made.co_varnames, constants, defaults))


def _plain(value: Any) -> str:
    """The text of numbers, texts and tuples of them; empty for all else."""
    if isinstance(value, tuple):
        return repr([_plain(each) for each in value])
    return repr(value) if value is None or isinstance(value, bool | int | float | complex | str | bytes) else ""


def _tell(code: Any, told: dict[str, str], seen: set[int]) -> None:
    """Add to what is told, by name, what a class, function or partial uses."""
    if id(code) in seen:
        return
    seen.add(id(code))
    if isinstance(code, functools.partial):
        named = [(key, _plain(value)) for key, value in sorted(code.keywords.items())]
        told[f"{_name(code.func)} with"] = repr((_plain(code.args), named))
        _add(_name(code.func), code.func, told, seen)
    elif isinstance(code, type):
        for function in _functions_of(code):
            _tell(function, told, seen)
        for base in code.__bases__:
            _add(_name(base), base, told, seen)
    elif inspect.isfunction(code):
        for name, value in _used_by(code).items():
            _add(f"{name} of {_name(code)}", value, told, seen)


def _add(name: str, value: Any, told: dict[str, str], seen: set[int]) -> None:
    """Add a value under its name, where it is a user's own code, or plain."""
    if inspect.ismodule(value):
        path = _own_file(value)
        if path is not None:
            told[name] = path.read_text(encoding="utf-8", errors="replace")
    elif isinstance(value, functools.partial):
        _tell(value, told, seen)
    elif inspect.isfunction(value) or isinstance(value, type):
        module = sys.modules.get(value.__module__ or "")
        if module is None or _own_file(module) is not None:
            told[name] = source_of(value)
            _tell(value, told, seen)
    elif text := _plain(value):
        told[name] = text


def _functions_of(kind: type) -> Iterator[FunctionType]:
    for _, each in sorted(vars(kind).items()):
        parts = (each, *(getattr(each, part, None) for part in ("__func__", "fget", "fset", "func")))
        yield from filter(inspect.isfunction, parts)


def _used_by(function: FunctionType) -> Mapping[str, Any]:
    """What a function, and those within it, use by name from around them, but for what is set anew there."""
    names, anew = _names_in(function.__code__)
    module = function.__globals__
    for other in list(module.values()):
        if inspect.isfunction(other) and other.__globals__ is module:
            anew |= _names_in(other.__code__)[1]
    around = {name: module[name] for name in names - anew if name in module}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            around |= {} if name in anew else {name: cell.cell_contents}
    return around


def _names_in(code: CodeType) -> tuple[set[str], set[str]]:
    """The names of a module that instructions read, and the names around them that they set."""
    steps = list(dis.get_instructions(code))
    read = {str(each.argval) for each in steps if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    anew = {str(each.argval) for each in steps if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, set_there = _names_in(inner)
            read, anew = read | more, anew | set_there
    return read, anew


def _own_file(module: ModuleType) -> Path | None:
    """The file of a module that is a user's own; None of flare's, of Python's and of installed ones."""
    path = getattr(module, "__file__", None)
    if not path or module.__name__.split(".")[0] == "flare" or not path.endswith(".py"):
        return None
    found = Path(path).resolve()
    return None if any(found.is_relative_to(folder) for folder in _installed()) else found


@functools.cache
def _installed() -> tuple[Path, ...]:
    """The folders of Python and of what is installed for it."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(Path(each).resolve() for each in [*folders, site.getusersitepackages()])


def _name(code: Any) -> str:
    return str(getattr(code, "__qualname__", type(code).__name__))
