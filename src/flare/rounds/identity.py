"""What a run is beside its settings: checksums of arrays, and of the code of its parts where that is a
user's own."""

from __future__ import annotations

import hashlib
import inspect
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.config.code_parts import CODE_PARTS, code_key
from flare.learning.methods import METHODS
from flare.learning.methods.base import Method
from flare.registry import Registry
from flare.rounds.base_station import BaseStation
from flare.scheduling import POLICIES
from flare.uplink import CODECS
from flare.uplink.air import AIR_SCHEMES

_DIGITS = 16  # of a checksum
_NOT_CODE = {"__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"}
"""Attributes of a class that say where it stands and how it is explained."""


def code_identity(station: BaseStation) -> dict[str, str]:
    """The names of method, policy and, where they are used, the codecs of updates and broadcast and the air scheme, and
    the checksum of the code of each that is a user's own.

    The code is the text of the class or function itself: what it calls elsewhere is not looked into.
    """
    told = {}
    for part, (registry, name) in _used(station).items():
        told[part] = name
        own = own_code(_code(station, registry, name))
        if own:
            told[code_key(part)] = own
    return told


def code_files(station: BaseStation) -> dict[str, str | None]:
    """The files that the code of the parts of `code_identity` comes from, by the names of their checksums there."""
    return {code_key(part): registry.origin(name).path for part, (registry, name) in _used(station).items()}


def _used(station: BaseStation) -> dict[str, tuple[Registry[Any], str]]:
    """The parts that a run uses: where each is registered, and by what name."""
    registries: dict[str, Registry[Any]] = {"method": METHODS, "policy": POLICIES}
    if station.codes:
        registries["codec"] = CODECS
    if station.codes_broadcast:
        registries["downlink codec"] = CODECS
    if station.air is not None:
        registries["air scheme"] = AIR_SCHEMES
    used = {}
    for part, registry in registries.items():
        section, _, key = CODE_PARTS[part].partition(".")
        used[part] = (registry, str(getattr(getattr(station.config, section), key)))
    return used


def _code(station: BaseStation, registry: Registry[Any], name: str) -> Any:
    """The class or function itself."""
    if registry is METHODS:
        return type(station.method)
    return registry.find(name).function if registry is POLICIES else registry.find(name).make


def checksum(*arrays: NDArray[Any]) -> str:
    """Of the numbers, types and shapes of arrays."""
    sha256 = hashlib.sha256()
    for each in arrays:
        sha256.update(f"{each.dtype.str}{each.shape}".encode())
        sha256.update(np.ascontiguousarray(each).data)
    return sha256.hexdigest()[:_DIGITS]


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


def is_own_method(method: Method) -> bool:
    """Whether a method, or the one that it stands around, is a user's own."""
    return _is_own(type(method)) or _is_own(type(getattr(method, "around", method)))


def own_code(code: Any) -> str:
    """The checksum of a class or function that is a user's own; empty for one of flare's."""
    return hashlib.sha256(source_of(code).encode()).hexdigest()[:_DIGITS] if _is_own(code) else ""


def _is_own(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).split(".")[0] != "flare"
