"""The answer to a round's question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flare.scheduling.hardware import Hardware
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Memory
from flare.types import Floats, Indices
from flare.wireless.rate import broadcast_s, upload_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Status(Enum):
    """How good a schedule is known to be, by P2's objective, whatever the policy went by.

    OPTIMAL     proven: no set of devices has a smaller objective; `lower_bound == objective`.
    FEASIBLE    meets the deadline on the band; a smaller objective may exist, not below `lower_bound`.
    INFEASIBLE  nobody sends. Either no device can meet the deadline (`lower_bound` is then infinite, a proof), or the
                policy found none that can (a blind draw, say).
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, eq=False)
class Schedule:
    """Who sends this round, on how much bandwidth, when the round ends, and how far that is from the best possible.

    problem         the round that it answers; its deadline is the policy's where that sets its own
    selected        the devices that send, ascending, shape (num_selected,)
    bandwidth_hz    bandwidth of each device, zero where not selected, shape (devices,)
    latency_s       t_r*, when the last device has finished; nan if nobody sends
    objective       P2's objective of the selection; infinite if nobody sends
    lower_bound     a proven bound: no feasible selection has a smaller objective; nan where the policy proves nothing
    status          OPTIMAL, FEASIBLE or INFEASIBLE
    policy          the name of the policy that chose
    split_evenly    whether it divides the band evenly among the senders, not by P3
    band_residual   certificate of P3: |sum of bandwidths - B| / B, at most 1e-9
    finish_spread   certificate of P3: (last finish - first finish) / last, at most 1e-9 (an even split leaves more);
                    what it is with deadlines of devices or whole blocks, `bandwidth.Allocation` says
    utility         under a policy that gives utilities: their sum over the devices that send; nan otherwise
    utility_bound   proven: no devices that fit (and are no more than `max_devices`) have a greater sum; nan where the
                    policy gives no utilities. It equals `utility` where the proof is complete. Only a cell that takes
                    longer than 10 s is left without
    broadcast_s     how long the base station sends the model to the selected devices before they compute; 0 where that
                    is not counted. The deadline and `latency_s` begin after it (`with_broadcast`)
    downlink_bits   what it sends then
    weights         how much the update of each selected device counts, in their order: the new model is
                    w + eta_g sum_i weights_i update_i; None: the mean
    keep_total      where some updates do not arrive, whether the others count for them
    pilot_s         what trials of the policy took before this round began,
    pilot_j         what all devices together spent in them, and
    pilot_bits      what they sent
    error_rate      the probability that the update of each selected device is lost, in their order; None: none is
    memory          what a policy with memory hands to its next round, arrays by name; empty where there is none
    own_division    whether the policy divided the band itself: `finish_spread` is then measured, and promises nothing
    cpu_hz          the speed at which each device computes, where the policy sets it, shape (devices,); None: at its
                    own, as those who are not selected
    power_w         likewise the power that it sends with
    hardware        what the devices have, where the policy sets either

    A policy that gives utilities does not go by P2's objective. `objective` is P2's all the same, `status` is FEASIBLE,
    and `lower_bound` and `gap` are nan, since nothing is proven of P2.
    """

    problem: RoundProblem
    selected: Indices
    bandwidth_hz: Floats
    latency_s: float
    objective: float
    lower_bound: float
    status: Status
    policy: str
    band_residual: float = 0.0
    finish_spread: float = 0.0
    utility: float = math.nan
    utility_bound: float = math.nan
    memory: Memory = field(default_factory=dict)
    split_evenly: bool = False
    broadcast_s: float = 0.0
    downlink_bits: float = 0.0
    weights: Floats | None = None
    keep_total: bool = False
    error_rate: Floats | None = None
    pilot_s: float = 0.0
    pilot_j: float = 0.0
    pilot_bits: float = 0.0
    own_division: bool = False
    cpu_hz: Floats | None = None
    power_w: Floats | None = None
    hardware: Hardware | None = None

    @property
    def num_selected(self) -> int:
        """M_r."""
        return len(self.selected)

    @property
    def gap(self) -> float:
        """How far the objective lies above the proven bound, as a share of the bound; nan where nothing is
        proven or nobody sends."""
        return self.objective / self.lower_bound - 1.0 if math.isfinite(self.objective) else math.nan

    @property
    def round_s(self) -> float:
        """How long the whole round takes, the broadcast and `latency_s`; nan if nobody sends."""
        return self.broadcast_s + self.latency_s

    @cached_property
    def compute_s(self) -> Floats:
        """How long each device computes, or would, at the speed that it is given; shape (devices,)."""
        if self.hardware is None or self.cpu_hz is None:
            return self.problem.compute_s
        return self.problem.compute_s / (self.cpu_hz / self.hardware.cpu_hz)

    @cached_property
    def snr_hz(self) -> Floats:
        """p h^2 / N_0 of each device with the power p that it is given; shape (devices,)."""
        if self.hardware is None or self.power_w is None:
            return self.problem.snr_hz
        return self.problem.snr_hz * (self.power_w / self.hardware.power_w)

    @cached_property
    def upload_s(self) -> Floats:
        """How long each device sends, Eqs. (5) and (6); infinite where it is not selected; shape (devices,)."""
        return upload_s(self.problem.payload_bits, self.bandwidth_hz, self.snr_hz)

    def compute_energy_j(self, at_full_speed_j: Floats) -> Floats:
        """What computing takes at the speeds that devices are given, from what it takes at theirs: in proportion to the
        square of the speed; shape (devices,)."""
        if self.hardware is None or self.cpu_hz is None:
            return at_full_speed_j
        return at_full_speed_j * (self.cpu_hz / self.hardware.cpu_hz) ** 2

    def sending_power_w(self, full_w: Floats) -> Floats:
        """The power that each device sends with, where `full_w` is what it has; shape (devices,)."""
        return full_w if self.power_w is None else self.power_w

    def with_broadcast(self, downlink_bits: float, downlink_snr_hz: Floats) -> Schedule:
        """The schedule of a round that begins with a broadcast of so many bits, at the rate of the weakest selected
        device on the whole band; where nobody sends, nothing is broadcast.

        `downlink_snr_hz` is P_bs h^2 / N_0 of each device, shape (devices,). Who sends, and on how much bandwidth, does
        not depend on it. ValueError where a selected device hears nothing.
        """
        if self.num_selected == 0:
            return self
        lasts_s = time_of_broadcast(downlink_bits, self.problem.total_bandwidth_hz, downlink_snr_hz, self.selected)
        return replace(self, broadcast_s=lasts_s, downlink_bits=float(downlink_bits))

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """All of the schedule as numbers, words, lists and dicts that JSON can hold: the certificate, what was asked,
        and under "devices" one entry for each device, those left out with the reason. What is nan or infinite is None.
        `names` are what to call the devices; without, they are counted from 0. The memory of a policy is left out.
        """
        from flare.scheduling.showing import as_dict  # here, as in the methods below: it knows what a schedule is

        return as_dict(self, names)

    def __repr__(self) -> str:
        from flare.scheduling.showing import schedule_in_a_line

        return schedule_in_a_line(self)

    def _repr_html_(self) -> str:
        from flare.scheduling.showing import schedule_as_html

        return schedule_as_html(self)

    def plot(
        self,
        panel: str = "times",
        *,
        ax: Axes | None = None,
        names: Sequence[str] | None = None,
        distance_m: Floats | None = None,
        angle_rad: Floats | None = None,
    ) -> Axes:
        """Draw one panel in the style that matplotlib is set to, and return its axes (needs matplotlib).

        Parameters
        ----------
        panel : "times" (how long each sender computes and sends), "band" (who gets which part of it) or "cell" (the
            devices from above: who sends, and why the others do not).
        ax : the axes to draw into; None makes a figure.
        names : what to call the devices; without, they are counted from 0.
        distance_m, angle_rad : where the devices stand, for "cell"; without, where the problem says (that of
            `round_problem` does), and where it does not say, they lie by the rank of their channels.
        """
        from flare.scheduling.picture import draw_panel

        return draw_panel(self, panel, ax, names, distance_m, angle_rad)

    def figure(
        self,
        *,
        names: Sequence[str] | None = None,
        distance_m: Floats | None = None,
        angle_rad: Floats | None = None,
    ) -> Figure:
        """All three panels of `plot` in one figure, in the style that matplotlib is set to (needs matplotlib)."""
        from flare.scheduling.picture import schedule_figure

        return schedule_figure(self, names=names, distance_m=distance_m, angle_rad=angle_rad)


def time_of_broadcast(
    downlink_bits: float, total_bandwidth_hz: float, downlink_snr_hz: Floats, receivers: Indices
) -> float:
    """How long it takes to broadcast so many bits to some devices, at the rate of the weakest of them on the whole
    band; 0 where there are none. ValueError where one of them hears nothing."""
    if len(receivers) == 0:
        return 0.0
    lasts_s = broadcast_s(downlink_bits, total_bandwidth_hz, downlink_snr_hz[receivers])
    if not math.isfinite(lasts_s):
        weakest = int(receivers[int(downlink_snr_hz[receivers].argmin())])
        raise ValueError(
            f"the broadcast would never reach device {weakest}: the base station sends with too little power "
            "(wireless.downlink_power_dbm) for its channel"
        )
    return lasts_s
