"""The pilot runs of policy `luo`: two short runs from the same start, from which it learns beta / alpha.

The bound of its authors says that the rounds to a loss are in proportion to A + beta / alpha, where A is the sum of
p_i^2 G_i^2 / q_i. With q_i = 1/N that is A_u = N sum p^2 G^2, with q_i = p_i it is A_s = sum p G^2. Where the two runs
take R_u and R_s rounds to the same losses,

    R_u / R_s = (A_u + beta / alpha) / (A_s + beta / alpha),      which is solved for beta / alpha

(Luo et al., INFOCOM 2022). The loss is that of the global model on the test samples, which the base station holds and
goes through after every round: it costs no device anything, and both runs are measured alike, where the training losses
of those that sent depend on who was drawn. The rounds of several losses are added up. By the bound the ratio lies
between 1 (beta / alpha infinite) and A_u / A_s (0); a measured one that does not is taken for the nearer end, where 1
is moved by one round, the least that can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flare.config import Config, with_settings
from flare.research.arguments import ConfigLike, DataLike, ModuleLike, config_of, own_of, with_names
from flare.research.run import Run
from flare.research.running import simulate
from flare.scheduling.systems.luo import BY_SAMPLES, UNIFORM
from flare.simulation.run import Simulation
from flare.types import Floats

_OF_PILOTS = ("sampling", "beta_over_alpha", "pilot_s", "pilot_j", "pilot_bits")


@dataclass(frozen=True)
class Pilots:
    """What two pilot runs have shown, and what they cost.

    beta_over_alpha   the estimate
    pilot_s           simulated seconds of both, from the first round to the last
    pilot_j           what all devices spent in them
    pilot_bits        what they sent
    losses            the test losses to which rounds were counted, falling
    rounds            the rounds that each run took to each of them: with q = 1/N, and with q = p
    """

    beta_over_alpha: float
    pilot_s: float
    pilot_j: float
    pilot_bits: float
    losses: tuple[float, ...]
    rounds: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def options(self) -> dict[str, Any]:
        """Options of policy `luo`, with which a run uses the estimate and pays for it."""
        return {
            "beta_over_alpha": self.beta_over_alpha,
            "pilot_s": self.pilot_s,
            "pilot_j": self.pilot_j,
            "pilot_bits": self.pilot_bits,
        }


def luo_pilots(
    config: ConfigLike = None,
    *,
    rounds: int = 50,
    num_losses: int = 5,
    dataset: DataLike = None,
    held: Sequence[ArrayLike] | None = None,
    module: ModuleLike = None,
    progress: bool = True,
) -> Pilots:
    """Estimate beta / alpha of policy `luo` with two pilot runs of the settings, in one cell and from one start.

    Parameters
    ----------
    config, dataset, held, module, progress : as for `flare.simulate`. Options of the settings for `luo` count, such as
        num_selected; runs are not written down.
    rounds : of each pilot run.
    num_losses : to how many test losses rounds are counted: evenly spaced from the start to the least that both reach.

    Raises ValueError where the test loss does not fall, and where the bound is the same for both runs, so that nothing
    can be told: if all devices hold the same number of samples, say.
    """
    for name, given in (("rounds", rounds), ("num_losses", num_losses)):
        if isinstance(given, bool) or not isinstance(given, int):
            raise ValueError(f"{name} is {given!r:.80}; it must be a whole number")
    if rounds < 2 or num_losses < 1:
        raise ValueError(
            f"rounds is {rounds} and num_losses {num_losses}; pilot runs take at least 2 rounds and 1 loss"
        )
    whole = with_names(config_of(config), policy=None, method=None, dataset=dataset, module=module)
    ways = [_pilot(whole, rounds, sampling) for sampling in (UNIFORM, BY_SAMPLES)]
    runs = [simulate(way, dataset=dataset, held=held, module=module, progress=progress) for way in ways]
    own = own_of(dataset, held, module)
    samples = Simulation(whole, dataset=own.dataset, held=own.held, module=own.module).num_samples
    losses = _losses([_loss(run) for run in runs], num_losses)
    counted = [[int(np.argmax(_loss(run) <= each)) + 1 for each in losses] for run in runs]
    norm = _mean_norms(runs, len(samples))
    ratio = estimate(samples / samples.sum(), norm, *(sum(each) for each in counted))
    return Pilots(
        beta_over_alpha=ratio,
        pilot_s=float(sum(run.numbers.of_round["clock_s"][-1] for run in runs)),
        pilot_j=float(sum(run.numbers.round_energy_j().sum() for run in runs)),
        pilot_bits=float(sum(run.numbers.round_sent_bits().sum() for run in runs)),
        losses=tuple(losses.tolist()),
        rounds=(tuple(counted[0]), tuple(counted[1])),
    )


def estimate(share: Floats, norm: Floats, rounds_uniform: int, rounds_by_samples: int) -> float:
    """beta / alpha of p_i, G_i and the rounds of the two ways to draw; ValueError where they are one way."""
    uniform, by_samples = len(share) * float((share**2 * norm**2).sum()), float((share * norm**2).sum())
    end = uniform / by_samples
    if abs(end - 1.0) < 1e-9:
        raise ValueError(
            "beta / alpha cannot be told from pilot runs: with the samples and updates of these devices the bound is "
            "the same for both; leave beta_over_alpha at 0, or divide the samples unevenly (data.partition)"
        )
    least = 1.0 / rounds_by_samples
    near, far = sorted((1.0 + least if end > 1.0 else 1.0 - least, end))
    ratio = min(max(rounds_uniform / rounds_by_samples, near), far) if near < far else end
    return max((uniform - ratio * by_samples) / (ratio - 1.0), 0.0)


def _pilot(whole: Config, rounds: int, sampling: str) -> Config:
    """The settings of a pilot run."""
    given = whole.scheduling.options if whole.scheduling.policy == "luo" else {}
    kept = {name: value for name, value in given.items() if name not in _OF_PILOTS}
    limits = {"run.rounds": rounds, "run.evaluate_every": 1, "run.seconds": 0.0, "run.target_accuracy": 0.0}
    chosen = {"scheduling.policy": "luo", "scheduling.options": kept | {"sampling": sampling}}
    return with_settings(whole, limits | chosen)


def _loss(run: Run) -> Floats:
    """The least test loss so far, after each round."""
    return np.minimum.accumulate(np.nan_to_num(run.numbers.of_round["test_loss"], nan=np.inf))


def _losses(of_runs: Sequence[Floats], number: int) -> Floats:
    """The losses to which rounds are counted, falling."""
    begin, end = min(float(each[0]) for each in of_runs), max(float(each[-1]) for each in of_runs)
    if not end < begin:
        raise ValueError(
            f"the test loss does not fall in the pilot runs (from {begin:.4g} to {end:.4g}); give them more rounds, or "
            "a smaller learning rate"
        )
    return np.linspace(begin, end, number + 1)[1:]


def _mean_norms(runs: Sequence[Run], num_devices: int) -> Floats:
    """G_i: the mean norm of each device's updates, the largest for one that never sent."""
    total, count = np.zeros(num_devices), np.zeros(num_devices)
    for run in runs:
        for record in run.records:
            known = [(device, norm) for device, norm in zip(record.sent, record.update_norm, strict=True) if norm]
            for device, norm in known:
                total[device] += norm
                count[device] += 1.0
    mean = total / np.maximum(count, 1.0)
    return np.where(count > 0.0, mean, mean.max(initial=0.0))
