"""Jobs of devices that hold a narrower model, done with that model instead of a mask on the whole one, for `batched`.

The numbers are the same but for rounding: what a mask sets to zero adds nothing. The time is that of the narrower
model. A job is cut to the weights that the model holds, what else its rule has with it, and its update is laid into a
vector of zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, final

import torch
from torch import Tensor, nn

from flare.learning.flat import FlatModel
from flare.learning.job import Job, LocalRule, Update
from flare.learning.widths import Widths, narrowed, read_widths


class Trains(Protocol):
    """An engine, as far as it is needed here."""

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Carry out every job."""
        ...


@final
class NarrowModels:
    """The narrower models of a model, each in an engine of its own that is made when it is first asked for."""

    def __init__(self, model: FlatModel, sample_shape: tuple[int, ...], engine: Callable[[nn.Module], Trains]) -> None:
        self._model, self._sample_shape, self._new_engine = model, sample_shape, engine
        self._widths: Widths | None = None
        self._made: dict[tuple[int, ...], _NarrowModel] = {}

    def train(self, jobs: Sequence[Job], whole: Callable[[Sequence[Job]], list[Update]]) -> list[Update]:
        """Carry out every job, with `whole` those of devices that hold the whole model; answers in their order."""
        groups: dict[tuple[int, ...] | None, list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            groups[job.rule.widths].append(i)
        if list(groups) == [None]:
            return whole(jobs)
        answers: dict[int, Update] = {}
        for widths, members in groups.items():
            asked = [jobs[i] for i in members]
            done = whole(asked) if widths is None else self._of(widths, asked[0]).train(asked)
            answers.update(zip(members, done, strict=True))
        return [answers[i] for i in range(len(jobs))]

    def _of(self, widths: tuple[int, ...], example: Job) -> _NarrowModel:
        if widths not in self._made:
            if self._widths is None:
                self._widths = read_widths(self._model.module, self._sample_shape)
            self._made[widths] = self._make(self._widths, widths, example)
        return self._made[widths]

    def _make(self, of_model: Widths, widths: tuple[int, ...], example: Job) -> _NarrowModel:
        fits = len(widths) == len(of_model.whole) and widths[-1] == of_model.whole[-1]
        if not fits or not all(0 < mine <= all_ for mine, all_ in zip(widths, of_model.whole, strict=True)):
            raise ValueError(f"the widths of a job's rule are {widths}; the model's own are {of_model.whole}")
        inside = of_model.numbers(widths) != 0.0
        mask = example.rule.mask
        if mask is None or not torch.equal(mask.to(inside.device) != 0.0, inside):
            raise ValueError(f"the mask of a job's rule does not mark the model of its widths, {widths}")
        engine = self._new_engine(narrowed(self._model.module, of_model, widths))
        return _NarrowModel(engine, inside.nonzero()[:, 0], self._model.num_weights)


@final
class _NarrowModel:
    """An engine of a narrower model, and the places of its weights among those of the whole one."""

    def __init__(self, engine: Trains, places: Tensor, num_weights: int) -> None:
        self._engine, self._places, self._num_weights = engine, places, num_weights

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Carry out jobs of devices that hold this model."""
        cut = _Cut(self._places)
        updates = self._engine.train([Job(cut(job.start), _cut_rule(job.rule, cut), job.batches) for job in jobs])
        deltas = torch.stack([update.delta for update in updates])
        whole = deltas.new_zeros(len(jobs), self._num_weights)
        whole.index_copy_(1, self._places.to(whole.device), deltas)
        return [replace(update, delta=delta) for update, delta in zip(updates, whole, strict=True)]


class _Cut:
    """Takes the weights at some places out of vectors; out of the same vector, once."""

    def __init__(self, places: Tensor) -> None:
        self._places = places
        self._done: dict[int, tuple[Tensor, Tensor]] = {}  # with the vector itself, so that its id stays its own

    def __call__(self, vector: Tensor) -> Tensor:
        """The weights at the places, where the vector is."""
        if id(vector) not in self._done:
            self._done[id(vector)] = vector, vector.detach()[self._places.to(vector.device)]
        return self._done[id(vector)][1]


def _cut_rule(rule: LocalRule, cut: _Cut) -> LocalRule:
    contrast = rule.contrast
    return replace(
        rule,
        mask=None if rule.mask is None else cut(rule.mask),
        widths=None,
        drift=None if rule.drift is None else cut(rule.drift),
        contrast=None if contrast is None else replace(contrast, previous=cut(contrast.previous)),
        control=None,
    )
