"""FLARE: federated learning over wireless networks whose devices differ in data, speed and channel."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flare.rng import stream
from flare.scheduling import POLICIES, Choice, RoundProblem, Schedule, Status, admit, policy, solve, solve_many
from flare.scheduling.cells import round_problem
from flare.wireless.cell import CELLS, Cell

if TYPE_CHECKING:
    from flare.data.sources import dataset
    from flare.learning.methods import method
    from flare.learning.models import model
    from flare.research import Run, Runs, compare, load, simulate
    from flare.tuning import tune
    from flare.uplink import codec
    from flare.uplink.air import air_scheme

__version__ = "0.1.0"

__all__ = [
    "CELLS",
    "POLICIES",
    "Cell",
    "Choice",
    "RoundProblem",
    "Run",
    "Runs",
    "Schedule",
    "Status",
    "admit",
    "air_scheme",
    "codec",
    "compare",
    "dataset",
    "load",
    "method",
    "model",
    "policy",
    "round_problem",
    "simulate",
    "solve",
    "solve_many",
    "stream",
    "tune",
]

_LATER = {
    "air_scheme": "flare.uplink.air",
    "codec": "flare.uplink",
    "dataset": "flare.data.sources",
    "method": "flare.learning.methods",
    "model": "flare.learning.models",
    "tune": "flare.tuning",
    **dict.fromkeys(("Run", "Runs", "compare", "load", "simulate"), "flare.research"),
}
"""What trains is imported when it is first asked for: scheduling needs no torch, and does not wait for it."""
_PACKAGES = ("config", "data", "learning", "research", "theory", "tuning", "uplink")
"""Packages that are imported when they are first asked for, as `flare.data`."""
_EXTRA = "flower"  # another, which is told to nobody who looks through this one: without Flower it cannot be imported


def __getattr__(name: str) -> Any:
    if name in _PACKAGES or name == _EXTRA:
        return import_module(f"flare.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'flare' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
