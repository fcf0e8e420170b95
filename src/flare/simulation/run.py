"""A simulated run: supplies the rounds with what a cell reports and with what an engine computes.

A `Simulation` is a state machine whose steps depend on their arguments alone, so that one run or many can be driven in
lockstep and a batched engine sees the devices of all runs at once:

    warm_up_jobs(state), warmed_up(state, updates)   before the first round, where devices share data
    question(state)                 what the policy asks devices before it selects, None for most (`probing`)
    plan(state, answered)           the cell is drawn and the devices are selected
    received(plan, heard)           the weights as they reach the devices, where the broadcast is coded
    jobs(state, plan, gradients)    what the selected devices are to compute
    updates_made(plan, jobs, updates)   what they send for it, which is something else where they attack
    updates_heard(jobs, updates)    them as the base station takes them
    arrived(state, plan, jobs, updates) the round with them taken in (`flare.rounds.Arrivals`)
    applied(arrivals, jobs)         the new global weights, the clock and the record of the round

What is sent is coded in between, that of many runs together (`model_out`, `gradients_out`, `updates_out`, then
`flare.rounds.coding.transmit`).

Everything drawn comes from streams named by the run's own seed and the round, never from what happened before: a run
gives the same numbers alone and in company, and continues after any round from its state alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, nn

from flare.config import Config, DataConfig
from flare.config.options import NO_OPTIONS
from flare.data.dataset import Dataset
from flare.data.partition import partition
from flare.data.shared import share
from flare.data.sources import SOURCES, Source, load_dataset
from flare.learning.aggregate import Mean, RunningMean
from flare.learning.batches import draw_batches
from flare.learning.flat import FlatModel
from flare.learning.job import GradientJob, Job, LocalRule, Score, Update, drift_less_own
from flare.learning.methods import make_method
from flare.learning.models import MODELS, ModelBuilder, check_output, make_model
from flare.learning.widths import read_widths
from flare.plugins import load_plugins
from flare.rng import stream, streams
from flare.rounds import (
    Arrivals,
    BaseStation,
    Observation,
    Plan,
    RoundRecord,
    RunState,
    first_state,
    local_rules,
    plan_round,
    untrained,
    wants_score,
    with_score,
)
from flare.rounds.base_station import policy_options
from flare.rounds.broadcast import outgoing_model, with_model
from flare.rounds.coding import Incoming, Outgoing, as_received, outgoing_gradients, outgoing_updates
from flare.rounds.identity import code_files, code_identity, is_own_method
from flare.rounds.method_answers import first_method_state
from flare.rounds.plan import question_of
from flare.rounds.probing import Answered, Question, asks
from flare.rounds.residuals import Residuals
from flare.rounds.scheduled import Ahead, ahead_of, goes_by_the_cell, problem_of
from flare.scheduling import lacks_number, tune_num_selected
from flare.simulation.attackers import Attack
from flare.simulation.identity import data_identity, model_identity, trace_identity
from flare.simulation.rounds_ahead import RoundsAhead
from flare.simulation.sharing import Download, download_of, warm_up_job
from flare.simulation.smoothness import estimated_smoothness
from flare.text import html_table
from flare.types import Floats, Indices
from flare.wireless.cell import Cell, CellRound

_TUNING_ROUNDS = 20  # rounds of the cell on which the number of devices of policy `ps` is tuned
_MAX_DRAWN_AHEAD = 10**6  # samples, for the next round
_FEW_SAMPLES = 2 * 10**4  # a round with at most so many has its batches drawn when several rounds are prepared


class _Prepared(NamedTuple):
    """A round that was scheduled before its time, and the batches that were drawn for it, by device."""

    ahead: Ahead
    batches: dict[int, Indices]


@dataclass(frozen=True, eq=False)
class Jobs:
    """The work of a round: how each selected device steps, and the job that an engine does for it, in their order; and
    what devices hold back once their gradients are sent."""

    rules: dict[int, LocalRule]
    jobs: list[Job]
    residuals: Residuals


class Simulation:
    """One run: a configuration, its cell, its data and its method.

    `dataset` replaces the data set of the configuration; `held`, the training samples of each device, how its settings
    divide it; of either, `data.shared_fraction` takes out what all devices share. `module` replaces the model: a torch
    module, or a function of the shape of a sample and the number of classes that builds one, so that its start weights
    are drawn with the run's seed.
    """

    def __init__(
        self,
        config: Config,
        *,
        dataset: Dataset | None = None,
        held: Sequence[ArrayLike] | None = None,
        module: nn.Module | ModelBuilder | None = None,
    ) -> None:
        load_plugins(config.plugins)
        self.config = config
        num_devices = config.wireless.num_devices
        if dataset is None and held is not None:
            raise ValueError("held says who holds which samples of a dataset of your own: give dataset too")
        self.dataset = _shared_dataset(config.data, num_devices, config.seed) if dataset is None else dataset
        if held is None:
            held = partition(config.data, self.dataset, num_devices, rng=stream(config.seed, "partition"))
        checked = _checked_held(held, num_devices, len(self.dataset.train_y))
        self.held, self.shared = share(config.data, self.dataset, checked, seed=config.seed)
        self.own_dataset, self.own_module = dataset is not None, module is not None
        self._given_module = module
        self.module = self._built(config.learning.model if module is None else module)
        self.model = FlatModel(self.module)
        self.start_weights = self.model.flatten()
        self.cell = Cell(config.wireless, config.seed)
        self.attack = Attack.of(config)
        self.num_samples = np.array([len(samples) for samples in self.held], dtype=np.float64)  # (devices,)
        self.label_counts = _label_counts(self.dataset, self.held) if config.data.share_labels else None
        method, own = make_method(config.learning), self.own_dataset or self.own_module
        self.widths = read_widths(self.module, self.dataset.sample_shape) if method.needs_widths else None
        if self.widths is not None:
            method = method.fitted(self.widths)
        smoothness = estimated_smoothness(config, method, self.module, self.dataset, self.held, own=own)
        self.station = BaseStation(config, method, self.model.num_weights, smoothness=smoothness)
        self.station = replace(self.station, policy_options=self._policy_options())
        by_the_cell = goes_by_the_cell(self.station)
        self._ahead: RoundsAhead[_Prepared] | None = RoundsAhead(config.run.rounds) if by_the_cell else None
        self._trains = False  # whether batches are asked for: some only plan
        self.download = Download()
        if len(self.shared):
            self.download = download_of(config, self.dataset, self.shared, self.observe(0))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {told}" for name, told in self._facts().items())
        return f"<Simulation: {facts}>"

    def _repr_html_(self) -> str:
        return html_table("Simulation", (), self._facts().items())

    def _facts(self) -> dict[str, str]:
        """What it is, in a few words."""
        config, told = self.config, self.identity
        return {
            "method": config.learning.method,
            "policy": config.scheduling.policy,
            **({"codec": config.uplink.codec} if self.station.codes else {}),
            **({"over the air": config.uplink.air_scheme} if self.station.air is not None else {}),
            "seed": str(config.seed),
            "data": told["data"],
            "model": f"{told['model']}" + ("" if self.own_module else f" ({self.model.num_weights} weights)"),
            "devices": str(config.wireless.num_devices),
            "rounds": str(config.run.rounds),
        }

    @property
    def engine_key(self) -> tuple[object, ...]:
        """Runs with the same key can share an engine: same data, same architecture, same batch size and place."""
        learning = self.config.learning
        model = self._given_module or (MODELS.find(learning.model), learning.model_options)
        where = (learning.engine, learning.device, learning.precision)
        return (self.dataset, model, self.config.wireless.batch_size, *where)

    @property
    def code_files(self) -> dict[str, str | None]:
        """The files that parts of the identity come from; None of what is flare's own or typed in."""
        model = None if self.own_module else MODELS.origin(self.config.learning.model).path
        return code_files(self.station) | {"layers": model}

    @cached_property
    def identity(self) -> dict[str, str]:
        """What the run is, beside its settings: written into its folder, and compared when it is continued."""
        model = model_identity(self.module, self.start_weights, self.config.learning.model, own=self.own_module)
        data = data_identity(self.dataset, self.held, self.shared, self.config.data.name, own=self.own_dataset)
        return data | model | trace_identity(self.cell.trace) | code_identity(self.station)

    def start(self) -> RunState:
        """The state before the first round."""
        num_devices = self.config.wireless.num_devices
        method = first_method_state(
            self.config.learning.method, self.station.method, self.model.num_weights, num_devices
        )
        return first_state(self.start_weights, method, num_devices, clock_s=self.download.lasts_s)

    def warm_up_jobs(self, state: RunState) -> list[Job]:
        """What the base station trains before the first round on the data that devices share: one job or none."""
        if state.rounds_done:
            return []
        job = warm_up_job(self.config, self.start_weights.to(state.weights.device), self.shared)
        return [] if job is None else [job]

    def warmed_up(self, state: RunState, updates: Sequence[Update]) -> RunState:
        """The state with the start weights as the warm-up leaves them, where there is one."""
        start = self.start_weights.to(state.weights.device)
        return replace(state, weights=start + updates[0].delta) if updates else state

    def observe(self, index: int) -> Observation:
        """What the devices of the cell report in a round."""
        return self.attack.seen(observation_of(self.cell.draw(index), self.num_samples, self.label_counts))

    def question(self, state: RunState) -> Question | None:
        """What the policy asks devices before it selects; None: nothing."""
        return question_of(self.station, state, self.observe(state.rounds_done)) if asks(self.station) else None

    def plan(self, state: RunState, answered: Answered | None = None) -> Plan:
        """Draw the next round and select its devices; `answered` is what they said to the question, if there is one."""
        ahead = None if self._ahead is None else self._ahead.round(state.rounds_done, self._prepared).ahead
        if ahead is not None:
            seen = ahead.seen
        else:
            seen = self.observe(state.rounds_done) if answered is None else answered.question.seen
        plan = plan_round(self.station, state, seen, answered, ahead)
        assert plan is not None, "a cell has devices"
        return plan

    def look_ahead(self, state: RunState) -> None:
        """While devices train in the round of this state, schedule the one after it, where it does not depend on it,
        and draw its batches: of all runs in lockstep one round each, so that no turn takes longer than others."""
        if self._ahead is not None:
            index = state.rounds_done + 1
            self._ahead.prepare(index, self._prepared, alone=True)
            made = self._ahead.made(index)
            if made is not None and not made.batches:
                made.batches.update(self._batches_of(index, made.ahead, _MAX_DRAWN_AHEAD))

    def _prepared(self, indices: Sequence[int]) -> list[_Prepared]:
        """Rounds that are scheduled without what those before them show."""
        ahead = ahead_of(self.station, indices, [self.observe(index) for index in indices])
        return [
            _Prepared(each, self._batches_of(index, each, _FEW_SAMPLES) if self._trains else {})
            for index, each in zip(indices, ahead, strict=True)
        ]

    def model_out(self, plan: Plan) -> list[Outgoing]:
        """The global weights, where they are coded on their way to the devices."""
        return outgoing_model(self.station, plan)

    def received(self, plan: Plan, heard: Sequence[Incoming]) -> Plan:
        """The plan with the weights that reached the devices, where they were coded."""
        return with_model(plan, heard)

    def gradient_jobs(self, plan: Plan) -> list[GradientJob]:
        """The gradients that the method needs before the devices can step."""
        if not self.station.method.needs_gradients:
            return []
        return [GradientJob(plan.start, self.held[i]) for i in plan.selected]

    def gradients_out(self, state: RunState, plan: Plan, gradients: Sequence[Tensor]) -> list[Outgoing]:
        """The gradients that are to be coded on their way to the base station."""
        vectors = self._sent_gradients(plan, gradients)
        return outgoing_gradients(self.station, state, vectors, plan.own_codecs)

    def jobs(self, state: RunState, plan: Plan, gradients: Sequence[Tensor], heard: Sequence[Incoming] = ()) -> Jobs:
        """What the selected devices are to compute, none where nobody sends; `heard` is what the base station took for
        their gradients, where they were coded."""
        own_of = dict(zip(plan.selected.tolist(), gradients, strict=False))
        sent = heard[0].vectors if heard else self._sent_gradients(plan, gradients)
        rules = local_rules(self.station, plan, sent.items())
        self._trains = True
        batches = self._batches(plan, {device: rule.steps for device, rule in rules.items()})
        jobs = []
        for device, rule in rules.items():
            own = own_of[device] if rule.subtract_own_gradient else None
            jobs.append(Job(plan.start_of(device), _without_own(rule, own), batches[device]))
        return Jobs(rules, jobs, _held_back(state.residuals, heard))

    def _batches(self, plan: Plan, steps: Mapping[int, int]) -> dict[int, Indices]:
        """The batches of devices that take so many steps: those that were drawn before their time, and the others. Each
        draws by the round in which it received the model."""
        if plan.underway is not None:
            rngs = {each: stream(self.config.seed, "batch", plan.began(each), each) for each in steps}
            return {device: self._draw(device, steps[device], rng) for device, rng in rngs.items()}
        made = None if self._ahead is None else self._ahead.made(plan.index)
        drawn = {} if made is None else {device: each for device, each in made.batches.items() if device in steps}
        left = {
            device: number for device, number in steps.items() if device not in drawn or len(drawn[device]) != number
        }
        return drawn | self._batches_at(plan.index, left)

    def _batches_of(self, index: int, ahead: Ahead, max_samples: int) -> dict[int, Indices]:
        """The batches that a scheduled round asks for, if its method has devices take the steps that they are scheduled
        with; none where they are more samples."""
        schedule, size = ahead.answer.schedule, self.config.wireless.batch_size
        tau = schedule.problem.tau[schedule.selected]
        if not tau.sum() * size <= max_samples or (tau < 1.0).any():
            return {}
        devices = ahead.seen.devices[schedule.selected].tolist()
        return self._batches_at(index, dict(zip(devices, map(int, tau.tolist()), strict=True)))

    def _batches_at(self, index: int, steps: Mapping[int, int]) -> dict[int, Indices]:
        """The batches of devices that received the model in a round."""
        rngs = streams(self.config.seed, "batch", index, numbers=list(steps)) if steps else []
        return {device: self._draw(device, steps[device], rng) for device, rng in zip(steps, rngs, strict=True)}

    def _draw(self, device: int, steps: int, rng: np.random.Generator) -> Indices:
        return draw_batches(self.held[device], steps, self.config.wireless.batch_size, rng=rng)

    def _sent_gradients(self, plan: Plan, gradients: Sequence[Tensor]) -> Mapping[int, Tensor]:
        """What the selected devices send for their gradients, by device; nothing where the method asks for none."""
        if not gradients:
            return {}
        devices = plan.selected.tolist()
        return dict(zip(devices, self.attack.on_gradients(plan.index, devices, gradients), strict=True))

    def updates_made(self, plan: Plan, work: Jobs, updates: Sequence[Update]) -> list[Update]:
        """What devices send for the updates that they computed: attackers something else."""
        return self.attack.on_updates(plan.index, dict(zip(work.rules, updates, strict=True)))

    def updates_out(self, state: RunState, plan: Plan, work: Jobs, updates: Sequence[Update]) -> list[Outgoing]:
        """The vectors of the updates that are to be coded on their way to the base station."""
        return outgoing_updates(self.station, state, work.rules, updates, plan.own_codecs)

    @cached_property
    def is_own_method(self) -> bool:
        """Whether the method is a user's own."""
        return is_own_method(self.station.method)

    def updates_heard(self, work: Jobs, updates: Sequence[Update], heard: Sequence[Incoming] = ()) -> list[Update]:
        """The updates as the base station takes them."""
        return as_received(list(work.rules), updates, heard)

    def arrived(
        self,
        state: RunState,
        plan: Plan,
        work: Jobs,
        updates: Sequence[Update],
        new_mean: Callable[[], Mean] = RunningMean,
        norms: Sequence[float | None] = (),
    ) -> Arrivals:
        """The round with these updates taken in, as the base station takes them; `norms` are their lengths then, where
        they were coded and these are known."""
        arrivals = Arrivals(self.station, state, plan, work.rules, new_mean=new_mean)
        for device, update, norm in zip(work.rules, updates, norms or [None] * len(updates), strict=True):
            arrivals.add(device, update, heard_norm=norm)
        return arrivals

    def applied(
        self, arrivals: Arrivals, work: Jobs, heard: Sequence[Incoming] = (), *, finite: bool | None = None
    ) -> tuple[RunState, RoundRecord]:
        """What becomes of the round when all have arrived; `finite` is that of `Arrivals.end`."""
        after, record = arrivals.end(residuals=_held_back(work.residuals, heard), finite=finite)
        return after, self._with_download(record)

    def untrained(self, state: RunState, plan: Plan) -> tuple[RunState, RoundRecord]:
        """The state after a round of which only the schedule and the clock count, and its record."""
        after, record = untrained(self.station, state, plan)
        return after, self._with_download(record)

    def _with_download(self, record: RoundRecord) -> RoundRecord:
        """The record of the first round with what came before it."""
        if record.round > 0 or len(self.shared) == 0:
            return record
        return replace(record, shared_s=self.download.lasts_s, shared_bits=self.download.bits)

    def score(self, state: RunState, record: RoundRecord, score: Score) -> tuple[RunState, RoundRecord]:
        """The state and the record with the test scores; the run ends where they reach the target."""
        return with_score(self.station, state, record, score)

    def wants_score(self, state: RunState) -> bool:
        """Whether the weights are to be tested now: every few rounds, and when the run ends other than by diverging."""
        return wants_score(self.config.run, state)

    def _built(self, model: str | nn.Module | ModelBuilder) -> nn.Module:
        shape, num_classes = self.dataset.sample_shape, self.dataset.num_classes
        if not isinstance(model, nn.Module):
            options = NO_OPTIONS if self.own_module else self.config.learning.model_options
            return make_model(model, shape, num_classes, seed=self.config.seed, options=options)
        check_output(model, shape, num_classes)
        return model

    def _policy_options(self) -> dict[str, Any]:
        """The options of the policy in the settings; for `ps`, the number of devices is tuned where they give none."""
        given = policy_options(self.config, self.model.num_weights)
        if not lacks_number(self.config.scheduling.policy, given):
            return given
        rounds = [problem_of(self.station, self.observe(r))[0] for r in range(_TUNING_ROUNDS)]
        return given | {"num_selected": tune_num_selected(rounds, lambda r: stream(self.config.seed, "tune", r))}


def observation_of(drawn: CellRound, num_samples: Floats, label_counts: Floats | None = None) -> Observation:
    """What the devices report of a drawn round, in which all of them are there."""
    return Observation(
        devices=np.arange(len(drawn.tau)),
        num_devices=len(drawn.tau),
        tau=drawn.tau,
        cpu_hz=drawn.cpu_hz,
        snr_hz=drawn.snr_hz,
        power_w=drawn.power_w,
        num_samples=num_samples,
        label_counts=label_counts,
        mean_snr_hz=drawn.mean_snr_hz,
    )


def _held_back(before: Residuals, heard: Sequence[Incoming]) -> Residuals:
    """What devices hold back when these vectors were sent."""
    for each in heard:
        before = before.after(each.part, each.kept)
    return before


def _without_own(rule: LocalRule, own: Tensor | None) -> LocalRule:
    """The rule of a device that has taken its own gradient from the drift."""
    if own is None:
        return rule
    assert rule.drift is not None
    return replace(rule, drift=drift_less_own(rule.drift, own), subtract_own_gradient=False)


def _label_counts(dataset: Dataset, held: Sequence[Indices]) -> Floats:
    """How many samples of each label each device holds, shape (devices, classes)."""
    counts = [np.bincount(dataset.train_y[samples], minlength=dataset.num_classes) for samples in held]
    return np.array(counts, dtype=np.float64)


@lru_cache(maxsize=2)
def _load_once(source: Source, data: DataConfig) -> Dataset:
    return load_dataset(data, num_devices=1, seed=0)


def _shared_dataset(data: DataConfig, num_devices: int, seed: int) -> Dataset:
    """The data set of a run, loaded once for all runs that learn from the same; drawn data are a run's own."""
    source = SOURCES.find(data.name)
    if source.of_run:
        return load_dataset(data, num_devices=num_devices, seed=seed)
    return _load_once(source, DataConfig(name=data.name, folder=data.folder, options=data.options))


def _checked_held(held: Sequence[ArrayLike], num_devices: int, num_samples: int) -> list[Indices]:
    if isinstance(held, Mapping | str) or not isinstance(held, Sequence | np.ndarray):
        raise ValueError(
            f"held is a {type(held).__name__}; it must be a list with, for each device, the numbers of its training "
            "samples"
        )
    if len(held) != num_devices:
        raise ValueError(
            f"held names the samples of {len(held)} devices, wireless.num_devices is {num_devices}: "
            "give the training samples of every device (flare.data.partition divides them)"
        )
    checked = []
    for device, given in enumerate(held):
        try:
            samples = np.asarray(given)
        except ValueError:  # rows of unequal length
            samples = np.zeros((1, 1))
        if samples.size == 0:
            raise ValueError(f"device {device} holds no training samples; every device needs at least one")
        whole = samples.ndim == 1 and samples.dtype.kind in "iu"
        if not whole or samples.min() < 0 or samples.max() >= num_samples:
            raise ValueError(
                f"held: device {device} must have a list of the numbers of its training samples, each from 0 to "
                f"{num_samples - 1}"
            )
        checked.append(samples.astype(np.intp))
    return checked
