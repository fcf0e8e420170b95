"""The text of a user's own code, by which a run is known again: of a class or function, and of what it uses by name.

Everything goes by text as it is written, not by values: these may be others in every process, and change while a run
goes on.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
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
    """`source_of` a class or function, and of what it uses by name where that is a user's own: functions and classes
    and what they use in turn, whole modules, the lines that assign to a name of its module, and numbers and texts in a
    closure or a partial.

    Not looked into is what such modules use in turn, what is assigned where there is no source, as in a notebook, and
    files that are read.
    """
    told: list[tuple[str, str]] = []
    _tell("", code, told, set())
    return "\n".join([source_of(code), *(f"{path}: {text}" for path, text in sorted(told))])


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


def _tell(path: str, code: Any, told: list[tuple[str, str]], seen: set[int]) -> None:
    """Add what a class, function or partial uses, each by the path of names that leads to it."""
    if id(code) in seen:
        return
    seen.add(id(code))
    if isinstance(code, functools.partial):
        named = [(key, _plain(value)) for key, value in sorted(code.keywords.items())]
        told.append((path, repr((_plain(code.args), named))))
        _add(f"{path}.func", code.func, told, seen)
    elif isinstance(code, type):
        for name, function in _functions_of(code):
            _tell(f"{path}.{name}", function, told, seen)
        for base in code.__bases__:
            _add(f"{path}.{base.__qualname__}", base, told, seen)
    elif inspect.isfunction(code):
        _tell_of_function(path, code, told, seen)


def _tell_of_function(path: str, function: FunctionType, told: list[tuple[str, str]], seen: set[int]) -> None:
    module = sys.modules.get(function.__module__ or "")
    lines = _assignments(_source_of_module(module)) if module is not None and _is_own(module) else {}
    for name in sorted(_names_in(function.__code__)):
        if name in function.__globals__ and not name.startswith("__"):
            _add(f"{path}.{name}", function.__globals__[name], told, seen)
            if name in lines:
                told.append((f"{path}.{name} =", lines[name]))
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            cells[name] = cell.cell_contents
    within = [function, *filter(inspect.isfunction, cells.values())]
    set_anew = {name for each in within for name in _set_around(each.__code__)}
    for name in sorted(cells.keys() - {"__class__"}):
        _add(f"{path}.{name}", cells[name], told, seen)
        if name not in set_anew and (text := _plain(cells[name])):
            told.append((f"{path}.{name} =", text))


def _add(path: str, value: Any, told: list[tuple[str, str]], seen: set[int]) -> None:
    """Add a value, where it is a user's own code."""
    if inspect.ismodule(value):
        if _is_own(value):
            told.append((path, _source_of_module(value)))
    elif isinstance(value, functools.partial):
        _tell(path, value, told, seen)
    elif inspect.isfunction(value) or isinstance(value, type):
        module = sys.modules.get(value.__module__ or "")
        if module is None or _is_own(module):
            told.append((path, source_of(value)))
            _tell(path, value, told, seen)


def _functions_of(kind: type) -> Iterator[tuple[str, FunctionType]]:
    for name, each in sorted(vars(kind).items()):
        for part in (each, *(getattr(each, how, None) for how in ("__func__", "fget", "fset", "func"))):
            if inspect.isfunction(part):
                yield name, part


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> frozenset[str]:
    """The names of their module that instructions read, those of functions within too."""
    read = {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(read.union(*(_names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType))))


def _set_around(code: CodeType) -> set[str]:
    """The names around a function that it sets."""
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_DEREF"}


@functools.lru_cache(maxsize=64)
def _assignments(source: str) -> Mapping[str, str]:
    """The lines of a module that assign to each name, as they mean, without layout and comments."""
    found: dict[str, str] = {}
    with suppress(SyntaxError, ValueError, RecursionError):
        for each in ast.parse(source).body:
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            names = {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}
            for name in names:
                found[name] = f"{found.get(name, '')}{ast.unparse(each)}\n"
    return found


def _source_of_module(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except (OSError, TypeError, SyntaxError, UnicodeError):
        return ""


def _is_own(module: ModuleType) -> bool:
    """Whether a module is a user's own: neither flare's nor Python's, nor installed."""
    if module.__name__ == "__main__":
        return True
    path = getattr(module, "__file__", None)
    if not path or module.__name__.split(".")[0] == "flare":
        return False
    places = (Path(path), Path(path).resolve())
    installed = any({"site-packages", "dist-packages"} & set(each.parts) for each in places)
    return not installed and not any(each.is_relative_to(folder) for each in places for folder in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    """The folders of Python and of what is installed for it."""
    paths = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({*paths, *(path.resolve() for path in paths)})
