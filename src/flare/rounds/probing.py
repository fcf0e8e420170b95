"""What a policy asks devices before it selects, and what that costs, in a round of a run.

Before the deadline of the round begins, one after the other:

    broadcast   the model reaches all that are asked, at the rate of the weakest, where broadcasts count
    computing   each device goes through the samples that it is asked about: a gradient costs what a training step on as
                many samples costs, a loss a third of it, as it takes the forward pass alone
    answer      32 bits, or the whole gradient where the policy wants distances between them; each of those asked has an
                even share of the band, and the slowest ends the probe

A device that has heard the model with the question need not be sent it again: where all of the selected have, the
broadcast of the round has only what the method adds to the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from flare.rng import stream
from flare.rounds.air import BEST
from flare.rounds.base_station import BaseStation
from flare.rounds.observation import Observation
from flare.rounds.privacy import SETTINGS, shared
from flare.scheduling import POLICIES, History, Probe, Probed, RoundProblem
from flare.scheduling.probe import BATCH, LOSS, asked_by
from flare.types import Floats, Indices
from flare.wireless.compute import time_and_energy
from flare.wireless.rate import broadcast_s, upload_energy_j, upload_s

FORWARD_SHARE = 1.0 / 3.0
"""What the forward pass costs of a forward and a backward pass."""
ANSWER_BITS = 32.0
"""What a device sends that answers with a number."""


@dataclass(frozen=True, eq=False)
class Question:
    """A probe in a round of a run: whom it is put to, how long it takes, and what it costs each of them."""

    seen: Observation
    known: tuple[RoundProblem, Floats]  # `problem_of` the devices that are there
    probe: Probe
    broadcast_s: float
    answer_s: float  # from the model's arrival to the last answer
    energy_j: Floats  # (asked,)
    answer_bits: float = 0.0  # of all of them together
    question_bits: float = 0.0  # what the base station broadcasts

    @property
    def devices(self) -> Indices:
        """Those that are asked, counted over all devices."""
        return self.seen.devices[self.probe.devices]

    @property
    def lasts_s(self) -> float:
        """How long it takes."""
        return self.broadcast_s + self.answer_s

    def energy_over_all(self) -> Floats:
        """What it costs each of all devices, shape (devices,)."""
        energy_j = np.zeros(self.seen.num_devices)
        energy_j[self.devices] = self.energy_j
        return energy_j

    def heard_bits(self, station: BaseStation, selected: Indices) -> float:
        """What need not be broadcast to the selected (of those present), since they have heard it with the question."""
        return _model_bits(station) if np.isin(selected, self.probe.devices).all() else 0.0


@dataclass(frozen=True, eq=False)
class Answered:
    """A question, and what the devices answered."""

    question: Question
    probed: Probed


def asks(station: BaseStation) -> bool:
    """Whether the policy of the settings may ask devices; over the air the best set may be chosen without one."""
    if station.air is not None and station.config.uplink.air_senders == BEST:
        return False
    return POLICIES.find(station.config.scheduling.policy).probes(station.policy_options)


def asked(
    station: BaseStation, index: int, seen: Observation, known: tuple[RoundProblem, Floats], history: History
) -> Question | None:
    """What the policy asks in round `index`; `known`, the problem and what training takes, and the history are of the
    devices that are there. ValueError where it asks for what devices do not share, or asks one that never hears or is
    never heard."""
    policy = POLICIES.find(station.config.scheduling.policy)
    assert policy.probe is not None
    rng, options = stream(station.config.seed, "probe", index), policy.filled(station.policy_options)
    probe = asked_by(policy.probe, known[0], history=history, rng=rng, options=options)
    if probe is None:
        return None
    if probe.tells not in shared(station.config.data):
        raise ValueError(
            f"policy '{policy.name}' asks devices for their {probe.tells}, which they keep to themselves; where they "
            f"may tell, set {SETTINGS[probe.tells]} to true"
        )
    question = Question(seen, known, probe, *_price(station, seen, known[0], probe))
    if not math.isfinite(question.lasts_s):
        raise ValueError(
            f"policy '{policy.name}' asks a device that never hears the question, or whose answer never arrives: its "
            "channel is too weak; let it ask only devices of problem.reachable"
        )
    return question


def unanswered(station: BaseStation) -> ValueError:
    """Where a policy asks and there is nobody to answer."""
    return ValueError(
        f"policy '{station.config.scheduling.policy}' asks devices for what they know of the model before it selects, "
        "and here nobody can answer: they are simulated devices that train (flare run)"
    )


def probing_record(question: Question | None) -> dict[str, Any]:
    """What the record of a round says of its probe; nothing where there was none."""
    if question is None:
        return {}
    devices, energy_j = question.devices.tolist(), question.energy_j.tolist()
    return {
        "probed": devices,
        "probe_s": question.lasts_s,
        "probe_energy_j": energy_j,
        "question_bits": question.question_bits,
    }


def _price(
    station: BaseStation, seen: Observation, problem: RoundProblem, probe: Probe
) -> tuple[float, float, Floats, float, float]:
    """How long the broadcast of a probe takes, how long its answers, the energy that these cost each device, and the
    bits of the answers and of the broadcast."""
    wireless, at = station.config.wireless, probe.devices
    passes = FORWARD_SHARE if probe.kind == LOSS else 1.0
    samples = np.full(at.size, float(wireless.batch_size)) if probe.samples == BATCH else seen.num_samples[at]
    steps = passes * samples / wireless.batch_size
    compute_s, compute_j = time_and_energy(
        steps, wireless.cycles_per_sample, wireless.batch_size, seen.cpu_hz[at], wireless.capacitance
    )
    bits = station.gradient_bits if probe.distances else ANSWER_BITS
    sending_s = upload_s(bits, np.asarray(problem.usable_hz / at.size), seen.snr_hz[at])
    energy_j = compute_j + upload_energy_j(seen.power_w[at], sending_s)
    heard_s, heard_bits = 0.0, 0.0
    if station.broadcasts:
        heard_bits = _model_bits(station)
        heard_hz = seen.downlink_snr_hz(wireless)[at]
        heard_s = broadcast_s(heard_bits, wireless.total_bandwidth_hz, heard_hz)
    return heard_s, float((compute_s + sending_s).max()), energy_j, float(bits) * at.size, heard_bits


def _model_bits(station: BaseStation) -> float:
    """What the model alone takes of a broadcast; 0 where broadcasts do not count."""
    return station.downlink_bits / station.method.downlink_models
