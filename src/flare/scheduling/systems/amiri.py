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

What differs here. In the paper every device computes its update in every round and tells its norm before anybody is
scheduled. Here the option `norms` says where ||Delta_i|| is from:

    "last"            the last update that arrived (`history.update_norm`); devices that have not sent come first, by
                      lot. Nobody is asked, and nothing is paid
    "all", "batch"    devices are asked for the norm of their present gradient, on all their samples or on a batch: what
                      their update is in proportion to, as far as the loss is flat over their local steps. Under BC-BN2
                      only the K_c of the best channels are asked, otherwise all that can meet the deadline

Asking costs time and energy before the round begins (`flare.rounds.probing`). Updates are sent in the payload of the
run, on bands by Theorem 3; the paper's division of symbols by norms, n_i = n (||Delta_i|| / C_i) / sum, and its
compression of each are no part of the selection. A device that does not fit beside those chosen before it is passed
over for the next in order.

BN2-C. The bits that the channel carries are those of an even share B/K of the band between computing and deadline. The
base station does not have the entries of an update, so what compression leaves of its norm is estimated as if they were
normally distributed: of d entries the q largest hold the share 2 (z phi(z) + Phi(-z)) of the energy, where
2 Phi(-z) = q/d. d is payload_bits / 32, the entries of an update that is sent as it is, or `num_entries`: where updates
are coded, a run puts the weights of its model there.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from flare.config.option import Limits
from flare.scheduling.admission import admit
from flare.scheduling.baselines import Number
from flare.scheduling.history import History
from flare.scheduling.orders import by, shuffled
from flare.scheduling.probe import GRADIENT, Probe, Probed
from flare.scheduling.problem import RoundProblem
from flare.scheduling.registry import policy
from flare.scheduling.systems.known import LAST, NORMS, Asked, Candidates, unseen_first
from flare.scheduling.systems.known import num_candidates as checked_number
from flare.types import Floats, Indices
from flare.wireless.rate import LN2, rate_bps

BITS_OF_AN_ENTRY = 32.0
BITS_OF_A_KEPT_ENTRY = 33.0
Entries = Annotated[
    int | None,
    "entries of an update; none: those of the model where updates are coded, otherwise payload / 32 bits",
    Limits(at_least=1),
]


@policy("amiri-bc")
def amiri_bc(problem: RoundProblem, *, num_selected: Number = 10) -> Indices:
    """Amiri BC: the best channels, up to a number of them that fit."""
    return admit(problem, by(problem, -problem.snr_hz), max_devices=num_selected)


def ask_reachable(problem: RoundProblem, *, norms: str) -> Probe:
    """Whoever can meet the deadline is asked for the norm of its gradient."""
    return Probe(problem.reachable, GRADIENT, norms)


def ask_best_channels(problem: RoundProblem, *, norms: str, num_selected: int, num_candidates: int | None) -> Probe:
    """The K_c devices of the best channels are asked for the norm of their gradient."""
    number = checked_number("amiri-bc-bn2", num_candidates, num_selected)
    return Probe(_largest(problem.reachable_in_order, problem.snr_hz)[:number], GRADIENT, norms)


@policy("amiri-bn2", needs=NORMS.needs, probe=ask_reachable, asks=NORMS.asks, by_updates=NORMS.goes_by_last)
def amiri_bn2(
    problem: RoundProblem,
    *,
    history: History,
    probed: Probed,
    rng: np.random.Generator,
    num_selected: Number = 10,
    norms: Asked = LAST,
) -> Indices:
    """Amiri BN2: the largest updates, whatever the channel."""
    norm = _norms(history, probed, norms)
    return admit(problem, _largest(shuffled(problem, rng, norm), norm), max_devices=num_selected)


@policy("amiri-bc-bn2", needs=NORMS.needs, probe=ask_best_channels, asks=NORMS.asks, by_updates=NORMS.goes_by_last)
def amiri_bc_bn2(
    problem: RoundProblem,
    *,
    history: History,
    probed: Probed,
    rng: np.random.Generator,
    num_selected: Number = 10,
    num_candidates: Candidates = None,
    norms: Asked = LAST,
) -> Indices:
    """Amiri BC-BN2: of the best channels the largest updates."""
    number = checked_number("amiri-bc-bn2", num_candidates, num_selected)
    norm = _norms(history, probed, norms)
    at_random = shuffled(problem, rng, norm)
    at_random = problem.able(at_random)
    if norms != LAST:  # those of the best channels were asked
        at_random = at_random[~np.isnan(probed.norm[at_random])]
    best_channels = _largest(at_random, problem.snr_hz)[:number]
    candidates = at_random[np.isin(at_random, best_channels)]
    return admit(problem, _largest(candidates, norm), max_devices=num_selected)


@policy("amiri-bn2-c", needs=NORMS.needs, probe=ask_reachable, asks=NORMS.asks, by_updates=NORMS.goes_by_last)
def amiri_bn2_c(
    problem: RoundProblem,
    *,
    history: History,
    probed: Probed,
    rng: np.random.Generator,
    num_selected: Number = 10,
    norms: Asked = LAST,
    num_entries: Entries = None,
) -> Indices:
    """Amiri BN2-C: the largest updates after compression to what the channel carries."""
    norm = _norms(history, probed, norms)
    known = np.where(np.isinf(norm), 0.0, norm)
    left = np.where(np.isinf(norm), np.inf, known * kept_norm(problem, num_selected, num_entries))
    return admit(problem, _largest(shuffled(problem, rng, norm), left), max_devices=num_selected)


def _norms(history: History, probed: Probed, source: str) -> Floats:
    """||Delta_i||, shape (devices,): of the last update, infinite where there is none; or of the present gradient, 0
    where it was not asked for."""
    return unseen_first(history.update_norm) if source == LAST else np.nan_to_num(probed.norm, nan=0.0)


def kept_norm(problem: RoundProblem, sharing: int, num_entries: int | None = None) -> Floats:
    """The share of its norm that an update of so many entries (None: as its payload says) keeps when it is compressed
    to what the device's channel carries on an even share of the band among `sharing` devices, shape (devices,)."""
    share_hz = np.full(problem.num_devices, problem.usable_hz / min(sharing, problem.num_devices))
    slack_s = np.maximum(problem.latest_s - problem.compute_s, 0.0)
    bits = rate_bps(share_hz, problem.snr_hz) * slack_s
    if num_entries is None:
        uncoded_bits = problem.payload_bits
    else:
        uncoded_bits = np.full(problem.num_devices, BITS_OF_AN_ENTRY * num_entries)
    entries = np.maximum(np.floor(uncoded_bits / BITS_OF_AN_ENTRY), 1.0)
    whole = bits >= uncoded_bits
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
