"""The reference number of steps, tau_bar: the four strategies of Section V-B, and MaS up to a limit (`safe`).

Each is a function of the local steps of all devices this round, of those in the first round, both of shape (devices,),
and of the selected devices. It is taken after the selection (see docs/errata.md on Algorithm 2, line 4).
"""

from __future__ import annotations

from collections.abc import Callable

from flare.types import Floats, Indices

TauBar = Callable[[Floats, Floats, Indices], float]


def max_strategy(tau: Floats, first_tau: Floats, selected: Indices) -> float:
    """MaS: the most steps that a selected device does this round."""
    return float(tau[selected].max())


def mean_strategy(tau: Floats, first_tau: Floats, selected: Indices) -> float:
    """MeS: the mean steps of the selected devices this round."""
    return float(tau[selected].mean())


def fixed_max_strategy(tau: Floats, first_tau: Floats, selected: Indices) -> float:
    """FMaS: the most steps that a device selected now did in the first round."""
    return float(first_tau[selected].max())


def fixed_mean_strategy(tau: Floats, first_tau: Floats, selected: Indices) -> float:
    """FMeS: the mean steps in the first round of the devices selected now."""
    return float(first_tau[selected].mean())


TAU_BARS: dict[str, TauBar] = {
    "mas": max_strategy,
    "mes": mean_strategy,
    "fmas": fixed_max_strategy,
    "fmes": fixed_mean_strategy,
    "safe": max_strategy,
}
"""The strategies by name; `safe` is MaS, and the limit of the round (`Round.tau_bar_limit`) does the rest."""
