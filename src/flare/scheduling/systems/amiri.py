"""Amiri's four: by channel, by the norm of the update, by both, and by the norm that the channel leaves of it.

Amiri, Gunduz, Kulkarni, Poor, "Convergence of Update Aware Device Scheduling for Federated Learning at the Wireless
Edge", IEEE Trans. Wireless Commun. 2021 (arXiv 2001.10402), the four scheduling rules of its digital scheme:

    BC       the K devices of the best channels |h_i|^2
    BN2      the K devices of the largest updates ||Delta_i||
    BC-BN2   of the K_c devices of the best channels, the K of the largest updates
    BN2-C    the K devices of the largest updates *after compression* to the n C_i bits that the channel carries,
             C_i = log2(1 + (M/K) |h_i|^2); compression keeps the q largest entries with
             log2 binom(d, q) + 33 q <= bits   (where they are, and 33 bits for each)

K is `num_selected`, K_c `num_candidates`, |h_i|^2 `problem.snr_hz` (power over noise density included).

What differs here. In the paper every device computes in every round and tells its norm before anybody is scheduled;
here nobody computes in vain: ||Delta_i|| is the norm of the last update that arrived (`history.update_norm`), and
devices that have not sent come first, by lot. Updates are sent in the payload of the run, on bands by Theorem 3; the
paper's division of symbols by norms, n_i = n (||Delta_i|| / C_i) / sum, and its compression of each are no part
of the selection. A device that does not fit beside those chosen before it is passed over for the next in order.

BN2-C. The bits that the channel carries are those of an even share B/K of the band between computing and deadline. The
base station does not have the entries of an update, so what compression leaves of its norm is estimated as if they were
normally distributed: of d entries the q largest hold the share 2 (z phi(z) + Phi(-z)) of the energy, where
2 Phi(-z) = q/d. d is payload_bits / 32, the entries of an update that is sent as it is.
"""

from __future__ import annotations

import math

import numpy as np

from flare.scheduling.admission import admit
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import by, shuffled
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.scheduling.systems.known import Candidates, unseen_first
from flare.scheduling.systems.known import num_candidates as checked_number
from flare.types import Floats, Indices
from flare.wireless.rate import LN2, rate_bps

BITS_OF_AN_ENTRY = 32.0
BITS_OF_A_KEPT_ENTRY = 33.0


@policy("amiri-bc")
def amiri_bc(problem: RoundProblem, *, num_selected: Number = 10) -> Indices:
    """Amiri BC: the best channels, up to a number of them that fit."""
    return admit(problem, by(problem, -problem.snr_hz), max_devices=num_selected)


@policy("amiri-bn2")
def amiri_bn2(
    problem: RoundProblem, *, history: History, rng: np.random.Generator, num_selected: Number = 10
) -> Indices:
    """Amiri BN2: the largest last updates, whatever the channel."""
    norm = unseen_first(history.update_norm)
    return admit(problem, _largest(shuffled(problem, rng, norm), norm), max_devices=num_selected)


@policy("amiri-bc-bn2")
def amiri_bc_bn2(
    problem: RoundProblem,
    *,
    history: History,
    rng: np.random.Generator,
    num_selected: Number = 10,
    num_candidates: Candidates = None,
) -> Indices:
    """Amiri BC-BN2: of the best channels the largest last updates."""
    number = checked_number("amiri-bc-bn2", num_candidates, num_selected)
    norm = unseen_first(history.update_norm)
    at_random = shuffled(problem, rng, norm)
    at_random = at_random[problem.needed_hz[at_random] <= problem.capacity_hz]
    best_channels = _largest(at_random, problem.snr_hz)[:number]
    candidates = at_random[np.isin(at_random, best_channels)]
    return admit(problem, _largest(candidates, norm), max_devices=num_selected)


@policy("amiri-bn2-c")
def amiri_bn2_c(
    problem: RoundProblem, *, history: History, rng: np.random.Generator, num_selected: Number = 10
) -> Indices:
    """Amiri BN2-C: the largest last updates after compression to what the channel carries."""
    norm = unseen_first(history.update_norm)
    left = np.where(np.isinf(norm), np.inf, history.update_norm * kept_norm(problem, num_selected))
    return admit(problem, _largest(shuffled(problem, rng, norm), left), max_devices=num_selected)


def kept_norm(problem: RoundProblem, sharing: int) -> Floats:
    """The share of its norm that an update keeps when it is compressed to what the device's channel carries on an even
    share of the band among `sharing` devices, shape (devices,)."""
    share_hz = np.full(problem.num_devices, problem.usable_hz / min(sharing, problem.num_devices))
    slack_s = np.maximum(problem.finish_by(problem.deadline_s) - problem.compute_s, 0.0)
    bits = rate_bps(share_hz, problem.snr_hz) * slack_s
    entries = np.maximum(np.floor(problem.payload_bits / BITS_OF_AN_ENTRY), 1.0)
    whole = bits >= problem.payload_bits
    return np.where(whole, 1.0, np.sqrt(energy_share(kept_entries(bits, entries) / entries)))


def kept_entries(bits: Floats, entries: Floats) -> Floats:
    """q, the most entries with log2 binom(d, q) + 33 q <= bits, at most d; `bits` and `entries` (d) of one shape."""
    # One more entry adds 33 + log2((d - q) / (q + 1)) bits, more than 0 for d < 2^33: a search by halves finds q. 64 of
    # them are exact up to 2^53 entries, and beyond as exact as floats are.
    low, high = np.zeros_like(bits), np.minimum(entries, np.floor(np.maximum(bits, 0.0) / BITS_OF_A_KEPT_ENTRY))
    for _ in range(64):
        if (low >= high).all():
            break
        middle = np.ceil((low + high) / 2.0)
        fits = _compressed_bits(middle, entries) <= bits
        low, high = np.where(fits, middle, low), np.where(fits, high, np.minimum(middle - 1.0, high))
    return low


def _compressed_bits(kept: Floats, entries: Floats) -> Floats:
    """log2 binom(d, q) + 33 q."""
    from scipy.special import gammaln  # here, because it takes its time to import

    ways: Floats = gammaln(entries + 1.0) - gammaln(kept + 1.0) - gammaln(entries - kept + 1.0)
    return ways / LN2 + BITS_OF_A_KEPT_ENTRY * kept


def energy_share(kept: Floats) -> Floats:
    """The share of the energy of normally distributed entries that is in the largest ones; `kept` is their share."""
    from scipy.special import ndtr, ndtri

    above = -ndtri(np.clip(kept, np.finfo(float).tiny, 1.0) / 2.0)
    density = np.exp(-0.5 * above**2) / math.sqrt(2.0 * math.pi)
    return np.where(kept > 0.0, 2.0 * (above * density + ndtr(-above)), 0.0)


def _largest(devices: Indices, value: Floats) -> Indices:
    """Devices by descending value, equal ones as they are listed."""
    return devices[np.argsort(-value[devices], kind="stable")]
