"""Erratum 9 of docs/errata.md, its last paragraph: where the error of selecting is zero, and where only on average."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from flare.learning.tau_bar import TAU_BARS
from flare.theory import Constants, Form, Rates, lemma_1
from flare.theory.quadratic import Moments, flare_round, random_quadratic
from flare.types import Floats
from tests.errata_page import PAGE, says

GRADIENTS = (Fraction(-3), Fraction(1), Fraction(5))  # of three devices at w_r; c_i = 1/3
KEPT = np.array([1.0, 3.0, 9.0])
EQUAL = np.full(3, 4.0)
LAW = {1.0: Fraction(1, 2), 3.0: Fraction(1, 3), 9.0: Fraction(1, 6)}
"""Of a number of steps that is drawn anew, independently for every device."""


def drawn_anew() -> Iterable[tuple[Floats, Fraction]]:
    """Every outcome of the three devices' steps with its probability."""
    for tau in itertools.product(LAW, repeat=3):
        yield np.array(tau), math.prod((LAW[each] for each in tau), start=Fraction(1))


def mean_error(strategy: str, outcomes: Iterable[tuple[Floats, Fraction]], first_tau: Floats) -> Fraction:
    """E[tau_bar e], exactly, where two of the three devices are drawn uniformly."""
    pairs = list(itertools.combinations(range(3), 2))
    total = Fraction(0)
    for tau, chance in outcomes:
        for pair in pairs:
            error = sum(GRADIENTS) / 3 - sum(GRADIENTS[i] for i in pair) / 2
            total += chance / len(pairs) * Fraction(TAU_BARS[strategy](tau, first_tau, np.array(pair))) * error
    return total


@pytest.mark.parametrize("strategy", ["mas", "mes"])
def test_erratum_9_mas_and_mes_are_independent_of_who_is_drawn_where_steps_are_drawn_anew(strategy: str) -> None:
    assert sum(chance for _, chance in drawn_anew()) == 1
    assert mean_error(strategy, drawn_anew(), KEPT) == 0
    assert mean_error(strategy, [(EQUAL, Fraction(1))], EQUAL) == 0  # Remark 1
    assert mean_error(strategy, [(KEPT, Fraction(1))], KEPT) != 0
    assert says(
        9,
        "under MaS and MeS in Fig. 4(a), (b), where every τ_{r,i} is, as we read Section V-A, drawn anew",
        "nor in general where devices",
    )


@pytest.mark.parametrize("strategy", ["fmas", "fmes"])
def test_erratum_9_fmas_and_fmes_depend_on_who_is_drawn_by_the_first_round(strategy: str) -> None:
    assert mean_error(strategy, drawn_anew(), KEPT) != 0
    assert mean_error(strategy, drawn_anew(), EQUAL) == 0
    assert says(9, "not so under FMaS and FMeS as printed, whose τ_{1,i} stay with the devices")


def test_erratum_9_in_fig_3_tau_bar_is_12_in_all_but_a_few_rounds() -> None:
    # 20 of 60 are drawn, 20 of them do 12 steps: all 20 must come from the other 40.
    share = math.comb(40, 20) / math.comb(60, 20)
    assert says(9, f"a share of C(40, 20) / C(60, 20) = {share:.1e}")
    assert share == pytest.approx(math.prod((40 - k) / (60 - k) for k in range(20)), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_erratum_9_where_all_f_i_are_the_same_nothing_is_lost_by_selecting(seed: int) -> None:
    one = random_quadratic(seed, num_devices=1, num_weights=3)
    same = replace(one, hessian=np.repeat(one.hessian, 4, axis=0), minimum=np.repeat(one.minimum, 4, axis=0))
    rates, tau, selected = Rates(0.02, 1.5, 4.0), np.array([1.0, 4.0, 2.0, 3.0]), np.array([0, 2])
    at = Moments.at(same.optimum + 1.0)
    done = flare_round(same, rates, tau, selected, at)
    assert done.selection_sq == pytest.approx(0.0, abs=1e-20)
    bound = lemma_1(
        rates, tau[selected], Constants(same.smoothness, same.sigma_sq, 0.0), same.gradient_sq(at), form=Form.PROVEN
    )
    assert same.gap(done.after) - same.gap(at) <= bound.total
    assert "all devices take part with c_i = 1/K or all f_i are the same, Lemma 1" in " ".join(PAGE.split())
