"""Fig. 6: the policies on CIFAR-10, deadlines 1.5 and 5 s, i.i.d. and non-i.i.d.; and ours beside them."""

from __future__ import annotations

from flare.experiments.policy_figures import experiment

EXPERIMENT = experiment("fig6", "cifar10", (1.5, 5.0))
