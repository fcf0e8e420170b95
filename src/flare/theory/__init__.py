"""The paper's analysis: its bounds, the constants they need, and both against measurements."""

from flare.theory.bounds import Bound, Corollary1, corollary_1, corollary_rates, lemma_1, theorem_1, theorem_2
from flare.theory.coding import P2Weights, coded_lemma_1, p2_weights, update_sq
from flare.theory.conditions import STEP_LIMIT, Constants, Form, Rates, broken_conditions, q_limit, safe_tau_bar

__all__ = [
    "STEP_LIMIT",
    "Bound",
    "Constants",
    "Corollary1",
    "Form",
    "P2Weights",
    "Rates",
    "broken_conditions",
    "coded_lemma_1",
    "corollary_1",
    "corollary_rates",
    "lemma_1",
    "p2_weights",
    "q_limit",
    "safe_tau_bar",
    "theorem_1",
    "theorem_2",
    "update_sq",
]
