"""Codecs by name.

    @codec("halved")
    @dataclass(frozen=True)
    class Halved(Codec):
        share: float = setting(0.5, "how much of it is sent", above=0.0, at_most=1.0)
        unbiased = False

        def bits(self, num_weights): ...
        def variance(self, num_weights): ...
        def pack(self, updates, keys): ...
        def unpack(self, messages, num_weights): ...

The fields of the dataclass are the options of the codec. A function that returns a codec will do as well: then the
options are what it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from flare.config.declared import Interface, Kind
from flare.config.options import NO_OPTIONS
from flare.registry import Registry, first_line
from flare.uplink.codec import Codec

INTERFACE = Interface("codec")
_PARTS = ("bits", "variance", "pack", "unpack", "encode", "decode", "encode_many", "decode_many")
_FACTS = ("unbiased", "draws", "keeps_everything")
C = TypeVar("C", bound=Callable[..., Codec])


@dataclass(frozen=True, eq=False)
class CodecKind(Kind):
    """A registered codec: the class or function that makes it, and the options that it takes."""

    interface: ClassVar = INTERFACE
    make: Callable[..., Codec]


CODECS: Registry[CodecKind] = Registry("codec", "codecs")
"""Every registered codec by name, in the order of registration."""


def codec(name: str) -> Callable[[C], C]:
    """Register the decorated class as the codec `name`: a dataclass that derives from `Codec`, or a function that
    returns one."""

    CODECS.refuse_bare(name, "flare.codec")

    def register(made_of: C) -> C:
        if isinstance(made_of, type):
            refuse_incomplete("codec", name, made_of, Codec, facts=("unbiased",))
        options = INTERFACE.options_of(name, made_of)
        taken = next((each for each in options if isinstance(made_of, type) and each in (*_PARTS, *_FACTS)), None)
        if taken is not None:
            raise ValueError(
                f"codec '{name}': its option '{taken}' has the name of a part of every codec; rename it, or write a "
                f"fact about the codec without a type: {_FACTS[0]} = True"
            )
        CODECS.add(CodecKind(name, first_line(made_of), options, made_of), made_of)
        return made_of

    return register


_TRIED_WEIGHTS = 100


def make_codec(name: str, options: Mapping[str, Any] = NO_OPTIONS) -> Codec:
    """The codec of that name with its options; ValueError where there is none, an option is wrong, or a codec of the
    user's own cannot code an update, or not as it says."""
    kind = CODECS.find(name)
    made = kind.make(**kind.check_options(options))
    if not isinstance(made, Codec):
        raise ValueError(f"codec '{name}' returned a {type(made).__name__}; it must return a flare.uplink.Codec")
    try_own(name, made, _TRIED_WEIGHTS)
    return made


def try_own(name: str, codec: Codec, num_weights: int) -> None:
    """ValueError where a codec of the user's own cannot code updates of so many weights, or not as it says: one of
    zeros, and one of many different numbers."""
    if CODECS.origin(name).built_in:
        return
    waves = torch.sin(torch.arange(num_weights, dtype=torch.float64)).float()
    for what, update in (("zeros", torch.zeros(num_weights)), ("numbers from -1 to 1", waves)):
        try:
            wrong = _wrong_with(codec, update.unsqueeze(0))
        except ValueError as error:
            raise ValueError(f"codec '{name}': {error}") from error
        except Exception as error:
            raise ValueError(
                f"codec '{name}' fails on an update of {num_weights} {what}: {type(error).__name__}: {error}"
            ) from error
        if wrong:
            raise ValueError(f"codec '{name}', an update of {num_weights} {what}: {wrong}")


def _wrong_with(codec: Codec, update: Tensor) -> str:
    """What a codec does to an update (1, weights) that it may not; empty where there is nothing."""
    num_weights, keys = update.shape[1], torch.zeros(1, dtype=torch.int64)
    given = update.clone()
    decoded = codec.decode_many(codec.encode_many(given, keys), num_weights)
    arrived = codec.arrive_many(given, keys)
    if not torch.equal(given, update):
        return "its pack or arrive writes into the update that it is given; let it work on a copy"
    if not torch.equal(decoded.nan_to_num(), arrived.nan_to_num()):
        return "what its arrive gives is not what unpack makes of pack; let the two agree"
    if not bool(torch.isfinite(decoded).all()):
        return "its unpack gives numbers that are not finite; a model would be lost with them"
    variance = codec.variance(num_weights)
    if isinstance(variance, bool) or not isinstance(variance, int | float) or not 0.0 <= variance < math.inf:
        return f"its variance({num_weights}) answered {str(variance)[:40]}; it must answer a finite number, at least 0"
    return ""


def refuse_incomplete(kind: str, name: str, made_of: type, base: type, facts: Sequence[str] = ()) -> None:
    """ValueError where a class that is to be registered does not derive from `base`, or lacks methods or facts."""
    if not issubclass(made_of, base):
        raise ValueError(f"{kind} '{name}': class {made_of.__name__} must derive from {base.__name__}")
    if any(isinstance(each, Field) for each in vars(made_of).values()):
        decorator = kind.replace(" ", "_")
        raise ValueError(
            f"{kind} '{name}': write @{decorator} above @dataclass, so that its fields are known as options"
        )
    missing = [*sorted(made_of.__abstractmethods__), *(fact for fact in facts if not hasattr(made_of, fact))]  # type: ignore[attr-defined]
    if missing:
        raise ValueError(f"{kind} '{name}': class {made_of.__name__} lacks {', '.join(missing)}")
