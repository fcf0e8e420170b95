"""Rounds planned with what devices answer before the selection, those of many runs together.

Losses of all runs are one call of the engine. Gradients are as many vectors as there are devices that are asked: of
those whose lengths are wanted, as many are taken at once as there is room for, and one number is kept of each. Where
distances are, all of a run have to be there, and as many runs are taken at once as there is room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flare.learning.batches import draw_batches
from flare.learning.engine.base import Engine
from flare.learning.job import GradientJob, norm_of
from flare.rng import stream
from flare.rounds import Plan, RunState
from flare.rounds.broadcast import heard_model
from flare.rounds.probing import Answered, Question
from flare.scheduling import Probed
from flare.scheduling.probe import BATCH, LOSS
from flare.simulation.dealing import dealt
from flare.simulation.run import Simulation
from flare.types import Floats

_MAX_NUMBERS = 2**28
"""Numbers of gradients that are held at once (1 GB), where the distances of a single run do not need more."""
_COLUMNS = 2**16
"""Weights of which products are summed at once."""

Run = tuple[Simulation, RunState]


def planned(engine: Engine, runs: Sequence[Run]) -> list[Plan]:
    """The next round of each run; where its policy asks devices first, the engine answers for them."""
    asked = {at: question for at, run in enumerate(runs) if (question := run[0].question(run[1])) is not None}
    jobs = {at: probe_jobs(*runs[at], question) for at, question in asked.items()}
    answers: dict[int, Answered] = {}
    losses = [at for at, question in asked.items() if question.probe.kind == LOSS]
    for at, told in zip(losses, dealt(engine.losses, [jobs[at] for at in losses]), strict=True):
        answers[at] = Answered(asked[at], with_losses(asked[at], told))
    sent = [at for at, question in asked.items() if question.probe.distances]
    lengths = [at for at in asked if at not in losses and at not in sent]
    for at, told in zip(lengths, dealt(partial(_norms, engine), [jobs[at] for at in lengths]), strict=True):
        answers[at] = Answered(asked[at], with_norms(asked[at], told))
    for some in _fitting(sent, jobs):
        for at, vectors in zip(some, dealt(engine.gradients, [jobs[at] for at in some]), strict=True):
            answers[at] = Answered(asked[at], with_distances(asked[at], vectors))
    return [simulation.plan(state, answers.get(at)) for at, (simulation, state) in enumerate(runs)]


def probe_jobs(simulation: Simulation, state: RunState, question: Question) -> list[GradientJob]:
    """What each device that is asked computes, at the weights that reach it."""
    index, seed = state.rounds_done, simulation.config.seed
    at = heard_model(simulation.station, index, state.weights)
    jobs = []
    for device in question.devices.tolist():
        samples = simulation.held[device]
        if question.probe.samples == BATCH:
            rng = stream(seed, "probe-batch", index, device)
            samples = draw_batches(samples, 1, simulation.config.wireless.batch_size, rng=rng)[0]
        jobs.append(GradientJob(at, samples))
    return jobs


def with_losses(question: Question, losses: Sequence[float]) -> Probed:
    """The answers to a question for losses, over the devices that are there."""
    probed = Probed.nothing(question.seen.num_present)
    probed.loss[question.probe.devices] = losses
    return probed


def with_norms(question: Question, norms: Sequence[float]) -> Probed:
    """The answers to a question for the lengths of gradients."""
    probed = Probed.nothing(question.seen.num_present)
    probed.norm[question.probe.devices] = norms
    return probed


def with_distances(question: Question, gradients: Sequence[Tensor]) -> Probed:
    """The answers to a question for gradients: their lengths, and the distances between them."""
    probed, at = with_norms(question, _lengths(gradients)), question.probe.devices
    apart = np.full((question.seen.num_present,) * 2, np.nan)
    apart[np.ix_(at, at)] = distances(gradients)
    return Probed(probed.loss, probed.norm, apart)


def distances(vectors: Sequence[Tensor]) -> Floats:
    """The distance between each two vectors, shape (vectors, vectors), from their products, summed in float64."""
    products = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=vectors[0].device)
    for parts in zip(*(torch.split(each, _COLUMNS) for each in vectors), strict=True):
        rows = torch.stack(parts).double()
        products += rows @ rows.T
    squares = products.diagonal()
    apart = (squares[:, None] + squares[None, :] - 2.0 * products).clamp_(min=0.0).sqrt_()
    apart.fill_diagonal_(0.0)
    found: Floats = (0.5 * (apart + apart.T)).cpu().numpy()
    return found


def _norms(engine: Engine, jobs: Sequence[GradientJob]) -> list[float]:
    """The length of each gradient; as many of them are held at once as there is room for."""
    at_once = max(1, _MAX_NUMBERS // len(jobs[0].at))
    portions = (jobs[start : start + at_once] for start in range(0, len(jobs), at_once))
    return [norm for portion in portions for norm in _lengths(engine.gradients(portion))]


def _lengths(gradients: Sequence[Tensor]) -> list[float]:
    norms: list[float] = torch.stack([norm_of(each) for each in gradients]).tolist()
    return norms


def _fitting(runs: Sequence[int], jobs: Mapping[int, Sequence[GradientJob]]) -> Iterator[list[int]]:
    """The runs in groups whose gradients fit side by side, at least one run in each."""
    some: list[int] = []
    held = 0
    for at in runs:
        numbers = sum(len(job.at) for job in jobs[at])
        if some and held + numbers > _MAX_NUMBERS:
            yield some
            some, held = [], 0
        some, held = [*some, at], held + numbers
    if some:
        yield some
