"""Rounds over the air: who is heard, what a policy is asked, and the mean that the channel makes of the updates.

A policy is asked problem P2 as ever, with a payload so small that the band never binds, and with the deadline less the
time on the air: who has not computed by then is late. Devices that the scheme does not hear must not send. What arrives
of the updates is one vector, their mean with noise, and it takes the place of the mean that a base station computes
from updates that it received one by one: only methods that need no more than that mean go with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from flare.config import FDMA, PLAIN, Config, WirelessConfig
from flare.learning.methods.base import Method, method_takes_mean
from flare.rounds.observation import Observation
from flare.scheduling import POLICIES, RoundProblem, Schedule, Status, solve
from flare.scheduling.nobody import setting_names
from flare.types import Floats, Indices
from flare.units import db_to_linear, human
from flare.uplink import NotFiniteError
from flare.uplink.air import (
    AirLink,
    AirPlan,
    AirScheme,
    Fading,
    Moments,
    Received,
    best_senders,
    make_air_scheme,
    plan_air,
)

PAYLOAD_BITS = 1e-3
"""What a policy is told of an update over the air: so little that any number of devices fits on the band."""
BEST = "best"
"""What chose the senders, where no policy did."""
_NO_TIME_S = 1e-30  # a deadline by which nobody has computed


def air_scheme_of(config: Config, method: Method) -> AirScheme | None:
    """The scheme of the settings, for their method; None where devices divide the band. ValueError says which of them
    do not go together."""
    uplink = config.uplink
    if uplink.air == FDMA:
        return None
    scheme = make_air_scheme(uplink.air_scheme, uplink.air_options)
    if uplink.codec != PLAIN:
        raise ValueError(
            f'uplink.air is "ota" and uplink.codec is "{uplink.codec}": over the air devices send numbers and no bits, '
            'so that there is nothing to code; set uplink.codec to "none", or uplink.air to "fdma"'
        )
    if config.run.payload == "wireless":
        raise ValueError(
            'uplink.air is "ota" and run.payload is "wireless": over the air an update takes as long as the weights of '
            'the model, not as wireless.payload_bits; set run.payload to "model", or uplink.air to "fdma"'
        )
    if config.wireless.block_hz:
        raise ValueError(
            f'uplink.air is "ota" and wireless.block_hz is {config.wireless.block_hz:g}: over the air every device has '
            'the whole band and no blocks; set wireless.block_hz to 0, or uplink.air to "fdma"'
        )
    _refuse_method(config.learning.method, method)
    if uplink.air_senders != BEST:
        _refuse_policy(config)
    return scheme


def _refuse_policy(config: Config) -> None:
    """ValueError where the policy sets, weighs or goes by what there is not over the air."""
    policy = POLICIES.get(config.scheduling.policy)
    if policy is None:
        return
    if policy.needs_hardware:
        does, why = (
            "goes by powers and parts of the band or sets them",
            "the scheme sets the powers, and all have the whole band",
        )
        raise not_over_the_air(policy.name, does, why)
    if policy.weighs:
        raise not_over_the_air(policy.name, *WEIGHING)
    if policy.goes_by_updates(config.scheduling.options):
        other = "another policy, options with which it asks devices (and pays for it)" if policy.probe else ""
        does, why = "goes by what single updates were like", "the base station hears their sum alone"
        raise not_over_the_air(policy.name, does, why, other or "another policy")


WEIGHING = ("says how much each update counts", "the channel adds them all up alike")
"""What a policy does that weighs updates, and why it cannot over the air."""


def not_over_the_air(policy: str, does: str, why: str, other: str = "another policy") -> ValueError:
    """What is said of a policy that cannot be, and of what to do."""
    return ValueError(
        f"uplink.air is \"ota\", but policy '{policy}' {does}: over the air {why}; take {other}, or set uplink.air to "
        '"fdma"'
    )


def _refuse_method(name: str, method: Method) -> None:
    """ValueError where a method needs more than one mean of the updates."""
    instead = 'take another method (flare, fedavg, fednova, ...), or set uplink.air to "fdma"'
    heard = "over the air the base station hears the sum of one vector of each device"
    if method.uplink_models != 1 or method.needs_gradients or method.sends_control:
        raise ValueError(
            f"uplink.air is \"ota\", but the devices of method '{name}' send {method.uplink_models} vectors a round: "
            f"{heard}, and never what a single device sent; {instead}"
        )
    if method.needs_widths:
        raise ValueError(
            f"uplink.air is \"ota\", but the devices of method '{name}' train models of different sizes: {heard}, "
            f"all of one size, and no mean over those that hold a weight; {instead}"
        )
    if not method_takes_mean(method):
        raise ValueError(
            f"uplink.air is \"ota\", but method '{name}' has a reducer of its own, which takes in updates one by one: "
            f"{heard}; let it answer a MeanReducer, {instead}"
        )


def air_link(wireless: WirelessConfig, seen: Observation) -> AirLink:
    """The radio of the devices that are there."""
    fading = None
    if seen.mean_snr_hz is not None:
        fading = Fading(wireless.fading, db_to_linear(wireless.rician_k_db) if wireless.fading == "rician" else 0.0)
    return AirLink(seen.snr_hz, seen.power_w, wireless.total_bandwidth_hz, mean_snr_hz=seen.mean_snr_hz, fading=fading)


def asked(problem: RoundProblem, scheme: AirScheme, link: AirLink, num_weights: int) -> RoundProblem:
    """What a policy is asked where the devices of a problem send over the air."""
    return replace(
        problem,
        payload_bits=np.full(problem.num_devices, PAYLOAD_BITS),
        deadline_s=max(problem.deadline_s - link.air_s(num_weights), _NO_TIME_S),
        never=np.flatnonzero(~scheme.can_send(link, np.ones(link.num_devices))),
    )


def best_schedule(problem: RoundProblem, link: AirLink, noise: float) -> Schedule:
    """The schedule of the devices with the least objective, the noise of the weakest channel counted; see
    `flare.uplink.air.selection`. What it says of P2 is of P2 without the noise, of which nothing is proven."""
    can = np.zeros(problem.num_devices, dtype=bool)
    can[problem.reachable] = True
    best = best_senders(
        link.snr, problem.cost, gamma=problem.gamma, noise=noise, allowed=can, max_devices=problem.max_devices
    )
    others = np.setdiff1d(np.arange(problem.num_devices), best.selected)
    schedule = solve(replace(problem, must=best.selected, never=others), "exact")  # nothing is left to choose
    if len(best.selected) == 0:
        return replace(schedule, problem=problem, policy=BEST)
    return replace(schedule, problem=problem, policy=BEST, lower_bound=float("nan"), status=Status.FEASIBLE)


def why_nobody(config: Config, problem: RoundProblem, air_s: float) -> str:
    """Why nobody sends in a round over the air, in one sentence, and what would help; `problem` is what was `asked`."""
    names = setting_names(config.wireless)
    deadline = f"{names.due} is {human(config.wireless.usable_s, 's')}"
    if problem.reachable.size:
        return (
            f"{problem.reachable.size} of {problem.num_devices} devices could send, but policy "
            f"'{config.scheduling.policy}' chose none of them; take another policy, such as exact"
        )
    if problem.never.size == problem.num_devices:
        return (
            f"air scheme '{config.uplink.air_scheme}' hears none of the {problem.num_devices} devices; it would take "
            "another of its limits (uplink.air_options), more power (wireless.power_dbm) or a narrower band "
            "(wireless.total_bandwidth_hz)"
        )
    quickest_s = float(np.delete(problem.compute_s, problem.never).min())
    return (
        f"the quickest device computes {human(quickest_s, 's')} and an update is {human(air_s, 's')} on the air, "
        f"{deadline}; it would take a later deadline ({names.deadline}), fewer steps or a smaller model"
    )


def air_plan(
    scheme: AirScheme, link: AirLink, problem: RoundProblem, selected: Indices, num_weights: int
) -> AirPlan | None:
    """What the selected devices send; None where nobody does. Each counts the same."""
    if len(selected) == 0:
        return None
    return plan_air(scheme, link.of(selected), num_weights, compute_s=problem.compute_s[selected])


def expected_energy_j(plan: AirPlan) -> Floats:
    """What each sender would radiate if all updates were of one size and of mean zero, shape (senders,)."""
    alike = Moments(np.zeros(plan.num_senders), np.ones(plan.num_senders))
    return plan.precoding(alike).power_w(plan.link, plan.shares, alike) * plan.air_s


@final
class AirMean:
    """The mean of the updates of a round as the antenna hears it; `devices` are its senders, in their order.

    `received` is what became of the updates when it has ended; None before, and where they could not be sent.
    """

    def __init__(self, plan: AirPlan, devices: Indices, key: int) -> None:
        self._heard = plan.hear(key)
        self._place = {device: place for place, device in enumerate(devices.tolist())}
        self._added: list[int] = []
        self._like = torch.zeros(())
        self.received: Received | None = None

    def add(self, vector: Tensor, device: int) -> None:
        """Let a device send its vector, of shape (weights,)."""
        self._heard.add(self._place[device], vector)
        self._added.append(self._place[device])
        self._like = vector

    def end(self) -> Tensor:
        """Their mean with noise; not a number where one of them was not finite, which no amplitude can carry."""
        try:
            self.received = self._heard.end()
        except NotFiniteError:
            return torch.full_like(self._like, torch.nan, dtype=torch.float64)
        return self.received.mean

    def radiated_j(self) -> Floats | None:
        """What each sender radiated, 0 where it did not send, shape (senders,); None where it is not known."""
        if self.received is None:
            return None
        energy_j = np.zeros(len(self._place))
        energy_j[sorted(self._added)] = self.received.energy_j
        return energy_j
