"""What a device is asked to do in a round, and what it sends back.

Every method of this package asks a device for the same kind of work: some steps of stochastic gradient descent

    w  <-  w - lr (g(w) + drift + mu (w - w_start)),                 the local update, Eq. (8) for FLARE

that differ only in a few numbers and vectors. FedAvg sets lr alone; FLARE scales it by tau_bar / tau_i; FedProx pulls
back to the start with mu; SCAFFOLD and FedLin correct the direction by a drift that stays the same all round. What g
is, a rule may change in three ways, alone or together:

    ascent     g is the gradient at w + ascent g(w) / |g(w)|, on the same batch (sharpness-aware steps, FedSAM)
    mask       the device trains a part of the model, the one with the weights mask * w (HeteroFL)
    contrast   the loss has a second term, which compares features of samples with those of two other models (MOON)

So an engine needs to know this one rule, and every method runs in every engine.

Weights are flat: one float32 vector of shape (weights,), in the order of the module's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flare.learning.features import last_linear
from flare.learning.flat import FlatModel
from flare.types import Indices


@dataclass(frozen=True, eq=False)
class Contrast:
    """A term that draws features to those of the start weights and away from those of the device's last own model.

    Let z be the features (`flare.learning.features`) of a sample under the weights w, z_start those under the start
    weights and z_previous those under `previous`. The loss of the sample grows by (MOON, Li et al., 2021)

        -mu log(e^near / (e^near + e^far)),     near = cos(z, z_start) / temperature,
                                                far = cos(z, z_previous) / temperature.

    A device that has no last model of its own gets no contrast, or the start weights as `previous`, which make the
    term a constant.
    """

    previous: Tensor  # (weights,), what the device ended with when it last trained
    mu: float
    temperature: float = 0.5


@dataclass(frozen=True, eq=False)
class LocalRule:
    """How a device steps this round. Every field after `steps` may be left out, and then changes nothing.

    mu                      weight of the pull back to the start
    drift                   added to every gradient, shape (weights,)
    subtract_own_gradient   `drift` is only the part of it that all devices share: who hands the job to an engine first
                            subtracts the gradient of the device's own data at the start weights. Base stations that do
                            not know that gradient send such rules (FedLin on real nodes); engines refuse them
    ascent                  how far uphill from w, as a distance between weights, the gradient of a step is taken. Only
                            g is: `drift` and `mu (w - w_start)` are those at w. Where g is zero it is taken at w
    mask                    shape (weights,). The device's model is that with the weights mask * w, also where a
                            contrast asks for features, and g is the gradient with respect to w: mask * g(mask * w).
                            With entries of 0 and 1 that is the sub-model of the weights marked by 1. Other numbers
                            scale: 1 / rate on the weights and biases before a ReLU divides its output by the rate,
                            which is HeteroFL's scaler. Weights whose mask is 0 never move, whatever the drift
    widths                  where the mask marks the weights of a narrower model: the outputs of its layers, as of
                            `flare.learning.widths`. Engines may then compute with that model, which is less work and
                            the same but for rounding
    contrast                a second term of the loss
    control                 the base station's control variate, shape (weights,): where updates are coded, the device
                            also sends how its own one changes (`control_change`, SCAFFOLD); engines do not look at it.
                            `drift` has it as a summand: what a coded broadcast loses of it is lost there too
    """

    lr: float
    steps: int
    mu: float = 0.0
    drift: Tensor | None = None
    subtract_own_gradient: bool = False
    ascent: float = 0.0
    mask: Tensor | None = None
    widths: tuple[int, ...] | None = None
    contrast: Contrast | None = None
    control: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it says nothing beyond `lr` and `steps`."""
        return (
            self.drift is None
            and self.mask is None
            and self.contrast is None
            and self.mu == 0.0 == self.ascent
            and self.widths is None
            and not self.subtract_own_gradient
        )

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Whether it has an ascent, a mask and a contrast that counts."""
        return self.ascent != 0.0, self.mask is not None, self.contrast is not None and self.contrast.mu != 0.0

    @property
    def added(self) -> tuple[bool, bool]:
        """Whether a pull back to the start and a drift are added to its gradients."""
        return self.mu != 0.0, self.drift is not None

    def on(self, device: torch.device) -> LocalRule:
        """The same rule with its tensors as float32 on a device, and without a contrast that does not count."""
        if self.drift is None and self.mask is None and self.contrast is None:
            return self
        contrast = None
        if self.contrast is not None and self.contrast.mu != 0.0:
            contrast = replace(self.contrast, previous=self.contrast.previous.to(device, torch.float32))
        drift = None if self.drift is None else self.drift.to(device, torch.float32)
        mask = None if self.mask is None else self.mask.to(device, torch.float32)
        return replace(self, drift=drift, mask=mask, contrast=contrast)


@dataclass(frozen=True, eq=False)
class Job:
    """One device's work: where it starts, how it steps, and on which training samples."""

    start: Tensor  # (weights,), shared by the devices of a run; never written to
    rule: LocalRule
    batches: Indices  # (steps, batch size), indices into the training samples


@dataclass(frozen=True, eq=False)
class Update:
    """What a device sends back. The losses are cross-entropies, without the other terms of a rule."""

    delta: Tensor  # (weights,), weights after the last step less those at the start
    loss: float  # training loss, the mean over its steps, each before the step
    squared_loss: float = math.nan  # the mean over its steps of the square of that loss; nan where it is not known
    norm: float = math.nan  # of delta, summed in float64, before it was coded; nan: not computed yet
    control_change: Tensor | None = None  # (weights,), where it was sent beside; None: it follows from delta


@dataclass(frozen=True, eq=False)
class GradientJob:
    """The loss over given training samples at given weights, or its gradient (FedLin asks for it, and policies may)."""

    at: Tensor  # (weights,)
    samples: Indices  # (samples,)


@dataclass(frozen=True)
class Score:
    """How good weights are on the test samples."""

    accuracy: float
    loss: float


def check_job(job: Job, model: FlatModel) -> None:
    """Refuse a job that cannot be carried out as it is written; engines ask before they begin."""
    _check_numbers(job, model)
    if job.rule.contrast is not None:
        last_linear(model.module)


def _check_numbers(job: Job, model: FlatModel) -> None:
    """All but that the model has features that a contrast can compare."""
    rule, contrast = job.rule, job.rule.contrast
    if rule.steps < 1 or len(job.batches) != rule.steps:
        raise ValueError(
            f"a job asks for {rule.steps} steps and has {len(job.batches)} batches: give one for each step"
        )
    if job.start.shape != (model.num_weights,):
        raise ValueError(
            f"a job starts from weights of shape {tuple(job.start.shape)}; the model has {model.num_weights}"
        )
    previous = None if contrast is None else contrast.previous
    vectors = {"drift": rule.drift, "mask": rule.mask, "contrast.previous": previous}
    for name, vector in vectors.items():
        if vector is not None and vector.shape != (model.num_weights,):
            raise ValueError(
                f"the {name} of a job's rule has the shape {tuple(vector.shape)}; it must be ({model.num_weights},), "
                "one number for each weight of the model"
            )
    if rule.subtract_own_gradient:
        raise ValueError(
            "a job's rule still says subtract_own_gradient: subtract the gradient of the device's own data at the "
            "start weights from the drift, and unset it, before an engine gets the job"
        )
    if rule.widths is not None and rule.mask is None:
        raise ValueError("a job's rule has the widths of a narrower model and no mask: give the mask that marks it")
    if not 0.0 <= rule.ascent < math.inf:
        raise ValueError(f"the ascent of a job's rule is {rule.ascent}; it is a distance: zero or more, and finite")
    if contrast is not None and not contrast.temperature > 0.0:
        raise ValueError(f"the contrast of a job's rule has the temperature {contrast.temperature}; it must be > 0")


def check_jobs(jobs: Sequence[Job], model: FlatModel) -> None:
    """`check_job` of each; what jobs share is looked at once."""
    starts: set[int] = set()  # the ids of those that are sound, which the jobs keep alive
    rules: set[int] = set()
    for job in jobs:
        rule = job.rule
        has_sound_rule = rule.is_plain or id(rule) in rules
        if not (has_sound_rule and id(job.start) in starts and len(job.batches) == rule.steps > 0):
            _check_numbers(job, model)
            starts.add(id(job.start))
            rules.add(id(rule))
    if any(job.rule.contrast is not None for job in jobs):
        last_linear(model.module)


def make_update(delta: Tensor, losses: list[Tensor]) -> Update:
    """What a device sends back whose steps began with these losses."""
    of_steps = torch.stack(losses).double()
    squares = [loss * loss for loss in of_steps.tolist()]
    loss, squared_loss = float(of_steps.mean()), sum(squares) / len(squares)
    return Update(delta, loss, squared_loss, float(norm_of(delta)))


def drift_less_own(drift: Tensor, own_gradient: Tensor) -> Tensor:
    """What a device adds to its gradients that takes its own gradient at the start from the drift."""
    return (drift - own_gradient).float()


def control_change(control: Tensor, steps: int, lr: float, delta: Tensor) -> Tensor:
    """How the control variate of a device changes that moved by delta: c_i' - c_i = -c - delta_i / (tau_i eta_l)."""
    return -control - delta / (steps * lr)


def all_finite(weights: Tensor) -> bool:
    """Whether no weight is nan or infinite. A finite sum proves it, in a tenth of the time; a sum that is not finite
    may have overflowed, so that each weight is looked at then."""
    return math.isfinite(weights.sum().item()) or bool(torch.isfinite(weights).all())


def which_are_finite(vectors: Sequence[Tensor]) -> list[bool]:
    """`all_finite` of each; a GPU is waited for once. They need not all lie on the same device."""
    if len(vectors) == 1:
        return [all_finite(vectors[0])]
    sums: dict[int, float] = {}
    for device in {each.device for each in vectors}:
        places = [place for place, each in enumerate(vectors) if each.device == device]
        sums |= zip(places, torch.stack([vectors[place].sum() for place in places]).tolist(), strict=True)
    return [math.isfinite(sums[place]) or all_finite(each) for place, each in enumerate(vectors)]


def norm_of(delta: Tensor) -> Tensor:
    """The length of an update, summed in float64: a number on the device of the update."""
    norm: Tensor = torch.linalg.vector_norm(delta, dtype=torch.float64)
    return norm
