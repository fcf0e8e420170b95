"""Chen: one resource block for each sender, so that as many samples as can be arrive in spite of packet errors.

Chen, Yang, Saad, Yin, Poor, Cui, "A Joint Learning and Communications Framework for Federated Learning over Wireless
Networks", IEEE Trans. Wireless Commun. 2021 (arXiv 1909.07972). Every sender has one of R blocks of width B_u, with
interference I_k on block k. The update of device i is one packet, which is lost with the probability

    e_ik  =  E_h [1 - exp(-m (I_k + B_u N_0) / (P_i h_i))],      m = 0.023 dB, the waterfall threshold

and what is lost is left out of the mean, in which a device counts by its samples n_i. Their bound on the loss asks for

    min  sum_i n_i (1 - a_i + a_i e_i),                          a_i: i sends; e_i that of its block

so that each device goes to at most one block, each block to at most one device, at the cost n_i (e_ik - 1) where i
meets the limits on delay and energy on block k, and 0 where it does not: an assignment (Hungarian algorithm).

Rayleigh fading: h_i is exponentially distributed around its mean. With x = m (I_k + B_u N_0) / (P_i mean h_i),

    e_ik  =  1 - integral_0^inf exp(-h - x / h) dh  =  1 - 2 sqrt(x) K_1(2 sqrt(x)),      K_1 a Bessel function

P h / N_0 is `problem.snr_hz`, R `num_blocks`, m `waterfall_db`, the delay limit the round's deadline (or the device's
own), the energy limit `max_energy_j` for computing and sending.

Decided here. The channel of the round, which is known, is taken for the mean around which h fades while the packet is
sent (`fading` "none": it does not fade, and e = 1 - exp(-x)). Rates are those of the cell at that channel, with the
interference: B_u log2(1 + P h / (I_k + B_u N_0)); they set times and energies. I_k is drawn anew every round, as of one
interferer whose channel fades: exponential around `interference` times the noise of a block; the base station measures
it. Where the round has blocks (`wireless.block_hz`), each sender gets one of those. The start powers are the devices'
own: the paper's P_i is the one that just meets the energy limit. Devices that must send are assigned first; where at
most `max_devices` may, the other blocks stay empty.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.config.option import Limits
from flare.scheduling.hardware import Hardware
from flare.scheduling.history import History
from flare.scheduling.orders import canonical
from flare.scheduling.problem import BAND_TOLERANCE, RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.scheduling.systems.known import samples
from flare.types import Floats, Indices
from flare.units import db_to_linear
from flare.wireless.rate import upload_s

DEFAULT_BLOCKS = 10
RAYLEIGH, NONE = "rayleigh", "none"
Blocks = Annotated[
    int | None,
    f"how many resource blocks the band has; none: those of the round, or {DEFAULT_BLOCKS}",
    Limits(at_least=1.0, finite=False),
]
Interference = Annotated[
    float, "mean interference on a block, as a multiple of the noise there; 0: none", Limits(at_least=0.0)
]
Waterfall = Annotated[float, "waterfall threshold of the packet error rate in dB"]
Energy = Annotated[float | None, "joules that a device may spend in a round; none: any", Limits(above=0.0)]
Fades = Annotated[
    str, "whether the channel fades around that of the round while a packet is sent", Limits((RAYLEIGH, NONE))
]


@policy("chen")
def chen(
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    hardware: Hardware,
    num_blocks: Blocks = None,
    interference: Interference = 1.0,
    waterfall_db: Waterfall = 0.023,
    max_energy_j: Energy = None,
    fading: Fades = RAYLEIGH,
) -> Choice:
    """Chen: a resource block for each sender, assigned so that the most samples arrive in spite of packet errors."""
    number, block_hz = blocks_of(problem, num_blocks)
    noise_hz = block_hz * (1.0 + interference * rng.exponential(size=number))  # (I_k + B_u N_0) / N_0
    error = packet_error(db_to_linear(waterfall_db) * noise_hz / problem.snr_hz[:, None], fading)
    # On a block with interference a device is as on one without, with a channel that is so much weaker.
    left_hz = problem.snr_hz[:, None] * (block_hz / noise_hz)
    sending_s = upload_s(problem.payload_bits[:, None], np.full_like(left_hz, block_hz), left_hz)
    allowed = _in_time(problem, sending_s)
    if max_energy_j is not None:
        spent_j = hardware.compute_energy_j[:, None] + hardware.power_w[:, None] * sending_s
        allowed &= spent_j <= max_energy_j
    allowed[problem.never] = False
    held = samples(history)
    order = canonical(problem, held)
    worth = held[:, None] * (1.0 - error) * allowed
    at, block = assigned(worth[order], np.isin(order, problem.must), problem.device_limit)
    devices = order[at]
    if np.setdiff1d(problem.must, devices).size:
        return Choice()
    return Choice(
        devices,
        bandwidth_hz=np.full(len(devices), block_hz),
        snr_hz=left_hz[devices, block],
        error_rate=error[devices, block],
        weights=_by_samples(held[devices]),
        keep_total=len(np.unique(held[devices])) > 1,
    )


def blocks_of(problem: RoundProblem, wanted: int | None) -> tuple[int, float]:
    """How many blocks there are, and how wide each is; ValueError where the round has others than are wanted."""
    if problem.num_blocks is None or problem.block_hz is None:
        number = DEFAULT_BLOCKS if wanted is None else wanted
        return number, problem.total_bandwidth_hz / number
    if wanted is not None and wanted != problem.num_blocks:
        raise ValueError(
            f"policy 'chen' is given num_blocks = {wanted}, but the band has {problem.num_blocks} blocks of "
            f"{problem.block_hz:g} Hz; leave num_blocks out, or set wireless.block_hz to 0"
        )
    return problem.num_blocks, problem.block_hz


def packet_error(ratio: Floats, fading: str = RAYLEIGH) -> Floats:
    """e of x = m (I + B N_0) / (P h), > 0, of any shape: the mean over Rayleigh fading, or with h as it is."""
    if fading == NONE:
        return -np.expm1(-ratio)
    from scipy.special import k1  # here, because it takes its time to import

    root = 2.0 * np.sqrt(ratio)
    lost: Floats = np.clip(1.0 - root * k1(root), 0.0, 1.0)  # for very small x rounding would leave less than nothing
    return lost


def assigned(worth: Floats, must: NDArray[np.bool_], limit: int) -> tuple[Indices, Indices]:
    """Devices and the block of each, of the greatest total worth: `worth` is what a device brings on a block (0: it may
    not, or nothing), shape (devices, blocks). Those of `must` come before all others, and at most `limit` send."""
    from scipy.optimize import linear_sum_assignment

    number, num_blocks = worth.shape
    top = float(worth.max(initial=0.0))
    if top <= 0.0:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    more_than_all = 2.0 * top * (min(number, num_blocks) + 1)
    value = np.where(must[:, None] & (worth > 0.0), worth + more_than_all, worth)
    idle = max(num_blocks - limit, 0)  # so many blocks are given away to nobody, before all others
    nobody = np.full((idle, num_blocks), more_than_all * (num_blocks + 2))
    device, block = linear_sum_assignment(np.concatenate((value, nobody)), maximize=True)
    real = (device < number) & (np.concatenate((worth, nobody))[device, block] > 0.0)
    return device[real].astype(np.intp), block[real].astype(np.intp)


def _in_time(problem: RoundProblem, sending_s: Floats) -> NDArray[np.bool_]:
    """Whether each device is done in time on each block, shape (devices, blocks)."""
    due_s = np.broadcast_to(problem.finish_by(problem.deadline_s), problem.num_devices)
    return np.asarray(problem.compute_s[:, None] + sending_s <= due_s[:, None] * (1.0 + BAND_TOLERANCE))


def _by_samples(held: Floats) -> Floats | None:
    """n_i / sum n of those who send; None where all hold the same, and the mean is just that."""
    return None if len(np.unique(held)) <= 1 or not math.fsum(held) else held / math.fsum(held)
