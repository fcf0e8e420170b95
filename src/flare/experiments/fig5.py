"""Fig. 5: the policies on MNIST, deadlines 0.4 and 1 s, i.i.d. and non-i.i.d.; and ours beside them."""

from __future__ import annotations

from flare.experiments.policy_figures import experiment

EXPERIMENT = experiment("fig5", "mnist", (0.4, 1.0))
