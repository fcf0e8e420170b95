"""What a run is beside its settings: checksums of arrays, and of the code of its parts where that is a
user's own."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.config.code_parts import CODE_PARTS, code_key
from flare.learning.methods import METHODS
from flare.learning.methods.base import Method
from flare.registry import Registry
from flare.rounds.base_station import BaseStation
from flare.rounds.code_text import text_of
from flare.scheduling import POLICIES
from flare.uplink import CODECS
from flare.uplink.air import AIR_SCHEMES

_DIGITS = 16  # of a checksum


def code_identity(station: BaseStation) -> dict[str, str]:
    """The names of method, policy and, where they are used, the codecs of updates and broadcast and the air scheme, and
    the checksum of the code of each that is a user's own.

    The code is the text of the class or function, and of what it uses by name (`text_of`).
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


def is_own_method(method: Method) -> bool:
    """Whether a method, or the one that it stands around, is a user's own."""
    return _is_own(type(method)) or _is_own(type(getattr(method, "around", method)))


def own_code(code: Any) -> str:
    """The checksum of a class or function that is a user's own; empty for one of flare's."""
    return hashlib.sha256(text_of(code).encode()).hexdigest()[:_DIGITS] if _is_own(code) else ""


def _is_own(code: Any) -> bool:
    return str(getattr(code, "__module__", "")).split(".")[0] != "flare"
