"""Digits on a fleet: the parts that Flower runs."""

from importlib.util import find_spec

if find_spec("flare") is None:
    raise ModuleNotFoundError(
        "this app needs FLARE where the SuperLink runs, and where each SuperNode does: install it there "
        "(docs/flower.md of FLARE says how)",
        name="flare",
    )
