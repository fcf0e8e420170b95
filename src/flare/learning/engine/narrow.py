"""Jobs of devices that hold a narrower model, done with that model instead of a mask on the whole one, for `batched`.

The numbers are the same but for rounding: what a mask sets to zero adds nothing. A job is cut to the weights that the
model holds, what else its rule has with it, and its update is laid into a vector of zeros.

There are fewer multiply-adds to do, and the passes of a step are those of another model: there is a stack for each, one
after the other, each with its own preparations and launches; a GPU is not waited for between them. Whether that is
quicker than a mask depends on the model and on how many devices there are (`docs/benchmarks/rules.md`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Protocol, final

import torch
from torch import Tensor, nn

from flare.learning.engine.stack import COPIED_AT_ONCE, Unread
from flare.learning.flat import FlatModel
from flare.learning.job import Job, LocalRule
from flare.learning.kept import KeptWith
from flare.learning.widths import Widths, narrowed, read_widths

RATES = (0.25, 0.5)
"""Shares of the channels for which there is a narrower model, ascending. Below, a step is too short for its own."""
_WHOLE = 1.0


class Trains(Protocol):
    """An engine, as far as it is needed here."""

    def train_checked(self, jobs: Sequence[Job], laid: Callable[[Tensor], Tensor]) -> list[Unread]:
        """Carry out jobs that were checked, all with the engine's whole model; `laid` makes the updates that are handed
        back of those with that model, in rows."""
        ...

    def give_up_graphs(self) -> None:
        """Let go of the memory that graphs of steps hold."""
        ...


@final
class NarrowModels:
    """The narrower models of a model, each in an engine of its own that is made when it is first asked for.

    There are few of them (`RATES`), since each has kernels and a stack of its own: a job is done with the
    narrowest of them that holds its model, by a mask on that where it is narrower still. Which one that is depends on
    the job's own widths alone, so that its numbers do, too.
    """

    def __init__(self, model: FlatModel, sample_shape: tuple[int, ...], engine: Callable[[nn.Module], Trains]) -> None:
        self._model, self._sample_shape, self._new_engine = model, sample_shape, engine
        self._of_rate: dict[float, _NarrowModel] = {}
        self._rates: dict[tuple[int, ...], float] = {}  # by the widths of rules that were seen

    def train(self, jobs: Sequence[Job], whole: Callable[[Sequence[Job]], list[Unread]]) -> list[Unread]:
        """Carry out every job, with `whole` those for which no narrower model is large enough; answers in order."""
        rules = [job.rule for job in jobs]
        distinct = {id(rule): rule for rule in rules if rule.widths is not None}
        if not distinct:
            return whole(jobs)
        rates = {key: self._rate(rule) for key, rule in distinct.items()}
        groups: dict[float, list[int]] = defaultdict(list)
        for i, rule in enumerate(rules):
            groups[rates.get(id(rule), _WHOLE)].append(i)
        answers: dict[int, Unread] = {}
        for rate in sorted(groups, reverse=True):  # while a GPU is at work on the largest, the others are prepared
            asked = [jobs[i] for i in groups[rate]]
            done = whole(asked) if rate == _WHOLE else self._narrow(rate).train(asked)
            answers.update(zip(groups[rate], done, strict=True))
        return [answers[i] for i in range(len(jobs))]

    def give_up_graphs(self) -> None:
        """Let go of the memory that graphs of steps of the narrower models hold."""
        for narrow in self._of_rate.values():
            narrow.engine.give_up_graphs()

    @cached_property
    def _widths(self) -> Widths:
        return read_widths(self._model.module, self._sample_shape)

    def _rate(self, rule: LocalRule) -> float:
        """That of the narrowest model with room for a rule's widths. The first rule that has them is checked."""
        widths = rule.widths
        assert widths is not None, "of rules without widths nobody asks"
        if widths not in self._rates:
            _check(self._widths, widths, rule)
            fitting = (rate for rate in RATES if _at_most(widths, self._widths.at(rate)))
            self._rates[widths] = next(fitting, _WHOLE)
        return self._rates[widths]

    def _narrow(self, rate: float) -> _NarrowModel:
        if rate not in self._of_rate:
            outputs = self._widths.at(rate)
            engine = self._new_engine(narrowed(self._model.module, self._widths, outputs))
            self._of_rate[rate] = _NarrowModel(engine, self._widths, outputs, self._model.parameters[0].device)
        return self._of_rate[rate]


def _check(of_model: Widths, widths: tuple[int, ...], rule: LocalRule) -> None:
    """ValueError where a rule's widths are not those of a narrower model, or its mask marks another."""
    if len(widths) != len(of_model.whole) or widths[-1] != of_model.whole[-1] or not _at_most(widths, of_model.whole):
        raise ValueError(f"the widths of a job's rule are {widths}; the model's own are {of_model.whole}")
    if rule.mask is None or not torch.equal(rule.mask.cpu() != 0.0, of_model.numbers(widths) != 0.0):
        raise ValueError(f"the mask of a job's rule does not mark the model of its widths, {widths}")


def _at_most(widths: Sequence[int], limits: Sequence[int]) -> bool:
    return all(0 < width <= limit for width, limit in zip(widths, limits, strict=True))


@final
class _NarrowModel:
    """An engine of a narrower model, which has these outputs of its layers, and where its weights are in the whole."""

    def __init__(self, engine: Trains, widths: Widths, outputs: tuple[int, ...], device: torch.device) -> None:
        self.engine, self._device = engine, device
        self._laid = partial(widths.laid, outputs)
        places = widths.numbers(outputs).nonzero()[:, 0]
        self._places = {kind: places.to(kind) for kind in {device, places.device}}
        self._masks = KeptWith(lambda mask, where: self._cut(mask).to(where))  # the same from round to round

    def train(self, jobs: Sequence[Job]) -> list[Unread]:
        """Carry out jobs of devices that hold this model."""
        starts = self._cut_starts({id(job.start): job.start for job in jobs})
        rules = self._cut_rules({id(job.rule): job.rule for job in jobs})
        cut = [Job(starts[id(job.start)], rules[id(job.rule)], job.batches) for job in jobs]
        return self.engine.train_checked(cut, self._laid)

    def _cut_starts(self, starts: dict[int, Tensor]) -> dict[int, Tensor]:
        """The starts of jobs by their ids, each cut; many at a time."""
        vectors, places, cut = list(starts.values()), self._places[self._device], list[Tensor]()
        for begin in range(0, len(vectors), COPIED_AT_ONCE):
            few = [each.detach().to(places.device, torch.float32) for each in vectors[begin : begin + COPIED_AT_ONCE]]
            cut += torch.stack(few).index_select(1, places)
        return dict(zip(starts, cut, strict=True))

    def _cut_rules(self, rules: dict[int, LocalRule]) -> dict[int, LocalRule]:
        """The rules of jobs by their ids, each cut; those that say the same without vectors of their own, once."""
        cut: dict[int, LocalRule] = {}
        alike: dict[tuple[float, ...], LocalRule] = {}
        for key, rule in rules.items():
            if rule.drift is not None or rule.contrast is not None:
                cut[key] = self._cut_rule(rule)
                continue
            says = (rule.lr, rule.steps, rule.mu, rule.ascent, id(rule.mask))
            if says not in alike:
                alike[says] = self._cut_rule(rule)
            cut[key] = alike[says]
        return cut

    def _cut(self, vector: Tensor) -> Tensor:
        """The weights of this model out of all, where the vector is."""
        places = self._places.get(vector.device)
        return vector.detach()[self._places[self._device].to(vector.device) if places is None else places]

    def _cut_rule(self, rule: LocalRule) -> LocalRule:
        contrast = rule.contrast
        return replace(
            rule,
            mask=None if rule.mask is None else self._masks(rule.mask, self._device),
            widths=None,
            drift=None if rule.drift is None else self._cut(rule.drift),
            contrast=None if contrast is None else replace(contrast, previous=self._cut(contrast.previous)),
            control=None,
        )
