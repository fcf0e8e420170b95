"""Theorem 1, Lemma 1, Theorem 2 and Corollary 1 on numbers that can be followed by hand.

Throughout L = 2, eta_l = 1/40, eta_g = 1/2, tau_bar = 4, devices of 2 and 4 steps, sigma^2 = 3, G = 2, H = 1.

    p = L tau_bar eta_l = 1/5        c = tau_bar eta_g eta_l = 1/20        L c = 1/10        sum 1/tau = 3/4
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from flare.theory import (
    Constants,
    Form,
    Rates,
    broken_conditions,
    corollary_1,
    lemma_1,
    q_limit,
    safe_tau_bar,
    theorem_1,
    theorem_2,
)
from flare.theory.quadratic import Moments, Quadratic, flare_round, sampled_round

RATES = Rates(local_lr=1 / 40, global_lr=1 / 2, tau_bar=4.0)
TAU = [2, 4]
ALL = Constants(smoothness=2.0, sigma_sq=3.0, g_const=2.0, h_const=1.0, rho=1.0)
SOME = Constants(smoothness=2.0, sigma_sq=3.0, g_const=2.0, h_const=1.0, rho=1.0, selection_error=0.5)


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-13)


def test_theorem_1() -> None:
    # eta_l tau_bar = 1/10: 8 / 100 (5 + 3) = 0.64, and half of it without the superfluous step (b).
    bound = theorem_1(1 / 40, 4, gradient_sq=5.0, sigma_sq=3.0, form=Form.PRINTED)
    assert (bound.descent, bound.phi_2_noise, bound.total) == (near(0.4), near(0.24), near(0.64))
    assert theorem_1(1 / 40, 4, 5.0, 3.0).total == near(0.64)
    assert theorem_1(1 / 40, 4, 5.0, 3.0, Form.PROVEN).total == near(0.32)


def test_q_limits() -> None:
    # drift: 2.4 H^2 p^2 = 2.4 / 25 = 0.096. Printed: 1 - c - drift; corrected: 1 - L c - drift.
    assert q_limit(RATES, ALL, Form.PRINTED) == near(1 - 0.05 - 0.096)
    assert q_limit(RATES, ALL, Form.CORRECTED) == near(1 - 0.1 - 0.096)
    # Proven, all take part: 1 - drift; with a selection 1 - 2 drift.
    assert q_limit(RATES, ALL, Form.PROVEN) == near(1 - 0.096)
    assert q_limit(RATES, SOME, Form.PROVEN) == near(1 - 2 * 0.096)


def test_lemma_1() -> None:
    # phi_1 = 1.2 L^2 tau_bar^3 eta_g eta_l^3 G^2 = 1.2 * 4 * 64 * 0.5 / 64000 * 4 = 0.0096
    # phi_2 = L tau_bar^2 eta_g eta_l^2 / 2 (p / M + eta_g / M^2) sigma^2 sum 1/tau
    #       = 2 * 16 * 0.5 / 1600 / 2 (0.1 + 0.125) * 3 * 0.75 = 0.005 * 0.225 * 2.25
    bound = lemma_1(RATES, TAU, ALL, gradient_sq=7.0, q=0.5)
    assert bound.descent == near(-0.05 * 0.5 / 2 * 7.0)
    assert bound.phi_1 == near(0.0096)
    assert bound.phi_2_drift == near(0.005 * 0.1 * 2.25)
    assert bound.phi_2_noise == near(0.005 * 0.125 * 2.25)
    assert bound.total == near(-0.0875 + 0.0096 + 0.005 * 0.225 * 2.25)
    assert lemma_1(RATES, TAU, ALL, 7.0).descent == near(-0.025 * 0.804 * 7.0)
    assert lemma_1(RATES, TAU, ALL, 7.0, form=Form.PRINTED).descent == near(-0.025 * 0.854 * 7.0)


def test_lemma_1_proven() -> None:
    # Each term over that of the paper: phi_1 and the drift k, the noise 1 / (1 - L c) = 10/9; and c delta^2.
    paper = lemma_1(RATES, TAU, ALL, 7.0)
    everyone = lemma_1(RATES, TAU, ALL, 7.0, form=Form.PROVEN)
    assert everyone.descent == near(-0.025 * 0.904 * 7.0)
    assert everyone.phi_1 == near(paper.phi_1)
    assert everyone.phi_2_drift == near(paper.phi_2_drift)
    assert everyone.phi_2_noise == near(10 / 9 * paper.phi_2_noise)
    assert everyone.selection == 0.0
    some = lemma_1(RATES, TAU, SOME, 7.0, form=Form.PROVEN)
    assert some.descent == near(-0.025 * 0.808 * 7.0)
    assert some.phi_1 == near(2 * paper.phi_1)
    assert some.phi_2_drift == near(2 * paper.phi_2_drift)
    assert some.phi_2_noise == near(10 / 9 * paper.phi_2_noise)
    assert some.selection == near(0.05 * 0.25)


def test_lemma_1_as_corrected_can_be_tighter_than_as_proven() -> None:
    # p = c = L c = 1/5, one device: over c / 2 both have the drift p^2 / 2 = 0.02; the noise is (1/5) / 2 = 0.1 in
    # corrected, 0.1 / (4/5) = 0.125 in proven. q is 1 - 0.2 - 2.4 / 25 = 0.704 against 0.904: hardly anything where
    # ||grad F||^2 is 1e-6, and more than the noise where it is 1.
    rates, constants = Rates(0.1, 1.0, 2.0), Constants(smoothness=1.0, sigma_sq=1.0, g_const=0.0)
    for gradient_sq in (1e-6, 1.0):
        corrected, proven = (
            lemma_1(rates, [2], constants, gradient_sq, form=form).total for form in (Form.CORRECTED, Form.PROVEN)
        )
        assert corrected == near(0.1 * (0.12 - 0.704 * gradient_sq))
        assert proven == near(0.1 * (0.145 - 0.904 * gradient_sq))
        assert (corrected < proven) == (gradient_sq < 0.1)
    page = " ".join((Path(__file__).parents[2] / "docs" / "theory.md").read_text().split())
    assert "‖∇F‖² = 1e-6: 0.0120 against 0.0145)" in page
    assert "it is looser than `proven` wherever" not in page


def test_theorem_2() -> None:
    # kappa = 4 / 2 = 2, M = 2, R = 10, F(w_1) - F* = 6, q = 1/2.
    # start = 2 * 6 / (c q R) = 48, Phi_1 = 2.4 p^2 G^2 / q = 0.768,
    # Phi_2 = L eta_l / q (kappa p + kappa eta_g / M) sigma^2 = 0.1 (0.4 + 0.5) 3; printed: 0.1 (0.2 + 0.5) 3.
    given = {"gap": 6.0, "rounds": 10, "num_selected": 2, "kappa": 2.0, "q": 0.5}
    bound = theorem_2(RATES, ALL, **given)  # type: ignore[arg-type]
    assert (bound.descent, bound.phi_1) == (near(48.0), near(0.768))
    assert (bound.phi_2_drift, bound.phi_2_noise) == (near(0.12), near(0.15))
    printed = theorem_2(RATES, ALL, form=Form.PRINTED, **given)  # type: ignore[arg-type]
    assert (printed.phi_2_drift, printed.phi_2_noise) == (near(0.06), near(0.15))
    proven = theorem_2(RATES, SOME, form=Form.PROVEN, **given | {"q": 0.2})  # type: ignore[arg-type]
    # (L eta_l / q) (k kappa p + kappa eta_g / ((1 - L c) M)) sigma^2 and 2 delta^2 / q
    assert proven.phi_2_drift == near(0.05 / 0.2 * (2 * 2.0 * 0.2) * 3)
    assert proven.phi_2_noise == near(0.05 / 0.2 * (2.0 * 0.5 / (0.9 * 2)) * 3)
    assert proven.selection == near(2 * 0.25 / 0.2)


def test_theorem_2_sums_lemma_1() -> None:
    # With all tau equal to tau_bar, kappa = 1 loses nothing: the mean of Lemma 1 over rounds is Theorem 2.
    lemma = lemma_1(RATES, [4, 4], ALL, gradient_sq=7.0)
    theorem = theorem_2(RATES, ALL, gap=6.0, rounds=10, num_selected=2, kappa=1.0)
    assert theorem.phi_1 + theorem.phi_2 == near((lemma.phi_1 + lemma.phi_2) / (0.025 * lemma.q))


def test_corollary_1() -> None:
    # tau_bar = 4, M = 9, R = 900, L = 1, sigma^2 = 3, G = 2, gap = 6, kappa = 2, q = 1/2: sqrt(tau_bar M R) = 180.
    # leading = (2 gap + kappa L sigma^2) / (180 q) = (12 + 6) / 90,
    # low order = (2.4 L^2 G^2 + kappa L^2 sigma^2 / tau_bar) / (q R) = (9.6 + 1.5) / 450.
    constants = Constants(smoothness=1.0, sigma_sq=3.0, g_const=2.0)
    given = {"tau_bar": 4.0, "num_selected": 9, "rounds": 900, "gap": 6.0, "kappa": 2.0, "q": 0.5}
    found = corollary_1(constants, **given)  # type: ignore[arg-type]
    assert (found.rates.local_lr, found.rates.global_lr) == (near(1 / 120), near(6.0))
    assert (found.leading, found.low_order) == (near(18 / 90), near(11.1 / 450))
    # Proven: L c = sqrt(tau_bar M / R) = 1/5, so that the noise is 5/4 of that.
    proven = corollary_1(constants, form=Form.PROVEN, **given)  # type: ignore[arg-type]
    assert (proven.leading, proven.low_order) == (near((12 + 6 * 1.25) / 90), near(11.1 / 450))


def test_the_condition_on_the_step_follows_from_appendix_b() -> None:
    # 2.4 p^2 <= tau / (1.2 tau - 1) for every tau: the right side falls to 1 / 1.2, so p <= sqrt(1 / 2.88) = 0.589.
    least = min(tau / (1.2 * tau - 1) for tau in range(1, 100_000))
    assert 0.58 < math.sqrt(least / 2.4) < 0.59
    assert safe_tau_bar(2.0, 0.1) == near(2.9)
    assert broken_conditions(Rates(0.1, 0.1, safe_tau_bar(2.0, 0.1)), ALL) == []
    assert safe_tau_bar(0.0, 0.1) == math.inf


def test_the_sum_of_the_drifts_is_below_tau_squared() -> None:
    # h of docs/theory.md: 0 at tau = 1, rising to 0.36 (e^(5/3) - 8/3), and below the bound that proves it under 1.
    def h(tau: float) -> float:
        less, more = 1.2 * tau - 1, 1.2 * tau + 1
        return less / (2 * tau**2) * ((1 - 3.2 * tau) / 2 + less / 2 * (more / less) ** tau)

    def above_h(tau: float) -> float:
        u = 1 / (1.2 * tau)
        return 0.36 * (math.exp(5 / 3 - 2 * u) - 8 / 3 + 11 / 3 * u - u**2)

    values = [h(tau) for tau in range(1, 3000)]
    assert values[0] == pytest.approx(0.0, abs=1e-12)
    assert values == sorted(values)
    assert all(value <= above_h(tau) for tau, value in enumerate(values, start=1))
    assert max(above_h(1.0), above_h(1e12)) < 0.36 * 2.63 < 0.95  # the greater end of a convex function


@pytest.mark.parametrize(("local_lr", "off"), [(1e-2, 0.05), (1e-4, 5e-4)])
def test_a_tau_bar_that_depends_on_the_draw_leads_away_even_if_the_draw_is_uniform(local_lr: float, off: float) -> None:
    # f = (w -+ 1)^2 / 2 with tau = (1, 9), one of the two drawn: under MaS each steps at eta_l, the second nine times.
    # The mean w+ - w = -(eta_l / 2) ((w - 1) + 9 (w + 1)), to first order, is zero at w = -0.8; F has its optimum at 0.
    pair, tau = Quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), 0.0), np.array([1.0, 9.0])

    def drift_of_the_mean(weight: float, tau_bars: tuple[float, float]) -> float:
        at = Moments.at(np.array([weight]))
        ends = [
            flare_round(pair, Rates(local_lr, 1.0, tau_bars[i]), tau, np.array([i]), at).after.mean[0] for i in (0, 1)
        ]
        return float(np.mean(ends)) - weight

    def fixed_point(tau_bars: tuple[float, float]) -> float:  # of a straight line
        at_0, at_1 = drift_of_the_mean(0.0, tau_bars), drift_of_the_mean(1.0, tau_bars)
        return at_0 / (at_0 - at_1)

    assert fixed_point((1.0, 9.0)) == pytest.approx(-0.8, abs=off)  # MaS
    assert fixed_point((9.0, 9.0)) == pytest.approx(0.0, abs=off)  # one tau_bar, whoever is drawn


def test_with_one_tau_bar_what_is_left_of_a_uniform_draw_falls_with_the_rates() -> None:
    pair, tau = Quadratic(np.ones((2, 1, 1)), np.array([[1.0], [-1.0]]), 0.0), np.array([1.0, 9.0])
    left = []
    for local_lr in (1e-3, 1e-4):
        step, at = sampled_round(pair, Rates(local_lr, 1.0, 9.0), tau, 1), Moments.at(np.zeros(1))
        for _ in range(round(3.0 / local_lr)):
            at = step(at)
        left.append(pair.gradient_sq(at))
    assert left[0] < 0.01  # of delta^2 = 1
    assert left[1] / left[0] == pytest.approx(0.1, rel=0.05)


def test_broken_conditions_are_told_in_words() -> None:
    (told,) = broken_conditions(Rates(0.08, 1e-3, 4.0), ALL)
    assert "L tau_bar eta_l is 0.64, more than 0.58" in told
    assert "a local rate of at most 0.0725, or a tau_bar of at most 3.62" in told
    (told,) = broken_conditions(Rates(1 / 40, 10.0, 4.0), ALL)
    assert "no q greater than 0: it may be at most -1.1" in told
    (told,) = broken_conditions(RATES, ALL, q=0.9)
    assert told == "q is 0.9; it must be greater than 0 and at most 0.804"
    (told,) = broken_conditions(RATES, SOME)
    assert "differs from that of all by up to 0.5" in told
    assert broken_conditions(RATES, SOME, form=Form.PROVEN) == []
    (told,) = broken_conditions(Rates(1 / 40, 10.0, 4.0), ALL, form=Form.PROVEN)
    assert told == "L tau_bar eta_g eta_l is 2, not less than 1: take a global rate below 5, or smaller local steps"
    steep = Constants(smoothness=2.0, sigma_sq=3.0, g_const=2.0, h_const=4.0)
    (told,) = broken_conditions(RATES, steep, form=Form.PROVEN)
    assert "no q greater than 0: it may be at most -0.536" in told
    with pytest.raises(
        ValueError, match=r"the corrected bound does not hold here: .* more than 0\.58.*; and there is no"
    ):
        lemma_1(Rates(1.0, 10.0, 4.0), TAU, ALL, 1.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Constants(-1.0, 1.0, 1.0), "smoothness is -1; it must be a finite number, at least 0"),
        (lambda: Constants(1.0, math.nan, 1.0), "sigma_sq is nan"),
        (lambda: Constants(1.0, 1.0, 1.0, h_const=0.9), "h_const is 0.9; it must be a finite number, at least 1"),
        (lambda: Constants(1.0, 1.0, 1.0, rho=0.0), "rho is 0; it must be greater than 0"),
        (lambda: Rates(0.0, 1.0, 1.0), "local_lr is 0; it must be greater than 0"),
        (lambda: lemma_1(RATES, [0.5], ALL, 1.0), "tau is .* each at least 1"),
        (lambda: lemma_1(RATES, [], ALL, 1.0), "of one device at least"),
        (lambda: lemma_1(RATES, TAU, ALL, -1.0), "gradient_sq is -1"),
        (lambda: theorem_1(0.1, 2.5, 1.0, 1.0), "tau_bar is 2.5; .* whole number: MaS"),
        (lambda: theorem_2(RATES, ALL, gap=1.0, rounds=0, num_selected=1, kappa=1.0), "rounds 0"),
    ],
)
def test_bad_input_is_told(call, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=says):
        call()
