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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any, ClassVar, TypeVar

import torch

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
    if not CODECS.origin(name).built_in:
        _try(name, made)
    return made


def _try(name: str, codec: Codec) -> None:
    """ValueError where a codec fails on an update of zeros, or something else arrives than is decoded."""
    update, keys = torch.zeros(1, _TRIED_WEIGHTS), torch.zeros(1, dtype=torch.int64)
    try:
        decoded = codec.decode_many(codec.encode_many(update, keys), _TRIED_WEIGHTS)
        arrived = codec.arrive_many(update, keys)
    except ValueError as error:
        raise ValueError(f"codec '{name}': {error}") from error
    except Exception as error:
        raise ValueError(
            f"codec '{name}' fails on an update of {_TRIED_WEIGHTS} zeros: {type(error).__name__}: {error}"
        ) from error
    if not torch.equal(decoded, arrived):
        raise ValueError(f"codec '{name}': what its arrive gives is not what unpack makes of pack; let the two agree")


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
