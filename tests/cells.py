"""Rounds that the tests schedule: the paper's cell, cells solved by hand, awkward ones and random ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from flare.scheduling.problem import RoundProblem

SAME = 3e-12
"""Objectives closer than this are equal: `exact` tells them apart from 1e-12 on, and compares three times at most."""

MNIST_CYCLES_A_STEP = 110 * 6272 * 40  # cycles/bit x bit/sample x samples/step
NOISE_W_PER_HZ = 10.0 ** (-114 / 10) * 1e-3 * 1e-6  # -114 dBm/MHz
PAPER_BAND_HZ = 10e6


def paper_cell(
    seed: int,
    *,
    num_devices: int = 40,
    deadline_s: float = 0.4,
    gamma: float = 10.0,
    whole_taus: bool = True,
    total_bandwidth_hz: float = PAPER_BAND_HZ,
) -> RoundProblem:
    """A round of the paper's cell (section V-A, MNIST): 100-500 m, exponent 3.76, 20 dBm, 2-4 GHz, tau ~ Exp(3)."""
    rng = np.random.default_rng(seed)
    distance_m = rng.uniform(100.0, 500.0, num_devices)
    steps = rng.exponential(3.0, num_devices)
    tau = np.maximum(1.0, np.round(steps)) if whole_taus else 1.0 + steps
    return RoundProblem(
        tau=tau,
        compute_s=tau * MNIST_CYCLES_A_STEP / rng.uniform(2e9, 4e9, num_devices),  # Eq. (4)
        snr_hz=0.1 * distance_m**-3.76 / NOISE_W_PER_HZ,
        payload_bits=1e7,
        total_bandwidth_hz=total_bandwidth_hz,
        deadline_s=deadline_s,
        gamma=gamma,
    )


def hand_cell(tau: ArrayLike, share: ArrayLike, gamma: float) -> RoundProblem:
    """Devices that need the given shares of the band: b = share B carries S bit in 1 s if snr = b (2^(S/b) - 1)."""
    need_hz = np.asarray(share) * 1e6
    payload_bits = 4.0 * need_hz.min()
    return RoundProblem(
        tau=tau,
        compute_s=np.zeros(len(need_hz)),
        snr_hz=need_hz * (2.0 ** (payload_bits / need_hz) - 1.0),
        payload_bits=payload_bits,
        total_bandwidth_hz=1e6,
        deadline_s=1.0,
        gamma=gamma,
    )


def knapsack_cell(
    seed: int, *, num_devices: int, noise: float = 0.0, whole_taus: bool = False, gamma: float = 10.0
) -> RoundProblem:
    """A cell in which whoever does more steps asks for more bandwidth, so that no price tells the devices apart.

    Without noise c_i = a - d / tau_i for all: then sum c = M a - d sum 1/tau over M devices, the objective is fixed by
    how well the set fills the band, and P2 is a subset-sum problem.
    """
    rng = np.random.default_rng(seed)
    nu = rng.uniform(0.1, 1.0, num_devices)
    tau = np.round(1.0 / nu) if whole_taus else 1.0 / nu
    share = (1.6 - 1.0 / tau) / num_devices * rng.uniform(1.0, 4.0) * rng.uniform(1.0, 1.0 + noise, num_devices)
    return hand_cell(tau, np.minimum(share, 1.0), gamma)


def crossing_cell(seed: int, *, num_devices: int = 10, decades: float = 2.0, stretch: float = 2.0) -> RoundProblem:
    """Fast computers on weak channels against slow ones on strong channels: who delays least depends on the time.

    Up to half a second only the fast ones finish at all; at the deadline the slow ones need less bandwidth.
    """
    rng = np.random.default_rng(seed)
    slow = rng.random(num_devices) < 0.5
    compute_s = np.where(slow, rng.uniform(0.4, 0.5, num_devices), 0.0)
    return RoundProblem(
        tau=np.where(slow, 3.0, 4.0),
        compute_s=compute_s,
        snr_hz=10.0 ** (8.0 + decades * slow + rng.uniform(-0.2, 0.2, num_devices)),
        payload_bits=1e7,
        total_bandwidth_hz=1e7,
        deadline_s=0.5 * stretch,
        gamma=100.0,
    )


def changed(problem: RoundProblem, **changes: object) -> RoundProblem:
    """The same round with other values of the named arguments."""
    return replace(problem, **changes)


def reordered(problem: RoundProblem, order: np.ndarray) -> RoundProblem:
    """The same devices listed in another order."""
    place = np.argsort(order)
    of_devices = ("tau", "compute_s", "snr_hz", "payload_bits", "weight", "due_s", "coding_noise")
    listed = {name: getattr(problem, name) for name in of_devices}
    moved = {name: values[order] for name, values in listed.items() if values is not None}
    return changed(problem, **moved, must=place[problem.must], never=place[problem.never])


def alone_s(problem: RoundProblem) -> np.ndarray:
    """When each device finishes if it has the whole band, Eqs. (5)-(7)."""
    band = problem.total_bandwidth_hz
    return problem.compute_s + problem.payload_bits / (band * np.log2(1.0 + problem.snr_hz / band))


def fading_rounds(problem: RoundProblem, num_rounds: int) -> list[RoundProblem]:
    """A round, and more in which its channels come and go; devices that are identical stay so."""
    phase = np.log(problem.snr_hz)
    gains = [1.0 + 0.4 * np.sin(1.7 * turn + phase) for turn in range(1, num_rounds)]
    return [problem, *(changed(problem, snr_hz=problem.snr_hz * gain) for gain in gains)]


def _exactly_one_meets() -> RoundProblem:
    cell = paper_cell(11, num_devices=9)
    first, second = np.sort(alone_s(cell))[:2]
    return changed(cell, deadline_s=0.5 * (first + second))


def _at_the_latency_of(cell: RoundProblem, devices: list[int]) -> RoundProblem:
    return changed(cell, deadline_s=cell.min_latency(np.array(devices)))


def _two_classes(num_devices: int, deadline_s: float) -> RoundProblem:
    strong = np.arange(num_devices) % 2 == 0
    return RoundProblem(
        tau=np.where(strong, 2.0, 6.0),
        compute_s=np.where(strong, 0.02, 0.06),
        snr_hz=np.where(strong, 3e11, 4e9),
        payload_bits=1e7,
        total_bandwidth_hz=1e7,
        deadline_s=deadline_s,
        gamma=10.0,
    )


def _same(num_devices: int, tau: float, snr_hz: float, deadline_s: float, gamma: float) -> RoundProblem:
    return RoundProblem([tau] * num_devices, [0.03] * num_devices, [snr_hz] * num_devices, 1e7, 1e7, deadline_s, gamma)


def _widely_spread(exponents: tuple[float, float], deadline_s: float) -> RoundProblem:
    """SNRs on the whole band spread over many decades."""
    decades = np.linspace(*exponents, 10)
    return RoundProblem(
        tau=[3, 1, 4, 1, 5, 9, 2, 6, 5, 3],
        compute_s=np.linspace(0.0, 0.01, 10),
        snr_hz=1e7 * 10.0**decades,
        payload_bits=1e7,
        total_bandwidth_hz=1e7,
        deadline_s=deadline_s,
        gamma=10.0,
    )


def bank() -> dict[str, RoundProblem]:
    """Every awkward round by name; those of up to ten devices are small enough for all subsets."""
    small = paper_cell(3, num_devices=10)
    rounds = {
        "one device": paper_cell(1, num_devices=1),
        "one device that misses": paper_cell(1, num_devices=1, deadline_s=0.01),
        "all identical": _same(8, 4.0, 1e10, 0.45, 10.0),
        "all identical, gamma 0": _same(8, 4.0, 1e10, 0.45, 0.0),
        "two classes": _two_classes(9, 0.5),
        "two classes, many": _two_classes(60, 1.0),
        "nobody meets the deadline": paper_cell(5, num_devices=10, deadline_s=0.02),
        "exactly one meets the deadline": _exactly_one_meets(),
        "weak channels": _widely_spread((-9.0, 0.0), 1e3),
        "weakest channels": _at_the_latency_of(_widely_spread((-9.0, -8.99), 1.0), [1, 4, 6, 9]),
        "strong channels": _widely_spread((4.0, 12.0), 0.08),
        "weak and strong channels": _widely_spread((-9.0, 12.0), 3.0),
        "no computing": changed(small, compute_s=np.zeros(10)),
        "equal taus": changed(small, tau=np.full(10, 3.0)),
        "float taus": paper_cell(7, num_devices=10, whole_taus=False),
        "float taus, many": paper_cell(7, whole_taus=False),
        "deadline at a set's own latency": _at_the_latency_of(small, [0, 2, 5]),
        "deadline at one device's own latency": _at_the_latency_of(small, [4]),
        "deadline at everybody's own latency": _at_the_latency_of(small, list(range(10))),
        "everybody fits": changed(small, deadline_s=50.0),
        "large": paper_cell(9, num_devices=300, total_bandwidth_hz=75e6),
    }
    bits = np.array([2e6, 1e7, 5e6, 5e6, 1e7, 2e7, 1e6, 1e7, 2e6, 5e6])
    rounds["payloads, weights and deadlines of their own"] = changed(
        small, payload_bits=bits, weight=np.linspace(0.5, 2.0, 10), due_s=np.linspace(0.3, 0.6, 10)
    )
    rounds["whole blocks"] = changed(small, block_hz=180e3, payload_bits=bits)
    rounds["must, never, at most 4, coding noise"] = changed(
        small, must=[1, 6], never=[0, 9], max_devices=4, coding_noise=bits / 1e7, payload_bits=bits
    )
    for gamma in (0.0, 1.0, 10.0, 100.0):
        rounds[f"small, gamma {gamma:g}"] = changed(small, gamma=gamma)
    for deadline_s in (0.1, 0.4, 1.5):
        rounds[f"paper, {deadline_s:g} s"] = paper_cell(2, deadline_s=deadline_s)
    return rounds


# Random rounds. Values lie on grids: devices and times are then either equal or far more than rounding apart, which
# is what a comparison of two ways to the same selection needs.


def whole_taus() -> st.SearchStrategy[float]:
    return st.integers(1, 12).map(float)


def float_taus() -> st.SearchStrategy[float]:
    return st.integers(0, 1000).map(lambda step: 1.0 + step / 97.0)


@st.composite
def random_rounds(draw: st.DrawFn, max_devices: int, min_devices: int = 1) -> RoundProblem:
    """A random round: devices all their own, or of a few kinds, so that equal and repeated ones are common."""
    number = draw(st.integers(min_devices, max_devices))
    taus = draw(st.sampled_from([whole_taus(), float_taus()]))
    device = st.tuples(taus, st.integers(0, 150), st.integers(0, 64))  # tau, computing in ms, channel in 1/16 decade
    if draw(st.booleans()):
        device = st.sampled_from(draw(st.lists(device, min_size=2, max_size=4)))
    tau, compute_ms, channel = np.array(draw(st.lists(device, min_size=number, max_size=number))).T
    return RoundProblem(
        tau=tau,
        compute_s=compute_ms / 1e3,
        snr_hz=10.0 ** (8.0 + channel / 16.0),
        payload_bits=1e7,
        total_bandwidth_hz=1e7,
        deadline_s=draw(st.integers(1, 40)) / 16.0,
        gamma=draw(st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0])),
    )


def knapsack_rounds(max_devices: int, min_devices: int = 2) -> st.SearchStrategy[RoundProblem]:
    """Rounds of `knapsack_cell` with every kind of noise, gamma and taus."""
    return st.builds(
        knapsack_cell,
        st.integers(0, 2**31),
        num_devices=st.integers(min_devices, max_devices),
        noise=st.sampled_from([0.0, 0.01, 0.3]),
        whole_taus=st.booleans(),
        gamma=st.sampled_from([0.1, 1.0, 10.0, 100.0, 1000.0]),
    )


def crossing_rounds(max_devices: int) -> st.SearchStrategy[RoundProblem]:
    """Rounds of `crossing_cell`, from deadlines that only the fast meet to those that nearly all do."""
    return st.builds(
        crossing_cell,
        st.integers(0, 2**31),
        num_devices=st.integers(2, max_devices),
        decades=st.sampled_from([1.0, 2.0, 3.0]),
        stretch=st.sampled_from([1.1, 1.3, 1.7, 2.0, 2.5]),
    )


@st.composite
def uploads(draw: st.DrawFn, min_exponent: float = -9.0, max_exponent: float = 12.0) -> tuple[float, float, float]:
    """(payload_bits, slack_s, snr_hz) of an upload that needs a bandwidth with SNR x = 10^min .. 10^max on it."""
    x = 10.0 ** draw(st.floats(min_exponent, max_exponent))
    payload_bits = 10.0 ** draw(st.floats(2.0, 10.0))
    snr_hz = 10.0 ** draw(st.floats(0.0, 14.0))
    bandwidth_hz = snr_hz / x
    slack_s = payload_bits * math.log(2.0) / (bandwidth_hz * math.log1p(x))
    return payload_bits, slack_s, snr_hz


# Extreme rounds: quantities over hundreds of decades, and devices at rounding distance to what just fits.

MAX_EXTREME_DEVICES = 6


def extreme_rounds(seed: int, number: int) -> Iterator[RoundProblem]:
    """So many rounds of one to six devices at the ends of what `RoundProblem` accepts.

    Computing takes none, all or all but a rounding of the deadline; channels are drawn over all decades, or so that
    the slack is just enough, or so that the devices need the band to within a rounding; devices may repeat.
    """
    rng = np.random.default_rng([seed, number])
    shape = (number, MAX_EXTREME_DEVICES)
    devices = rng.integers(1, MAX_EXTREME_DEVICES + 1, number)
    span = rng.choice([3.0, 6.0, 10.0, 15.0, 30.0, 100.0], (number, 1))  # decades either way
    band, deadline, payload = (10.0 ** (span * rng.uniform(-1.0, 1.0, (number, 1))) for _ in range(3))
    band = np.minimum(band, 1e15)
    tau = 10.0 ** (span * rng.choice([0.01, 0.1, 1.0], (number, 1)) * rng.random(shape))
    tau = np.where(rng.random((number, 1)) < 0.3, np.ceil(np.minimum(tau, 12.0)), tau)
    compute = deadline * 10.0 ** (rng.choice([1.0, 20.0], (number, 1)) * -rng.random(shape) + 0.05)
    compute *= rng.random(shape) < 0.7
    just_in_time = deadline * (1.0 - 10.0 ** rng.uniform(-17.0, -1.0, shape))
    compute = np.minimum(np.where(rng.random((number, 1)) < 0.2, just_in_time, compute), 1e100)
    snr = _extreme_channels(rng, span, band, payload, np.maximum(deadline - compute, 1e-16 * deadline))
    repeated = rng.integers(0, devices[:, None], shape)
    own = np.broadcast_to(np.arange(MAX_EXTREME_DEVICES), shape)
    which = np.where(rng.random((number, 1)) < 0.3, repeated, own)
    gamma = rng.choice([0.0, 1e-9, 0.1, 1.0, 10.0, 1e3, 1e9, 1e100], number)
    for at in range(number):
        listed = which[at, : devices[at]]
        rows = (tau[at, listed], compute[at, listed], snr[at, listed])
        yield RoundProblem(*rows, float(payload[at, 0]), float(band[at, 0]), float(deadline[at, 0]), float(gamma[at]))


def _extreme_channels(
    rng: np.random.Generator, span: np.ndarray, band: np.ndarray, payload: np.ndarray, slack: np.ndarray
) -> np.ndarray:
    """snr_hz of extreme rounds, shape (rounds, devices)."""
    number = len(span)
    share = rng.dirichlet(np.ones(slack.shape[1]), number)
    share *= 1.0 + rng.choice([0.0, 1e-16, -1e-16, 1e-12, -1e-12, 1e-9, 0.3], (number, 1))
    need = band * np.maximum(share, 1e-12)
    kinds = (
        10.0 ** (span * rng.uniform(-1.0, 1.0, slack.shape)),
        payload * math.log(2.0) / slack * (1.0 + 10.0 ** rng.uniform(-17.0, 3.0, slack.shape)),  # just reachable
        band * 10.0 ** rng.uniform(-20.0, 20.0, slack.shape),
        need * np.expm1(np.minimum(payload * math.log(2.0) / need / slack, 200.0)),  # need that share of the band
    )
    snr = np.choose(rng.integers(0, len(kinds), (number, 1)), kinds)
    return np.clip(snr, 1e-100, 1e100)


def extreme_rounds_in_blocks(seed: int, number: int) -> Iterator[RoundProblem]:
    """Extreme rounds whose band is 1 to 10^9 resource blocks; one in three has deadlines of devices, and unequal
    payloads."""
    rng = np.random.default_rng([seed, number, 9])
    for problem in extreme_rounds(seed, number):
        blocks = min(10.0 ** rng.uniform(0.0, 9.0), 0.999 * problem.total_bandwidth_hz * 1e100)
        more: dict[str, object] = {"block_hz": problem.total_bandwidth_hz / max(blocks, 1.0)}
        if rng.random() < 1.0 / 3.0:
            due_s = problem.deadline_s * 10.0 ** rng.uniform(-1.0, 0.5, problem.num_devices)
            bits = problem.payload_bits * 10.0 ** rng.uniform(-3.0, 0.0, problem.num_devices)
            more |= {"due_s": np.clip(due_s, 1e-100, 1e100), "payload_bits": np.clip(bits, 1e-100, 1e100)}
        yield changed(problem, **more)


# Rounds with what a real network asks for beside the band.


def network_cell(seed: int, *, num_devices: int = 9, **more: object) -> RoundProblem:
    """A round of the paper's cell in which one draw in two adds each of: unequal payloads, weights, deadlines of
    devices, devices that must or must not send, a limit on their number, resource blocks and coding noise."""
    rng = np.random.default_rng([seed, num_devices])
    cell = paper_cell(seed, num_devices=num_devices, deadline_s=float(rng.uniform(0.3, 1.5)), whole_taus=seed % 3 > 0)
    some = rng.permutation(num_devices)
    drawn: dict[str, object] = {
        "payload_bits": rng.choice([2e6, 5e6, 1e7, 2e7], num_devices) * rng.uniform(0.9, 1.1),
        "weight": rng.choice([0.5, 1.0, 3.0], num_devices) * rng.uniform(0.9, 1.1, num_devices),
        "due_s": cell.deadline_s * rng.uniform(0.5, 1.5, num_devices),
        "must": some[: int(rng.integers(0, 3))],
        "never": some[3 : 3 + int(rng.integers(0, 3))],
        "max_devices": int(rng.integers(2, 6)),
        "block_hz": float(rng.choice([180e3, 500e3, 1.7e6])),
        "coding_noise": rng.exponential(0.2, num_devices) * rng.integers(0, 2, num_devices),
        "gamma": float(rng.choice([0.1, 1.0, 10.0, 100.0])),
    }
    return changed(cell, **{name: value for name, value in drawn.items() if rng.random() < 0.5} | more)
