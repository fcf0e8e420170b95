"""Policies by name.

A policy is a function from a problem to the devices that shall send:

    @policy("strongest")
    def strongest(problem):
        best_first = np.argsort(-problem.snr_hz)
        return admit(problem, best_first)

or to one number for each device, its utility: how much it is worth that the device sends. Then the devices of the
greatest total utility that fit the band are chosen for it, proven best:

    @policy("longest-wait")
    def longest_wait(problem, *, history):
        return np.minimum(history.rounds_since_sent, 1000.0)

Whole numbers are devices, numbers with a fraction (an array of floats) are utilities. Devices whose utility is 0 or
less never send, unless they have to.

What the round asks for holds for every policy: the devices of `problem.must` are in its answer, those of
`problem.never` are not, and there are at most `problem.max_devices`. `flare.scheduling.admit` sees to that, and so does
`solve` where a policy gives utilities; an answer that breaks it is refused.

Beside the problem a policy may take, by these names:

    history   what the base station has learned of each device so far (`flare.scheduling.History`)
    rng       a random generator, the policy's own stream of this round
    hardware  processors and radios of the devices (`flare.scheduling.Hardware`), for a policy that sets their speeds
              and powers; where nobody knows them, it is refused
    memory    what the policy itself put into `Choice.memory` in the round before: a dict of arrays of any shape and
              number type, `{}` in the first round
    probed    what devices answered when they were asked before the selection (`flare.scheduling.Probed`)
    others    options, each with a default value, which the caller of `solve` sets by keyword

An array of the memory whose name begins with "device_" has one entry for each device of the round: where devices come
and go, as in a real fleet, each takes its entry along, and a newcomer gets one that stands in the middle. Other arrays
are handed on as they are.

A policy whose decorator names a function as `probe` has it ask devices first, and takes what they answer as `probed`;
the run pays for it (`flare.scheduling.probe`). One that goes by what devices tell beside their updates says so with
`needs`; it is refused unless the user lets them:

    @policy("loudest", probe=everybody, needs=("norms",))
    def loudest(problem, *, probed):
        return admit(problem, np.argsort(-probed.norm))

Where the devices or utilities are not all that a policy has to say, it returns a `Choice`. Checking the deadline and
computing the objective are not its business: `solve` does that the same way for all. So it does with dividing the band,
unless the policy does it itself (`Choice.bandwidth_hz`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import ArrayLike, NDArray

from flare.config.declared import Interface
from flare.config.option import Option
from flare.registry import Registry, first_line
from flare.scheduling.probe import ProbeFunction

Memory = dict[str, NDArray[Any]]
"""What a policy hands to its own next round: arrays by name; empty where it remembers nothing."""
OF_DEVICES = "device_"
"""How the name of an array of a memory begins that has one entry for each device."""


@dataclass(frozen=True)
class Choice:
    """What a policy answers when the devices, or their utilities, are not all it has to say.

    Give either `selected`, the indices of the devices, or `utility`, one number for each device. Beside `selected`,
    `lower_bound` is a proven bound on P2's objective, and `proven` says that it is reached. `memory` is handed to the
    policy's next round.

    Beside `selected` a policy may say, with one number for each of these devices in their order,

    weights     how much the update of each counts: the new model is w + eta_g sum_i weights_i update_i, where without
                them it is w + eta_g times the mean. With `keep_total` those that arrive count for those that do not,
                so that the weights add up to the same
    error_rate  the probability that its update is lost on the way: it has computed and sent in vain then

    and likewise `bandwidth_hz`, where the policy divides the band itself; `snr_hz`, at most that of the problem, where
    there is interference on its part of the band; `cpu_hz` and `power_w`, the speed and power that a device is to use,
    at most those it has (`hardware`). `deadline_s` is when the round ends, earlier or later than the problem asks for.
    `solve` checks that all finish by then; times, rates and energies follow from what was set.

    `pilot_s`, `pilot_j` and `pilot_bits` are time, energy and bits sent (of all devices together) that the policy's own
    trials took, for which the run pays before this round begins.
    """

    selected: ArrayLike = ()
    lower_bound: float = math.nan
    proven: bool = False
    memory: Mapping[str, ArrayLike] = field(default_factory=dict)
    utility: ArrayLike | None = None
    weights: ArrayLike | None = None
    keep_total: bool = False
    error_rate: ArrayLike | None = None
    bandwidth_hz: ArrayLike | None = None
    snr_hz: ArrayLike | None = None
    cpu_hz: ArrayLike | None = None
    power_w: ArrayLike | None = None
    deadline_s: float | None = None
    pilot_s: float = 0.0
    pilot_j: float = 0.0
    pilot_bits: float = 0.0


PolicyFunction = Callable[..., "ArrayLike | Choice"]
HANDED = ("rng", "memory", "history", "hardware", "probed")
INTERFACE = Interface("policy", ("problem",), HANDED, ("problem", "policy", "max_devices"))
TOLD = {
    "losses": "training losses",
    "norms": "lengths of the gradients of devices that do not send",
    "gradients": "gradients of devices that do not send",
    "labels": "numbers of samples of each label",
}
"""What devices may tell beside their updates, if the user lets them: the word that `needs` takes, and what it means."""
Needs = tuple[str, ...] | Callable[[Mapping[str, Any]], tuple[str, ...]]
"""Words of `TOLD`, or a function from the options of the policy, by name, to such words."""
ByOptions = Callable[[Mapping[str, Any]], bool]
"""Whether something holds with the options of the policy, by name."""
MAX_DEVICES = Option("max_devices", None, (int,), "how many devices may send at most")
"""What every policy can be given beside its own options: `RoundProblem.max_devices`."""


@dataclass(frozen=True)
class Policy:
    """A registered policy: its function, its name, what it takes, how it divides the band and what it goes by."""

    name: str
    function: PolicyFunction
    split_evenly: bool
    by_objective: bool
    summary: str
    takes: frozenset[str]
    options: dict[str, Option]
    own_deadline: bool = False
    asynchronous: bool = False
    periodic: bool = False
    needs: Needs = ()
    probe: ProbeFunction | None = None
    asks: ByOptions | None = None
    sketches: bool | ByOptions = False
    by_updates: bool | ByOptions = False
    weighs: bool = False

    @property
    def draws(self) -> bool:
        """Whether the policy draws random numbers."""
        return "rng" in self.takes

    @property
    def remembers(self) -> bool:
        """Whether the policy hands a memory from round to round."""
        return "memory" in self.takes

    @property
    def learns(self) -> bool:
        """Whether the policy looks at what the rounds before have shown of the devices."""
        return "history" in self.takes

    @property
    def needs_hardware(self) -> bool:
        """Whether the policy has to know the processors and radios of the devices, whose speeds and powers it sets."""
        return "hardware" in self.takes

    def needed(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """What devices have to tell for it, beside their updates, with the given options: words of `TOLD`."""
        return _checked_words(self.name, self.needs(self.filled(given))) if callable(self.needs) else self.needs

    def probes(self, given: Mapping[str, Any]) -> bool:
        """Whether it may ask devices before it selects, with the given options."""
        return self.probe is not None and (self.asks is None or self.asks(self.filled(given)))

    def wants_sketches(self, given: Mapping[str, Any]) -> bool:
        """Whether it goes by `history.sketch`, with the given options."""
        return self.sketches(self.filled(given)) if callable(self.sketches) else self.sketches

    def goes_by_updates(self, given: Mapping[str, Any]) -> bool:
        """Whether it goes by what single updates were like, with the given options."""
        return self.by_updates(self.filled(given)) if callable(self.by_updates) else self.by_updates

    def filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options of its own: as given, or as they are by default."""
        return {name: given.get(name, option.default) for name, option in self.options.items()}

    def check_options(self, given: Mapping[str, Any]) -> None:
        """ValueError where a given option is none of this policy's, or is not of its type. `max_devices` is the
        problem's, which checks it."""
        own = {name: value for name, value in given.items() if name != MAX_DEVICES.name}
        INTERFACE.checked(self.name, self.options, own)

    @property
    def settable(self) -> dict[str, Option]:
        """The options that can be set with this policy."""
        return {MAX_DEVICES.name: MAX_DEVICES} | self.options


POLICIES: Registry[Policy] = Registry("policy", "policies")
"""Every registered policy by name, in the order of registration."""


def policy(
    name: str,
    *,
    split_evenly: bool = False,
    by_objective: bool = False,
    own_deadline: bool = False,
    asynchronous: bool = False,
    periodic: bool = False,
    needs: Needs = (),
    probe: ProbeFunction | None = None,
    asks: ByOptions | None = None,
    sketches: bool | ByOptions = False,
    by_updates: bool | ByOptions | None = None,
    weighs: bool = False,
) -> Callable[[PolicyFunction], PolicyFunction]:
    """Register the decorated function as the policy `name`.

    split_evenly    the band is divided evenly, not by P3
    by_objective    the policy leaves a device out because it would worsen P2's objective: the reasons that users read
                    do not say then that the policy passed it over
    own_deadline    the policy itself says when the round ends (`Choice.deadline_s`): it is asked also where devices
                    that must send cannot meet the deadline of the problem
    asynchronous    devices compute across rounds (`flare.rounds.asynchrony`), also where the settings do not say so
    periodic        a round lasts until its deadline, also where everybody has finished before
    needs           what devices have to tell beside their updates: words of `TOLD`, or a function of the policy's
                    options, a dict, that answers them
    probe           whom to ask before the selection, and what (`flare.scheduling.Probe`); None: nobody is asked
    asks            whether `probe` is to ask at all, by the policy's options; None: always
    sketches        whether the base station keeps a sketch of what it last heard of each device, `history.sketch`; or
                    a function of the policy's options that says so
    by_updates      it goes by what single updates were like (`history.update_norm`, `history.sketch`), or a function of
                    its options that says so: refused over the air, where their sum is heard. None: as `sketches`
    weighs          it says how much updates count (`Choice.weights`), if only in some rounds: refused at the start of a
                    run that cannot weigh them, where one that does not declare it is refused when it does
    """
    POLICIES.refuse_bare(name, "flare.policy")

    def register(function: PolicyFunction) -> PolicyFunction:
        made = Policy(
            name=name,
            function=function,
            split_evenly=split_evenly,
            by_objective=by_objective,
            summary=first_line(function),
            takes=INTERFACE.takes(function),
            options=INTERFACE.options_of(name, function),
            own_deadline=own_deadline,
            asynchronous=asynchronous,
            periodic=periodic,
            needs=_checked_needs(name, needs),
            probe=_checked_probe(name, probe, INTERFACE.options_of(name, function)),
            asks=asks,
            sketches=sketches,
            by_updates=sketches if by_updates is None else by_updates,
            weighs=weighs,
        )
        POLICIES.add(made, function)
        return function

    return register


def _checked_probe(name: str, probe: ProbeFunction | None, options: Mapping[str, Option]) -> ProbeFunction | None:
    """ValueError where a probe cannot be called with the problem, and by name with what it may take."""
    if probe is None:
        return None
    known = ("history", "rng", *options)
    try:
        wanted = list(inspect.signature(probe).parameters.values())
        inspect.signature(probe).bind(None, **{each.name: None for each in wanted[1:] if each.name in known})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"policy '{name}': its probe cannot be called ({error}); it must be a function of the problem, and by name "
            f"of any of {', '.join(known)}: def ask(problem, *, rng): ..."
        ) from None
    return probe


def _checked_needs(name: str, needs: Needs) -> Needs:
    """ValueError where a policy needs what devices cannot tell."""
    return needs if callable(needs) else _checked_words(name, needs)


def _checked_words(name: str, needs: object) -> tuple[str, ...]:
    """Words of `TOLD`; a single one may stand by itself."""
    words = tuple(needs) if isinstance(needs, Collection) and not isinstance(needs, str) else (needs,)
    unknown = [word for word in words if not isinstance(word, str) or word not in TOLD]
    if unknown:
        raise ValueError(f"policy '{name}' needs {unknown[0]!r:.40}; devices can tell {', '.join(TOLD)}")
    return tuple(map(str, words))
