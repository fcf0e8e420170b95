"""What an ascent, a mask or a contrast adds to the passes over a stack of jobs, for `batched`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

import torch
from torch import Tensor

from flare.learning.engine.operations import Gradient, Onto, all_made
from flare.learning.engine.programs import Program
from flare.learning.engine.tensor_data import numbers_onto
from flare.learning.engine.terms import MIN_NORM, Anchors
from flare.learning.job import Job

DONE = TypeVar("DONE")


class Run(Protocol):
    """Hands a program to some work."""

    def __call__(self, work: Callable[[Program], DONE], /) -> DONE:
        """What the work answers."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Seams:
    """The ascents, masks and contrasts of jobs whose rules are of one kind: all have the field, or none has it.

    sizes         numbers of weights of the model's parameters
    ascents       (jobs, 1)
    masks         (jobs, row length)
    starts        of contrasts, weights at the start and of the last own models, masked, (jobs, row length)
    previous
    mu            of contrasts, (jobs,)
    temperature
    """

    sizes: list[int]
    ascents: Tensor | None
    masks: Tensor | None
    starts: Tensor | None
    previous: Tensor | None
    mu: Tensor | None
    temperature: Tensor | None

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        starts: Callable[[], Tensor],
        in_rows: Callable[[Sequence[Tensor]], Tensor],
        sizes: list[int],
        device: torch.device,
    ) -> Seams | None:
        """Those of jobs of one kind, or None where the kind is the plain one; `in_rows` stacks vectors."""
        rules = [job.rule for job in jobs]
        has_ascent, has_mask, has_contrast = rules[0].kind
        if not (has_ascent or has_mask or has_contrast):
            return None
        masks = in_rows([rule.mask for rule in rules if rule.mask is not None]) if has_mask else None
        ascents = numbers_onto([rule.ascent for rule in rules], device)[:, None] if has_ascent else None
        if not has_contrast:
            return cls(sizes, ascents, masks, None, None, None, None)
        terms = [rule.contrast for rule in rules if rule.contrast is not None]
        compared = [starts(), in_rows([term.previous for term in terms])]
        start, previous = compared if masks is None else [each * masks for each in compared]
        mu = numbers_onto([term.mu for term in terms], device)
        temperature = numbers_onto([term.temperature for term in terms], device)
        return cls(sizes, ascents, masks, start, previous, mu, temperature)

    def gradient(
        self, run: Run, stack: Tensor, x: Tensor, y: Tensor, shares: Tensor, onto: Onto | None
    ) -> tuple[Tensor, list[Gradient]]:
        """Losses and gradients as of `Program.gradient`, for the rows of `stack`, the first ones of all. Where there is
        a mask, none goes onto weights."""
        anchors = self._anchors(run, x)

        def at(weights: Tensor, onto: Onto | None) -> tuple[Tensor, list[Gradient]]:
            if self.masks is None:
                return run(lambda program: program.gradient(weights, x, y, shares, anchors, onto))
            masked = weights * self.masks[: len(weights)]
            losses, gradients = run(lambda program: program.gradient(masked, x, y, shares, anchors))
            return losses, self._masked(all_made(gradients))

        if self.ascents is None:
            return at(stack, onto)
        losses, gradients = at(stack, None)
        slope = all_made(gradients)
        norms = run(lambda program: program.norms(slope))
        _, gradients = at(self._uphill(stack, slope, norms), onto)
        return losses, gradients

    def _anchors(self, run: Run, x: Tensor) -> Anchors | None:
        """The features of a batch under the weights that a contrast compares with."""
        starts, previous, mu, temperature = self.starts, self.previous, self.mu, self.temperature
        if starts is None or previous is None or mu is None or temperature is None:
            return None
        count = len(x)
        z_start = run(lambda program: program.features(starts[:count], x))
        z_previous = run(lambda program: program.features(previous[:count], x))
        return Anchors(z_start, z_previous, mu[:count], temperature[:count])

    def _masked(self, gradients: Sequence[Tensor]) -> list[Gradient]:
        assert self.masks is not None
        count = len(gradients[0])
        masks = torch.split(self.masks[:count, : sum(self.sizes)], self.sizes, dim=1)
        return [gradient.reshape(mask.shape) * mask for gradient, mask in zip(gradients, masks, strict=True)]

    def _uphill(self, stack: Tensor, gradients: Sequence[Tensor], norms: Tensor) -> Tensor:
        """w + ascent g / |g| for every row."""
        assert self.ascents is not None
        above, used = torch.empty_like(stack), sum(self.sizes)
        above[:, used:] = 0.0
        scale = self.ascents[: len(stack)] / norms[:, None].clamp_min(MIN_NORM)
        parts, here = (torch.split(each[:, :used], self.sizes, dim=1) for each in (above, stack))
        for part, weights, gradient in zip(parts, here, gradients, strict=True):
            torch.addcmul(weights, gradient.reshape(part.shape), scale, out=part)
        return above
