"""Learning methods by name."""

from __future__ import annotations

from collections.abc import Callable

from flare.config import LearningConfig
from flare.learning.methods.base import Method, MethodState, Reducer, Round
from flare.learning.methods.fedavg import FedAvg
from flare.learning.methods.fedlin import FedLin
from flare.learning.methods.fednova import FedNova
from flare.learning.methods.fedprox import FedProx
from flare.learning.methods.flare import Flare
from flare.learning.methods.scaffold import Scaffold
from flare.text import did_you_mean

METHODS: dict[str, Callable[[LearningConfig], Method]] = {
    "flare": lambda config: Flare(config.tau_bar),
    "fedavg": lambda config: FedAvg(),
    "fedavg-fixed": lambda config: FedAvg(config.fixed_steps),
    "fedprox": lambda config: FedProx(config.prox_mu),
    "fednova": lambda config: FedNova(config.tau_eff),
    "scaffold": lambda config: Scaffold(),
    "fedlin": lambda config: FedLin(),
}
"""Every method by name, as a function that makes it from the settings."""


def make_method(config: LearningConfig) -> Method:
    """The method that the settings name; ValueError with the nearest name and the whole list where there is none."""
    if config.method in METHODS:
        return METHODS[config.method](config)
    hint = did_you_mean(config.method, METHODS)
    raise ValueError(f"there is no method '{config.method}'{hint} Methods: {', '.join(METHODS)}")


__all__ = [
    "METHODS",
    "FedAvg",
    "FedLin",
    "FedNova",
    "FedProx",
    "Flare",
    "Method",
    "MethodState",
    "Reducer",
    "Round",
    "Scaffold",
    "make_method",
]
