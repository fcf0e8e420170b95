"""What a run is beside its settings: checksums of arrays, and of policy, codec and method if they are a user's own."""

from __future__ import annotations

import hashlib
import inspect
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.learning.methods import METHODS
from flare.rounds.base_station import BaseStation
from flare.scheduling import POLICIES
from flare.uplink import CODECS
from flare.uplink.air import AIR_SCHEMES

_DIGITS = 16  # of a checksum


def code_identity(station: BaseStation) -> dict[str, str]:
    """The names of method, policy and, where they are used, the codecs of updates and broadcast and the air scheme, and
    the checksum of the code of each that is a user's own.

    The code is the text of the class or function itself: what it calls elsewhere is not looked into.
    """
    learning, scheduling, uplink = station.config.learning, station.config.scheduling, station.config.uplink
    method = _part("method", learning.method, type(station.method))
    codec = _part("codec", uplink.codec, CODECS.find(uplink.codec).make) if station.codes else {}
    if station.codes_broadcast:
        name = station.config.wireless.downlink_codec
        codec |= _part("downlink codec", name, CODECS.find(name).make)
    air = {} if station.air is None else _part("air scheme", uplink.air_scheme, type(station.air))
    return method | _part("policy", scheduling.policy, POLICIES.find(scheduling.policy).function) | codec | air


def code_files(station: BaseStation) -> dict[str, str | None]:
    """The files that the code of method, policy, codec and air scheme comes from, by the parts of `code_identity`."""
    learning, scheduling, uplink = station.config.learning, station.config.scheduling, station.config.uplink
    codec = {"codec code": CODECS.origin(uplink.codec).path} if station.codes else {}
    if station.codes_broadcast:
        codec["downlink codec code"] = CODECS.origin(station.config.wireless.downlink_codec).path
    air = {} if station.air is None else {"air scheme code": AIR_SCHEMES.origin(uplink.air_scheme).path}
    return (
        codec
        | air
        | {
            "method code": METHODS.origin(learning.method).path,
            "policy code": POLICIES.origin(scheduling.policy).path,
        }
    )


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
    """What functions and classes are made of: instructions, names and constants. Constants go by their text, and
    functions within by what they are made of: no address in memory is in it."""
    if isinstance(code, type):
        return repr([(name, _compiled(each)) for name, each in sorted(vars(code).items()) if callable(each)])
    made = code if isinstance(code, CodeType) else getattr(code, "__code__", None)
    if not isinstance(made, CodeType):
        return ""
    constants = [_compiled(each) if isinstance(each, CodeType) else repr(each) for each in made.co_consts]
    return repr((made.co_code, made.co_names, made.co_varnames, constants, getattr(code, "__kwdefaults__", None)))


def own_code(code: Any) -> str:
    """The checksum of a class or function that is a user's own; empty for one of flare's."""
    if str(getattr(code, "__module__", "")).split(".")[0] == "flare":
        return ""
    return hashlib.sha256(source_of(code).encode()).hexdigest()[:_DIGITS]


def _part(part: str, name: str, code: Any) -> dict[str, str]:
    own = own_code(code)
    return {part: name, f"{part} code": own} if own else {part: name}
