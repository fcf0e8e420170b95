"""Over-the-air aggregation: against simulated symbols, against errors derived by hand, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import integrate, special

from flare.config import setting
from flare.uplink import NotFiniteError
from flare.uplink.air import (
    AIR_SCHEMES,
    AirLink,
    AirPlan,
    AirScheme,
    Cotaf,
    Fading,
    LeastError,
    Moments,
    TruncatedInversion,
    air_key,
    air_scheme,
    make_air_scheme,
    moments,
    normal,
    plan_air,
)
from flare.wireless.channel import rician_gain
from tests import air_oracles

RNG = np.random.default_rng(12)
DEVICES, WEIGHTS = 5, 4001  # an odd number: the last symbol is half empty
AIR = air_oracles.Air(
    channel=1e-5 * (RNG.standard_normal(DEVICES) + 1j * RNG.standard_normal(DEVICES)),
    power_w=np.array([0.1, 0.2, 0.2, 0.05, 0.1]),
    noise_w_per_hz=4e-20,
    bandwidth_hz=1e7,
)
MEAN_SNR_HZ = AIR.snr_hz / np.array([0.7, 1.0, 2.0, 0.4, 0.9])
SHARES = np.array([1.0, 2.0, 0.5, 1.0, 3.0])
UPDATES = torch.from_numpy(
    (RNG.standard_normal((DEVICES, WEIGHTS)) * np.array([[1.0], [0.3], [2.0], [0.1], [1.0]]) * 1e-3 + 2e-4).astype("f4")
)
SCHEMES: list[AirScheme] = [
    TruncatedInversion(threshold=0.2),
    TruncatedInversion(threshold=0.2, limit="always"),
    LeastError(max_mse=100.0),
    Cotaf(),
]
every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=repr)


def link(**changes: object) -> AirLink:
    given = {"mean_snr_hz": MEAN_SNR_HZ, "fading": Fading("rayleigh")} | changes
    return AirLink(AIR.snr_hz, AIR.power_w, AIR.bandwidth_hz, **given)  # type: ignore[arg-type]


def planned(scheme: AirScheme, shares: np.ndarray | None = SHARES) -> AirPlan:
    return plan_air(scheme, link(), WEIGHTS, compute_s=np.zeros(DEVICES), shares=shares)


def test_the_three_schemes_are_known_by_name() -> None:
    assert list(AIR_SCHEMES) == ["truncated-inversion", "mse", "cotaf"]
    assert make_air_scheme("mse", {"max_mse": 0.5}) == LeastError(0.5)


@every_scheme
def test_without_noise_the_symbols_carry_the_mean(scheme: AirScheme) -> None:
    precoding = planned(scheme).precoding(moments(UPDATES))
    silence = np.zeros((WEIGHTS + 1) // 2)
    heard = air_oracles.received(AIR, precoding, SHARES, UPDATES.double().numpy(), silence)
    np.testing.assert_allclose(heard, np.average(UPDATES.double().numpy(), axis=0, weights=SHARES), atol=1e-15)


@every_scheme
def test_what_is_received_is_what_the_symbols_carry_in_the_same_noise(scheme: AirScheme) -> None:
    """The noise of the library, put on the antenna in watt, leads to the same mean by way of the symbols."""
    plan, key = planned(scheme), air_key(3, 7)
    unit = normal(torch.tensor([key]), WEIGHTS)[0].double().numpy()
    on_the_antenna = np.sqrt(AIR.noise_w / 2) * air_oracles.in_symbols(unit)
    precoding = plan.precoding(moments(UPDATES))
    heard = air_oracles.received(AIR, precoding, SHARES, UPDATES.double().numpy(), on_the_antenna)
    got = plan.receive(UPDATES, key)
    assert np.abs(heard - np.average(UPDATES.double().numpy(), axis=0, weights=SHARES)).max() > 0.1 * got.noise_std
    np.testing.assert_allclose(got.mean.numpy(), heard, rtol=0, atol=1e-9 * got.noise_std + 1e-15)


@every_scheme
def test_power_and_energy_are_those_of_the_symbols(scheme: AirScheme) -> None:
    plan = planned(scheme)
    got = plan.receive(UPDATES, 0)
    symbols = air_oracles.sent(AIR, plan.precoding(moments(UPDATES)), SHARES, UPDATES.double().numpy())
    assert symbols.shape[1] == 2001
    radiated_j = (np.abs(symbols) ** 2).sum(axis=1) / AIR.bandwidth_hz  # a symbol lasts 1 / B
    np.testing.assert_allclose(radiated_j * 4002 / 4001, got.energy_j, rtol=1e-12)  # counted as if the last was full
    np.testing.assert_allclose(got.energy_j, got.power_w * 2001 / AIR.bandwidth_hz, rtol=1e-12)


@every_scheme
def test_the_error_is_that_of_the_formula_in_simulated_symbols(scheme: AirScheme) -> None:
    """200 rounds of 4,001 weights: the mean of 800,200 squared normals has a relative deviation of 0.0016."""
    plan = planned(scheme)
    precoding = plan.precoding(moments(UPDATES))
    exact, values = np.average(UPDATES.double().numpy(), axis=0, weights=SHARES), UPDATES.double().numpy()
    rng = np.random.default_rng(1)
    errors = [
        air_oracles.received(AIR, precoding, SHARES, values, AIR.white_noise(2001, rng)) - exact for _ in range(200)
    ]
    assert np.mean(np.square(errors)) == pytest.approx(precoding.noise_std(SHARES) ** 2, rel=0.008)
    assert abs(np.mean(errors)) < 5 * precoding.noise_std(SHARES) / math.sqrt(200 * WEIGHTS)


@every_scheme
def test_the_error_is_that_of_the_formula_in_what_is_received(scheme: AirScheme) -> None:
    plan = planned(scheme)
    exact = np.average(UPDATES.double().numpy(), axis=0, weights=SHARES)
    got = [plan.receive(UPDATES, air_key(0, index)) for index in range(50)]
    errors = np.array([each.mean.numpy() - exact for each in got])
    assert np.mean(errors**2) == pytest.approx(got[0].noise_std ** 2, rel=0.016)  # 5 deviations of 0.0032
    assert abs(errors.mean()) < 5 * got[0].noise_std / math.sqrt(errors.size)


def test_mse_by_hand() -> None:
    """Three devices with q = 4, 8, 100, all weights 2 or -2 (mean square 4): A^2 = 4 / 4, so the noise of the mean of
    three is 1/3, and powers are 4/4, 4/8 and 4/100 of the limit."""
    band = AirLink([4e6, 8e6, 1e8], [0.1, 0.1, 0.1], 1e6)
    plan = plan_air(LeastError(), band, 4, compute_s=[0, 0, 0])
    got = plan.receive(torch.tensor([[2.0, -2, 2, -2]] * 3), 0)
    assert got.noise_std == pytest.approx(1 / 3)
    np.testing.assert_allclose(got.power_w, [0.1, 0.05, 0.004])
    np.testing.assert_allclose(got.energy_j, got.power_w * 2e-6)


def test_cotaf_by_hand() -> None:
    """The weakest channel (q = 4) has the small update, the best (q = 100) the large one: A^2 = 4 / 9."""
    band = AirLink([4e6, 1e8], [0.1, 0.1], 1e6)
    updates = torch.tensor([[1.0, -1.0], [3.0, -3.0]])
    cotaf, mse = (plan_air(each, band, 2, compute_s=[0, 0]).receive(updates, 0) for each in (Cotaf(), LeastError()))
    assert cotaf.noise_std == pytest.approx(1 / (2 * 2 / 3))
    assert mse.noise_std == pytest.approx(1 / (2 * 2))  # min(4/1, 100/9) = 4
    np.testing.assert_allclose(cotaf.power_w, [0.1 / 9, 0.1 * (4 / 9) * 9 / 100])
    np.testing.assert_allclose(mse.power_w, [0.1, 0.1 * 4 * 9 / 100])


def test_truncated_inversion_by_hand() -> None:
    """q without fading 10 and 40, g = 0.5: rho = 10 / E_1(0.5); entries 1, 3 and 1, 7 have m = 3 and nu^2 = 6."""
    band = AirLink([7e6, 4e7], [0.1, 0.1], 1e6, mean_snr_hz=[1e7, 4e7], fading=Fading("rayleigh"))
    plan = plan_air(TruncatedInversion(threshold=0.5), band, 2, compute_s=[0, 0])
    told = moments(torch.tensor([[1.0, 3.0], [1.0, 7.0]]))
    precoding = plan.precoding(told)
    rho = 10 / 0.5597735947761607  # E_1(0.5), Abramowitz and Stegun, table 5.1
    assert precoding.offset == pytest.approx(3.0)
    assert precoding.amplitude == pytest.approx(math.sqrt(rho / 6.0))
    np.testing.assert_allclose(told.around(3.0), [2.0, 10.0])
    np.testing.assert_allclose(
        precoding.power_w(plan.link, plan.shares, told), [0.1 * rho / 6 * 2 / 7, 0.1 * rho / 6 * 10 / 40]
    )


def test_truncated_inversion_that_always_holds_the_limit_by_hand() -> None:
    """The weakest path (q = 10) just at the threshold of 0.2, with the larger update: it sends with all it has."""
    band = AirLink([2e6, 4e7], [0.1, 0.1], 1e6, mean_snr_hz=[1e7, 4e7], fading=Fading("rayleigh"))
    scheme, told = TruncatedInversion(threshold=0.2, limit="always"), Moments(np.zeros(2), np.array([9.0, 1.0]))
    precoding = scheme.precoding(band, np.ones(2), told)
    assert precoding.amplitude == pytest.approx(math.sqrt(10 * 0.2 / 9))
    np.testing.assert_allclose(precoding.power_w(band, np.ones(2), told), [0.1, 0.1 * 2 / 9 / 40])


def test_limits_hold_in_every_round_where_that_is_claimed() -> None:
    for scheme in (TruncatedInversion(threshold=0.2, limit="always"), LeastError(100.0), Cotaf()):
        got = planned(scheme).receive(UPDATES, 0)
        assert (got.power_w <= AIR.power_w * (1 + 1e-12)).all(), scheme
    mse = planned(LeastError(100.0)).receive(UPDATES, 0)
    assert (mse.power_w / AIR.power_w).max() == pytest.approx(1.0)
    for scheme in (*SCHEMES[1:2], *SCHEMES[3:]):  # of those that keep to the limits, none has less noise
        assert planned(scheme).receive(UPDATES, 0).noise_std >= mse.noise_std


def test_the_average_limit_holds_over_the_fading() -> None:
    """The weakest path radiates its limit on average over fades, the others less; 40,000 fades."""
    mean = np.array([3e7, 9e7])
    scheme, told = TruncatedInversion(threshold=0.3), Moments(np.zeros(2), np.ones(2))
    fades = np.random.default_rng(5).standard_exponential((40_000, 2))
    radiated = np.zeros(2)
    level = scheme.precoding(
        AirLink(mean, [0.1, 0.1], 1e6, mean_snr_hz=mean, fading=Fading("rayleigh")), np.ones(2), told
    )
    for device in range(2):
        heard = fades[fades[:, device] >= scheme.threshold, device]
        band = AirLink(
            mean[device] * heard,
            np.full(len(heard), 0.1),
            1e6,
            mean_snr_hz=np.full(len(heard), mean[device]),
            fading=Fading("rayleigh"),
        )
        unit = Moments(np.zeros(len(heard)), np.ones(len(heard)))
        radiated[device] = level.power_w(band, np.ones(len(heard)), unit).sum() / len(fades)
    assert radiated[0] == pytest.approx(0.1, rel=0.03)
    assert radiated[1] == pytest.approx(0.1 / 3, rel=0.03)


def test_noise_falls_as_updates_shrink() -> None:
    for scheme in SCHEMES:
        plan = planned(scheme)
        assert plan.receive(UPDATES * 0.01, 0).noise_std == pytest.approx(0.01 * plan.receive(UPDATES, 0).noise_std)


@every_scheme
def test_updates_of_zero_arrive_without_noise_and_power(scheme: AirScheme) -> None:
    got = planned(scheme).receive(torch.zeros(DEVICES, WEIGHTS), 0)
    assert not got.mean.any()
    assert got.noise_std == 0.0
    assert not got.power_w.any()


def test_rayleigh_and_rician_laws() -> None:
    assert Fading("rician").mean_inverse(0.05) == pytest.approx(special.exp1(0.05), rel=1e-9)
    k = 4.0
    drawn = rician_gain(400_000, k, rng=np.random.default_rng(3))
    law = Fading("rician", k)
    assert np.mean(np.where(drawn >= 0.2, 1 / drawn, 0.0)) == pytest.approx(law.mean_inverse(0.2), rel=0.01)

    def plainly(f: float) -> float:
        return (k + 1) * math.exp(-k - (k + 1) * f) * special.iv(0, 2 * math.sqrt(k * (k + 1) * f)) / f

    assert law.mean_inverse(0.2) == pytest.approx(integrate.quad(plainly, 0.2, 12)[0], rel=1e-7)
    assert Fading().mean_inverse(0.5) == 1.0
    assert Fading("rayleigh").mean_inverse(0.0) == math.inf


def test_who_can_send() -> None:
    """Those without a fade below the threshold, or an error above the limit."""
    faded = AIR.snr_hz / MEAN_SNR_HZ
    np.testing.assert_array_equal(TruncatedInversion(threshold=0.8).can_send(link(), SHARES), faded >= 0.8)
    band = AirLink([1e5, 5e5, 2e6, 1e7], [0.1] * 4, 1e6)  # q = 0.1, 0.5, 2, 10
    equal = np.ones(4)
    np.testing.assert_array_equal(LeastError().can_send(band, equal), [False, False, True, True])
    np.testing.assert_array_equal(LeastError(2.0).can_send(band, equal), [False, True, True, True])


def test_all_send_when_the_slowest_has_computed() -> None:
    plan = plan_air(Cotaf(), link(), WEIGHTS, compute_s=np.arange(5.0))
    assert plan.air_s == 2001 / AIR.bandwidth_hz
    assert plan.latency_s == 4.0 + plan.air_s


@every_scheme
def test_updates_one_at_a_time_and_in_any_order(scheme: AirScheme) -> None:
    plan = planned(scheme, shares=None)
    heard = plan.hear(9)
    for place in (4, 0, 2, 1, 3):
        heard.add(place, UPDATES[place])
    stacked, streamed = plan.receive(UPDATES, 9), heard.end()
    torch.testing.assert_close(streamed.mean, stacked.mean, rtol=0, atol=1e-15)
    assert streamed.noise_std == stacked.noise_std
    np.testing.assert_array_equal(streamed.energy_j, stacked.energy_j)


def test_a_sender_that_fails_is_as_if_never_asked() -> None:
    plan, left = planned(LeastError(100.0)), [0, 2, 4]
    heard = plan.hear(9)
    for place in left:
        heard.add(place, UPDATES[place])
    band = link().of(left)
    rest = plan_air(LeastError(100.0), band, WEIGHTS, compute_s=np.zeros(3), shares=SHARES[left])
    got, wanted = heard.end(), rest.receive(UPDATES[left], 9)
    assert torch.equal(got.mean, wanted.mean)
    np.testing.assert_array_equal(got.power_w, wanted.power_w)
    again = plan.hear(9)
    again.add(1, UPDATES[1])
    with pytest.raises(ValueError, match="sender 1 of 5 sent twice"):
        again.add(1, UPDATES[1])
    with pytest.raises(ValueError, match="nobody sends"):
        plan.hear(9).end()


def test_a_weak_device_drags_all() -> None:
    band = AirLink([1e6, 1e8, 1e8], [0.1] * 3, 1e6)
    updates = UPDATES[:3, :10]
    with_it = plan_air(LeastError(10.0), band, 10, compute_s=[0, 0, 0]).receive(updates, 0)
    without = plan_air(LeastError(10.0), band.of([1, 2]), 10, compute_s=[0, 0]).receive(updates[1:], 0)
    assert with_it.noise_std > 2 * without.noise_std


def test_a_round_in_which_nobody_sends() -> None:
    plan = plan_air(Cotaf(), link().of([]), WEIGHTS, compute_s=[])
    assert plan.num_senders == 0
    assert math.isnan(plan.latency_s)
    with pytest.raises(ValueError, match="nobody sends"):
        plan.receive(UPDATES[:0], 0)


def test_bad_input_is_refused_in_a_sentence() -> None:
    plan = planned(Cotaf())
    broken = UPDATES.clone()
    broken[2, 5] = math.inf
    with pytest.raises(NotFiniteError, match="update 2 of 5"):
        plan.receive(broken, 0)
    with pytest.raises(ValueError, match="for 5 senders; give a row for each"):
        plan.receive(UPDATES[:4], 0)
    with pytest.raises(ValueError, match="planned for 4001"):
        plan.receive(UPDATES[:, :7], 0)
    with pytest.raises(ValueError, match="snr_hz of device 1 is 0"):
        AirLink([1.0, 0.0], [1.0, 1.0], 1.0)
    with pytest.raises(ValueError, match="power_w has the shape"):
        AirLink([1.0, 1.0], [1.0], 1.0)
    with pytest.raises(ValueError, match="give a law other than none"):
        AirLink([1.0], [1.0], 1.0, mean_snr_hz=[1.0])
    with pytest.raises(ValueError, match="Air schemes: truncated-inversion, mse, cotaf"):
        make_air_scheme("zhu")
    with pytest.raises(ValueError, match="threshold"):
        make_air_scheme("truncated-inversion", {"threshold": 0.0})
    with pytest.raises(ValueError, match="compute_s"):
        plan_air(Cotaf(), link(), WEIGHTS, compute_s=[0.0])


def test_what_is_no_scheme_is_not_registered() -> None:
    before = list(AIR_SCHEMES)
    with pytest.raises(
        ValueError, match=r'@flare.air_scheme above Cotaf has no name; write @flare.air_scheme\("NAME"\)'
    ):
        air_scheme(Cotaf)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="air scheme 'other': class Other must derive from AirScheme"):

        @air_scheme("other")  # type: ignore[type-var]
        class Other:
            pass

    with pytest.raises(ValueError, match="air scheme 'half': class Half lacks precoding"):

        @air_scheme("half")
        class Half(AirScheme):
            can_send = Cotaf.can_send  # type: ignore[assignment]

    with pytest.raises(ValueError, match="air scheme 'upside': write @air_scheme above @dataclass"):

        @dataclass(frozen=True)
        @air_scheme("upside")
        class Upside(Cotaf):
            level: float = setting(1.0, "of something")

    assert list(AIR_SCHEMES) == before
