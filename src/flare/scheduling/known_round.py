"""A round with all that is known of its devices, asked of a policy: what `flare schedule` and the studio both do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flare.config.guard import NO_GUARD, Guard
from flare.rng import stream
from flare.scheduling.cells import round_problem
from flare.scheduling.explain import Explanation
from flare.scheduling.hardware import Hardware, hardware_for
from flare.scheduling.nobody import GUARDED, SETTINGS, Advice, Names, why_nobody
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import POLICIES
from flare.scheduling.schedule import Schedule
from flare.scheduling.scheduler import solve
from flare.scheduling.showing import as_dict
from flare.scheduling.table import DeviceTable
from flare.text import did_you_mean
from flare.types import Floats
from flare.wireless.cell import CellRound
from flare.wireless.rate import upload_energy_j

NO_HARDWARE = (
    "goes by speeds and powers of devices or sets them, and the table does not say what they have; give it the columns "
    "cpu_hz, cycles_per_sample and power_dbm"
)

_MAX_SEARCHED = 1000  # devices among which the name that was meant is looked for


@dataclass(frozen=True)
class KnownRound:
    """A problem and what is known of its devices beside it; arrays of shape (devices,), None where it is not known."""

    problem: RoundProblem
    names: list[str]
    distance_m: Floats | None
    angle_rad: Floats | None
    power_w: Floats | None
    compute_energy_j: Floats | None
    cpu_hz: Floats | None
    capacitance: float
    guard: Guard = NO_GUARD  # left free of the deadline: that of the problem is what remains

    @property
    def knows_hardware(self) -> bool:
        """Whether it is known what the devices compute and send with."""
        return self.cpu_hz is not None and self.power_w is not None

    def hardware_for(self, policy: str) -> Hardware | None:
        """What the devices have, where the policy has to know it; ValueError where the table does not say."""
        if not POLICIES.find(policy).needs_hardware:
            return None
        if self.cpu_hz is None or self.power_w is None:
            raise ValueError(f"policy '{policy}' {NO_HARDWARE}")
        return hardware_for(self.problem.compute_s, self.cpu_hz, self.power_w, self.capacitance)

    def ask(self, policy: str, options: dict[str, Any], *, seed: int, index: int) -> Schedule:
        """The schedule of a policy, which draws as it does in round `index` of a run with this seed."""
        hardware = self.hardware_for(policy)
        rng = stream(seed, "policy", policy, index) if POLICIES[policy].draws else None
        return solve(self.problem, policy, rng=rng, hardware=hardware, **options)

    def energy_j(self, answer: Schedule, detail: Explanation) -> Floats:
        """Energy of computing and sending of each device that sends; nan where it does not, or is not known."""
        if self.power_w is None or self.compute_energy_j is None:
            return np.full(len(self.names), np.nan)
        computing_j = answer.compute_energy_j(self.compute_energy_j)
        return computing_j + upload_energy_j(answer.sending_power_w(self.power_w), detail.upload_s)

    def as_dict(self, answer: Schedule, detail: Explanation) -> dict[str, Any]:
        """`Schedule.to_dict` with the energy of each device and the guard: what `flare schedule --json` prints."""
        whole = as_dict(answer, self.names, detail)
        for device, energy in zip(whole["devices"], self.energy_j(answer, detail).tolist(), strict=True):
            device["energy_j"] = energy if math.isfinite(energy) else None
        if not answer.num_selected:
            whole["why_nobody"] = self.why_nobody(answer)
        return whole | {"guard_s": self.guard_s}

    @property
    def guard_s(self) -> float:
        """What is left free of the deadline."""
        return self.guard.deadline_s(self.problem.deadline_s) - self.problem.deadline_s

    def why_nobody(self, answer: Schedule, names: Names = SETTINGS) -> str:
        """Why nobody sends, in one sentence, and what would help."""
        names = replace(names, due=GUARDED.due) if self.guard else names
        return why_nobody(answer.problem, answer.policy, names, self.names, Advice(self.guard))


def devices_named(asked: Sequence[str], names: Sequence[str], where: str) -> list[int]:
    """The numbers of devices that are listed by name, or by number (of the row, from 0) where none has it as its name.
    ValueError, which begins with `where`, for one that there is not, and for one that is listed twice."""
    place = {str(device): device for device in range(len(names))} | {name: at for at, name in enumerate(names)}
    for one in asked:
        if one not in place:
            some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            hint = did_you_mean(one, names) if len(names) <= _MAX_SEARCHED else "."
            raise ValueError(f"{where}: there is no device {one!r:.80}{hint} The devices are {some:.200}")
    devices = [place[one] for one in asked]
    twice = [name for at, name in enumerate(asked) if devices[at] in devices[:at]]
    if twice:
        raise ValueError(f"{where}: device {twice[0]!r:.80} is listed twice; list it once")
    return devices


def with_bound(answer: Schedule, bound: float, asked: RoundProblem) -> Schedule:
    """The answer of a policy that proves nothing, with a bound that another proved of the round that was asked; as it
    is where the policy proves its own, or has set another deadline."""
    if math.isnan(answer.lower_bound) and answer.problem.deadline_s == asked.deadline_s:
        return replace(answer, lower_bound=bound)
    return answer


def known_from_cell(drawn: CellRound, gamma: float) -> KnownRound:
    """The round that a cell drew."""
    return KnownRound(
        problem=round_problem(drawn, gamma=gamma),
        names=[str(device) for device in range(len(drawn.tau))],
        distance_m=drawn.distance_m,
        angle_rad=drawn.angle_rad,
        power_w=drawn.power_w,
        compute_energy_j=drawn.compute_energy_j,
        cpu_hz=drawn.cpu_hz,
        capacitance=drawn.config.capacitance,
        guard=Guard.of(drawn.config.guard),
    )


def known_from_table(
    table: DeviceTable, problem: RoundProblem, capacitance: float, guard: Guard = NO_GUARD
) -> KnownRound:
    """The round of the devices of a table; `guard`: with which the problem was made of it."""
    return KnownRound(
        problem=problem,
        names=table.names,
        distance_m=table.distance_m,
        angle_rad=None,
        power_w=table.power_w,
        compute_energy_j=table.compute_energy_j,
        cpu_hz=table.cpu_hz,
        capacitance=capacitance,
        guard=guard,
    )
