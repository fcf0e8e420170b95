"""Options of policies from `-o name=value`: for one policy, and for several that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flare.config import Options
from flare.scheduling.options import split_options
from flare.scheduling.registry import get_policy


def changed(options: Options, values: Mapping[str, Any]) -> Options:
    """Options with some of them changed. One that shall be none is left out: none is what it is then."""
    return Options({name: value for name, value in {**options, **values}.items() if value is not None})


def options_of(policies: Sequence[str], given: Options, texts: Sequence[str] = ()) -> dict[str, Options]:
    """The options of each policy of a comparison: those given, changed by texts `name=value`.

    A policy gets those of the options that it has; ValueError for an option that none of the policies has. All get
    `max_devices`, since some limited and some not would be no comparison: a policy that knows no limit refuses it.
    """
    known, named = {name: get_policy(name) for name in policies}, split_options(texts)
    unknown = next((name for name in (*given, *named) if not any(one.may_have(name) for one in known.values())), None)
    if unknown is not None:
        listed = "; ".join(f"{name}: {', '.join(one.options) or 'none'}" for name, one in known.items())
        raise ValueError(f"none of the policies has an option {unknown!r:.80} (their options: {listed})")
    return {
        name: changed(
            given.only(filter(one.may_have, given)),
            one.read_options([text for option, text in zip(named, texts, strict=True) if one.may_have(option)]),
        )
        for name, one in known.items()
    }
