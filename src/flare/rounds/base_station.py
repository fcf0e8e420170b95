"""What stays the same over all rounds of a run."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flare.config import BROADCAST, NO_BROADCAST, PLAIN, Config
from flare.learning.flat import update_bits
from flare.learning.methods import Method, make_method
from flare.learning.methods.base import method_takes_mean
from flare.rounds.air import air_scheme_of
from flare.rounds.asynchrony import is_asynchronous, refuse_asynchrony
from flare.rounds.privacy import refuse_unshared
from flare.rounds.robust import NONE, clip_of, most_held, refuse_robust
from flare.rounds.sketch import Sketches
from flare.scheduling import POLICIES, checks
from flare.theory.conditions import safe_tau_bar
from flare.types import Floats
from flare.uplink import CODECS, Codec, Qsgd, make_codec
from flare.uplink.air import AirScheme
from flare.uplink.registry import try_own

CHOICES_OF_BITS = (2, 3, 4, 6, 8, 16)
"""Bits a weight among which is chosen with the schedule."""


@dataclass(frozen=True, eq=False)
class BaseStation:
    """The settings of a run and what follows from them for every round, simulated or real.

    `smoothness` is L, where a setting goes by it and somebody could estimate it; `air` how updates are added over the
    air, None where each device has its own part of the band. `codec` is that of all devices; where it is chosen for
    each device with the schedule, it is one of `codecs`, which is empty otherwise. `fleet`: its devices are real nodes.
    ValueError where codec or air
    cannot be, or the policy does not go with them or the method; of a run that is only read the policy may be one that
    is not known here (its plugin is not given), and nothing is said of it.
    """

    config: Config
    method: Method
    num_weights: int
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    smoothness: float | None = None
    fleet: bool = False
    codec: Codec = field(init=False)
    codecs: tuple[Qsgd, ...] = field(init=False)
    air: AirScheme | None = field(init=False)
    downlink_codec: Codec = field(init=False)

    def __post_init__(self) -> None:
        policy = POLICIES.get(self.config.scheduling.policy)
        if policy is not None and policy.weighs:
            refuse_weighing(self.config, self.method)
        refuse_asynchrony(self.config, self.method)
        refuse_robust(self.config, self.method, num_weights=self.num_weights)
        object.__setattr__(self, "air", air_scheme_of(self.config, self.method))
        object.__setattr__(self, "codec", codec_of(self.config, self.method))
        object.__setattr__(self, "codecs", _choices(self.config))
        object.__setattr__(self, "downlink_codec", downlink_codec_of(self.config, self.method))
        try_own(self.config.uplink.codec, self.codec, self.num_weights)
        try_own(self.config.wireless.downlink_codec, self.downlink_codec, self.num_weights)

    def with_deadline(self, deadline_s: float) -> BaseStation:
        """The same with another deadline, for one round."""
        if deadline_s == self.config.wireless.deadline_s:
            return self
        _ = self.sketches  # made once, for all rounds: the copy has it then
        wireless = replace(self.config.wireless, deadline_s=deadline_s)
        changed = copy.copy(self)
        object.__setattr__(changed, "config", replace(self.config, wireless=wireless))
        return changed

    @property
    def codes(self) -> bool:
        """Whether what devices send is coded; otherwise it arrives as it is."""
        return self.config.uplink.codec != PLAIN

    @property
    def payload_bits(self) -> float:
        """S: what a device sends in a round, with the control variates or gradients that its method adds; to the bit
        what the codec makes of them."""
        return self.payload_of(self.num_weights)

    def payload_of(self, num_weights: int) -> float:
        """What a device sends in a round whose model has so many weights."""
        if self.codes:  # where it is chosen, that of the shortest messages
            shortest = self.codecs[0] if self.codecs else self.codec
            return float(self.method.uplink_models * shortest.checked_bits(num_weights))
        return self.method.uplink_models * self._plain_bits(num_weights)

    @property
    def broadcasts(self) -> bool:
        """Whether the time counts in which devices are sent the model."""
        return self.config.wireless.downlink == BROADCAST

    @property
    def codes_broadcast(self) -> bool:
        """Whether what the base station sends is coded; otherwise it arrives as it is."""
        return self.config.wireless.downlink_codec != PLAIN

    @property
    def downlink_bits(self) -> float:
        """What the base station broadcasts in a round, with the control variate or mean gradient that the method adds;
        to the bit what the codec makes of them. 0 where that does not count."""
        if not self.broadcasts:
            return 0.0
        if self.codes_broadcast:
            return float(self.method.downlink_models * self.downlink_codec.checked_bits(self.num_weights))
        return self.method.downlink_models * self._plain_bits(self.num_weights)

    @property
    def gradient_bits(self) -> float:
        """What a gradient takes that a device is asked for before the selection: it is not coded."""
        return self._plain_bits(self.num_weights)

    def _plain_bits(self, num_weights: int) -> float:
        """The length of so many weights, all of the model or a part of it, that are not coded."""
        if self.config.run.payload == "model":
            return float(update_bits(num_weights))
        return self.config.wireless.payload_bits * (num_weights / self.num_weights)

    @cached_property
    def sketches(self) -> Sketches | None:
        """Makes the sketch that is kept of what was last heard of each device; None where the policy wants none."""
        scheduling = self.config.scheduling
        wanted = POLICIES.find(scheduling.policy).wants_sketches(scheduling.options)
        return Sketches(self.config.seed) if wanted else None

    @property
    def max_devices(self) -> int | None:
        """How many devices may send in a round at most; None: as many as fit. An option of every policy, a limit of
        some methods, and of a reducer that holds all updates: the smallest counts."""
        held = None if self.config.learning.robust == NONE else self.max_held
        limits = (checks.limit(self.config.scheduling.options.get("max_devices")), self.method.max_devices, held)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def max_held(self) -> int:
        """How many updates may be held at once, where that is needed; 1 at least."""
        return max(1, most_held(self.config.learning, self.num_weights))

    @property
    def clip(self) -> float:
        """The multiple of the typical length from which updates are clipped; 0: none is."""
        return clip_of(self.config, fleet=self.fleet)

    @property
    def asynchronous(self) -> bool:
        """Whether devices compute across rounds."""
        return is_asynchronous(self.config, self.method)

    @property
    def periodic(self) -> bool:
        """Whether a round lasts until its deadline, also where everybody has sent before."""
        return POLICIES.find(self.config.scheduling.policy).periodic

    def gamma(self, tau: Floats) -> float:
        """The weight of participation in a round: as set, eta_g / L, or eta_g / (L eta_l tau_bar).

        The first is the paper's (below Eq. (19)), the second is what makes P2's objective proportional to phi_2 of
        Lemma 1 (docs/errata.md, 12). There tau_bar is the most that it can be: that of all devices that are there,
        whose steps `tau` has, since the selected are not known yet. ValueError where L is zero.
        """
        gamma = self.config.scheduling.gamma
        if not isinstance(gamma, str):
            return gamma
        if not self.smoothness:
            raise ValueError(
                f'scheduling.gamma is "{gamma}", but the loss has no curvature at the start weights (L = 0); set gamma '
                "to a number"
            )
        participation = self.config.learning.global_lr / self.smoothness
        if gamma == "auto":
            return participation
        tau_bar = min(float(tau.max()), self.tau_bar_limit)
        return participation / (self.config.learning.local_lr * tau_bar)

    @property
    def tau_bar_limit(self) -> float:
        """The greatest tau_bar of a round: under `safe` what the condition on the step size allows, else any."""
        if not self.method.needs_smoothness or self.smoothness is None:
            return math.inf
        return safe_tau_bar(self.smoothness, self.config.learning.local_lr)


HORIZON, NUM_ENTRIES = "horizon", "num_entries"
"""Options by which a policy plans over the rounds of a run, and knows how many entries an update has."""


def policy_options(config: Config, num_weights: int | None = None) -> dict[str, Any]:
    """The options of the policy in the settings; ValueError for one that it does not have, and where devices do not
    tell what it needs. An option `horizon` that is none is the number of rounds of the run: where it ends by the clock,
    those that it has time for if each lasts until its deadline less the guard, and no broadcast goes before. An option
    `num_entries` that is none is that of the model where updates are coded, so that their payload does not tell it."""
    given: dict[str, Any] = dict(config.scheduling.options)
    policy = POLICIES.find(config.scheduling.policy)
    policy.check_options(given)
    refuse_unshared([config])
    if HORIZON in policy.options and policy.filled(given)[HORIZON] is None:
        given[HORIZON] = _planned_rounds(config)
    coded = num_weights is not None and config.uplink.codec != PLAIN
    if coded and NUM_ENTRIES in policy.options and policy.filled(given)[NUM_ENTRIES] is None:
        given[NUM_ENTRIES] = num_weights
    return given


def _planned_rounds(config: Config) -> int:
    rounds, seconds = config.run.rounds, config.run.seconds
    if seconds <= 0.0:
        return rounds
    in_time = min(seconds / config.wireless.usable_s, rounds)
    return max(1, math.ceil(in_time * (1.0 - 1e-12)))  # 2.1 / 0.7 is a little more than 3 in floating point


def refuse_weighing(config: Config, method: Method) -> None:
    """ValueError where the updates of a policy are to be weighed, and the method takes no mean of them."""
    if not method_takes_mean(method):
        raise ValueError(
            f"policy '{config.scheduling.policy}' says how much each update counts, but method "
            f"'{config.learning.method}' has a reducer of its own, which takes no mean of the updates that could be "
            "weighed; take another method (flare, fedavg, fednova, ...) or another policy"
        )


def codec_of(config: Config, method: Method | None = None) -> Codec:
    """The codec of the settings, for their method; ValueError says which of them do not go together."""
    uplink = config.uplink
    _refuse_foreign_options(uplink.codec, uplink.given)
    method = method or make_method(config.learning)
    if method.needs_codec not in ("", uplink.codec):
        raise ValueError(
            f"learning.method is '{config.learning.method}', whose updates are sent with codec '{method.needs_codec}', "
            f'but uplink.codec is "{uplink.codec}"; set it to "{method.needs_codec}"'
        )
    if uplink.bits == "auto" and config.scheduling.policy != "exact":
        raise ValueError(
            f"uplink.bits is \"auto\": bits are chosen with the schedule, which policy '{config.scheduling.policy}' "
            'cannot do; set scheduling.policy to "exact", or uplink.bits to a number from 2 to 16'
        )
    if uplink.bits == "auto" and method.needs_widths:
        raise ValueError(
            f"uplink.bits is \"auto\", but the devices of method '{config.learning.method}' send models of different "
            "sizes, and bits are chosen for updates of one size; set uplink.bits to a number from 2 to 16"
        )
    codec = make_codec(uplink.codec, _without_auto(uplink.given))
    if uplink.bits == "auto" and not isinstance(codec, Qsgd):
        raise ValueError(
            f"uplink.bits is \"auto\", but what codec '{uplink.codec}' loses with fewer bits is not known; take codec "
            '"qsgd", or set uplink.bits to a number'
        )
    if uplink.codec != PLAIN:
        _refuse_codec(config, "uplink.codec", uplink.codec, method, method.uplink_models)
    return codec


def downlink_codec_of(config: Config, method: Method | None = None) -> Codec:
    """The codec of the broadcast, for the method of the settings; ValueError says what does not go together."""
    wireless = config.wireless
    name, given = wireless.downlink_codec, wireless.downlink_options
    if wireless.downlink == NO_BROADCAST and (name != PLAIN or given):
        what = f'wireless.downlink_codec is "{name}"' if name != PLAIN else "wireless.downlink_options are given"
        raise ValueError(
            f'{what}, but wireless.downlink is "{NO_BROADCAST}", so that nothing is broadcast; set wireless.downlink '
            f'to "{BROADCAST}", or leave it out'
        )
    kind = CODECS.find(name)
    codec = make_codec(name, given)
    if codec.error_feedback:
        others = ", ".join(each for each in CODECS if not _has_error_feedback(each))
        off = "wireless.downlink_options.error_feedback = false" if "error_feedback" in kind.options else ""
        raise ValueError(
            f'wireless.downlink_codec is "{kind.name}", a codec with error feedback: it makes up for what it lost in '
            "what the same device is sent next, and a broadcast goes to others every round; "
            f"{f'set {off}, or ' if off else ''}take one without: {others}"
        )
    if name != PLAIN:
        method = method or make_method(config.learning)
        _refuse_codec(config, "wireless.downlink_codec", name, method, method.downlink_models)
    return codec


def _has_error_feedback(name: str) -> bool:
    return bool(getattr(CODECS[name].make, "error_feedback", False))


def _refuse_codec(config: Config, setting: str, name: str, method: Method, vectors: int) -> None:
    """ValueError where a codec goes together neither with the payload nor with the `vectors` of the method."""
    if config.run.payload == "wireless":
        raise ValueError(
            f"run.payload is \"wireless\", but with codec '{name}' the clock is charged what is really sent; "
            f'set run.payload to "model", or {setting} to "{PLAIN}"'
        )
    told = 1 + method.needs_gradients + method.sends_control
    if vectors != told:
        way = "is sent" if setting.startswith("wireless") else "sends"
        raise ValueError(
            f"method '{config.learning.method}' {way} {vectors} vectors a round and says what "
            f"{told} of them are: codec '{name}' cannot code the others. Let it say so (needs_gradients, "
            f'sends_control), or take {setting} = "{PLAIN}"'
        )


def _without_auto(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if (name, value) != ("bits", "auto")}


def _choices(config: Config) -> tuple[Qsgd, ...]:
    """The codecs among which the base station chooses for each device, shortest messages first; none: all are alike."""
    if config.uplink.bits != "auto":
        return ()
    codec = make_codec(config.uplink.codec, _without_auto(config.uplink.given))
    assert isinstance(codec, Qsgd)
    return tuple(replace(codec, bits_per_weight=bits) for bits in CHOICES_OF_BITS)


def _refuse_foreign_options(name: str, given: Mapping[str, Any]) -> None:
    """ValueError where uplink.bits or uplink.share is given to a codec that has no such option."""
    known = CODECS.find(name).options
    for option in ("bits", "share"):
        if option in given and option not in known:
            having = ", ".join(each for each, kind in CODECS.items() if option in kind.options)
            raise ValueError(
                f"uplink.{option} is {given[option]}, but codec '{name}' has no such option (its options: "
                f"{', '.join(known) or 'none'}); leave it out, or take a codec that has it: {having}"
            )
