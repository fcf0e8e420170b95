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

P_i is all that the device has, or where an energy limit E is set, at most what just meets it: computing plus
P_i S / (B_u log2(1 + P_i h_i / (I_k + B_u N_0))) = E (the left side rises with P_i).

P h / N_0 is `problem.snr_hz`, R `num_blocks`, m `waterfall_db`, the delay limit the round's deadline (or the device's
own), E `max_energy_j`.

Decided here. The channel of the round, which is known, is taken for the mean around which h fades while the packet is
sent (`fading` "none": it does not fade, and e = 1 - exp(-x)). Rates are those of the cell at that channel, with the
interference: B_u log2(1 + P h / (I_k + B_u N_0)); they set times and energies. I_k is drawn anew every round, as of one
interferer whose channel fades: exponential around `interference` times the noise of a block; the base station measures
it. Where the round has blocks (`wireless.block_hz`), each sender gets one of those; where it has not and `num_blocks`
is not given, the band is divided into as many as devices could use in time under mean interference. A block with less
interference is better for everybody, so that only as many of the best are looked at as devices may send. Devices that
must send are assigned first.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from flare.config.option import Limits
from flare.scheduling.checks import ABSURD
from flare.scheduling.hardware import Hardware
from flare.scheduling.history import History
from flare.scheduling.orders import canonical
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import Choice, policy
from flare.scheduling.systems.known import samples
from flare.types import Floats, Indices
from flare.units import db_to_linear
from flare.wireless.rate import upload_s

RAYLEIGH, NONE = "rayleigh", "none"
TINY = 1e-30
"""The least share of its power that a device sends with."""
_HALVINGS = 40
Blocks = Annotated[
    int | None,
    "how many resource blocks the band has; none: those of the round, or as many as devices can use in time",
    Limits(at_least=1.0, finite=False),
]
Interference = Annotated[
    float, "mean interference on a block, as a multiple of the noise there; 0: none", Limits(at_least=0.0)
]
Waterfall = Annotated[
    float, "waterfall threshold of the packet error rate in dB", Limits(at_least=-200.0, at_most=200.0)
]
Energy = Annotated[float | None, "joules that a device may spend in a round; none: any", Limits(above=0.0)]
Fades = Annotated[
    str, "whether the channel fades around that of the round while a packet is sent", Limits((RAYLEIGH, NONE))
]


@policy("chen", weighs=True)
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
    number, block_hz = blocks_of(problem, num_blocks, interference)
    heard = least_of_exponentials(number, min(number, problem.device_limit), rng)
    noise_hz = block_hz * (1.0 + interference * heard)  # (I_k + B_u N_0) / N_0
    held = samples(history)
    order = canonical(problem, held)
    order = order[_reaches(problem, block_hz, float(noise_hz[0]))[order]]  # rows below; others are late on every block
    # On a block with interference a device is as on one without, with a channel that is so much weaker.
    left_hz, bits = problem.snr_hz[order, None] * (block_hz / noise_hz), problem.payload_bits[order, None]
    power_w = hardware.power_w[order, None]
    room_j = math.inf if max_energy_j is None else (max_energy_j - hardware.compute_energy_j)[order, None]
    power = power_share(bits, block_hz, left_hz, power_w, room_j)
    sending_s = upload_s(bits, np.full_like(left_hz, block_hz), left_hz * power)
    allowed = (power > 0.0) & (left_hz >= 1.0 / ABSURD) & (sending_s <= _time_left_s(problem)[order, None])
    error = np.ones_like(left_hz)
    error[allowed] = packet_error(db_to_linear(waterfall_db) * block_hz / (left_hz * power)[allowed], fading)
    must, worth = np.isin(order, problem.must), held[order, None] * (1.0 - error) * allowed
    least = np.where(allowed[must], np.finfo(float).tiny, 0.0)  # of those who must, also if they bring nothing
    worth[must] = np.maximum(worth[must], least)
    at, block = assigned(worth, must)
    devices = order[at]
    if np.setdiff1d(problem.must, devices).size:
        return Choice()
    weights = _by_samples(held[devices])
    return Choice(
        devices,
        bandwidth_hz=np.full(len(devices), block_hz),
        snr_hz=left_hz[at, block],
        power_w=None if max_energy_j is None else (power * power_w)[at, block],
        error_rate=error[at, block],
        weights=weights,
        keep_total=weights is not None,
    )


def _reaches(problem: RoundProblem, block_hz: float, noise_hz: float) -> NDArray[np.bool_]:
    """Which devices may send and are in time on the best block at full power, shape (devices,)."""
    band_hz = np.full(problem.num_devices, block_hz)
    sending_s = upload_s(problem.payload_bits, band_hz, problem.snr_hz * (block_hz / noise_hz))
    reaches = np.asarray((sending_s <= _time_left_s(problem)) & (block_hz >= 1.0 / ABSURD))
    reaches[problem.never] = False
    return reaches


def blocks_of(problem: RoundProblem, wanted: int | None, interference: float) -> tuple[int, float]:
    """How many blocks there are, and how wide each is; ValueError where the round has others than are wanted."""
    if problem.num_blocks is None or problem.block_hz is None:
        number = _usable_blocks(problem, interference) if wanted is None else wanted
        return number, problem.total_bandwidth_hz / number
    if wanted is not None and wanted != problem.num_blocks:
        raise ValueError(
            f"policy 'chen' is given num_blocks = {wanted}, but the band has {problem.num_blocks} blocks of "
            f"{problem.block_hz:g} Hz; leave num_blocks out, or set wireless.block_hz to 0"
        )
    return problem.num_blocks, problem.block_hz


def _usable_blocks(problem: RoundProblem, interference: float) -> int:
    """The greatest R for which at least R devices are in time on a block of width B/R with mean interference; 1 where
    there is none. Narrower blocks serve fewer devices, so that halving finds it."""
    low, high = 1, problem.num_devices + 1
    while high - low > 1:
        number = (low + high) // 2
        band_hz = np.full(problem.num_devices, problem.total_bandwidth_hz / number)
        sending_s = upload_s(problem.payload_bits, band_hz, problem.snr_hz / (1.0 + interference))
        if np.delete(sending_s <= _time_left_s(problem), problem.never).sum() >= number:
            low = number
        else:
            high = number
    return low


def power_share(
    payload_bits: Floats, block_hz: float, snr_hz: Floats, power_w: Floats, room_j: Floats | float
) -> Floats:
    """The greatest share of its power with which a device spends no more than `room_j` on sending on a block, shape
    (devices, blocks); 0 where none is small enough."""

    def spent_j(share: Floats) -> Floats:
        return share * power_w * upload_s(payload_bits, np.full_like(snr_hz, block_hz), snr_hz * share)

    low, high = np.full_like(snr_hz, TINY), np.ones_like(snr_hz)
    if np.isinf(room_j).all() or (spent_j(high) <= room_j).all():
        return high
    for _ in range(_HALVINGS):  # of the logarithm: from 1e-30 to 1, to eleven digits
        middle = np.sqrt(low * high)
        fits = spent_j(middle) <= room_j
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    full, least = spent_j(np.ones_like(snr_hz)) <= room_j, spent_j(np.full_like(snr_hz, TINY)) <= room_j
    return np.where(full, 1.0, np.where(least, low, 0.0))


def packet_error(ratio: Floats, fading: str = RAYLEIGH) -> Floats:
    """e of x = m (I + B N_0) / (P h), > 0, of any shape: the mean over Rayleigh fading, or with h as it is."""
    if fading == NONE:
        return -np.expm1(-ratio)
    from scipy.special import k1  # here, because it takes its time to import

    root = 2.0 * np.sqrt(ratio)
    lost: Floats = np.clip(1.0 - root * k1(root), 0.0, 1.0)  # for very small x rounding would leave less than nothing
    return lost


def least_of_exponentials(number: int, least: int, rng: np.random.Generator) -> Floats:
    """The least of `number` independent exponentials of mean 1, ascending, shape (least,), without drawing the others:
    the gaps between them are exponentials, the j-th of mean 1 / (number - j) (Renyi)."""
    return np.cumsum(rng.exponential(size=least) / (number - np.arange(least)))


def assigned(worth: Floats, must: NDArray[np.bool_]) -> tuple[Indices, Indices]:
    """Devices and the block of each, of the greatest total worth: `worth` is what a device brings on a block (0: it may
    not, or nothing), shape (devices, blocks). Those of `must` come before all others."""
    from scipy.optimize import linear_sum_assignment

    top = float(worth.max(initial=0.0))
    if top <= 0.0:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    more_than_all = 2.0 * (min(worth.shape) + 1)
    value = worth / top + more_than_all * (must[:, None] & (worth > 0.0))
    able = _able(value)
    able = able[np.argsort(-value[able, 0], kind="stable")]  # best first, and worst blocks first: found much sooner
    at, block = linear_sum_assignment(value[able][:, ::-1], maximize=True)
    device, block = able[at], value.shape[1] - 1 - block
    sends = worth[device, block] > 0.0
    return device[sends].astype(np.intp), block[sends].astype(np.intp)


def _able(value: Floats) -> Indices:
    """The devices that bring something and are among the R best of some block, of R blocks, ascending: no others are
    needed. Whoever has a block without being among its R best could leave it to one of them, as R - 1 at most have
    another block."""
    able = np.flatnonzero((value > 0.0).any(axis=1))
    spare = len(able) - value.shape[1]
    if spare <= 0:
        return able
    by_block = np.ascontiguousarray(value[able].T)
    return able[np.unique(np.argpartition(by_block, spare, axis=1)[:, spare:])]


def _time_left_s(problem: RoundProblem) -> Floats:
    """How long each device may send, shape (devices,)."""
    return np.asarray(problem.latest_s - problem.compute_s)


def _by_samples(held: Floats) -> Floats | None:
    """n_i / sum n of those who send; None where all hold the same, and the mean is just that."""
    return None if len(np.unique(held)) <= 1 or not math.fsum(held) else held / math.fsum(held)
