"""The one loop: draw the round -> schedule -> train -> aggregate -> clock -> record.

A `Simulation` is a state machine made of pure steps, so that one run or many can be driven in lockstep and a batched
engine sees the devices of all runs at once:

    plan(state)                     the cell is drawn and the devices are selected
    jobs(state, plan, gradients)    what the selected devices are to compute
    apply(state, plan, jobs, updates)   the new global weights, the clock and the record of the round

Everything drawn comes from streams named by the run's own seed and the round, never from what happened before: a run
gives the same numbers alone and in company, and continues after any round from its state alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flare.config import Config, DataConfig
from flare.data.dataset import Dataset
from flare.data.partition import partition
from flare.data.sources import load_dataset
from flare.learning.batches import draw_batches
from flare.learning.flat import FlatModel
from flare.learning.job import GradientJob, Job, Score, Update
from flare.learning.methods import make_method
from flare.learning.methods.base import Round
from flare.learning.models import make_model
from flare.learning.record import Record, round_record, write_score
from flare.learning.state import RunState, RunStatus, ended, scored, wants_score
from flare.rng import stream
from flare.scheduling import RoundProblem, Schedule, get_policy, tune_num_selected
from flare.scheduling.rounds import schedule_round, work_problem
from flare.simulation.smoothness import estimated_smoothness, gamma_of, tau_bar_limit
from flare.types import Floats, Indices
from flare.wireless.cell import Cell, CellRound

_TUNING_ROUNDS = 20  # rounds of the cell on which the number of devices of policy `ps` is tuned


@dataclass(frozen=True, eq=False)
class Plan:
    """A drawn and scheduled round."""

    problem: RoundProblem
    schedule: Schedule
    lower_bound: float
    now: Round
    compute_energy_j: Floats  # (devices,)
    power_w: Floats  # (devices,)
    gradient_jobs: list[GradientJob]


class Simulation:
    """One run: a configuration, its cell, its data and its method.

    `dataset` and `held` (the training samples of each device) replace the data set of the configuration, `module` its
    model: any pair of arrays, any torch module.
    """

    def __init__(
        self,
        config: Config,
        *,
        dataset: Dataset | None = None,
        held: Sequence[Indices] | None = None,
        module: nn.Module | None = None,
    ) -> None:
        self.config = config
        num_devices = config.wireless.num_devices
        if dataset is None:
            self.dataset = _shared_dataset(config.data, num_devices, config.seed)
            self.held = partition(config.data, self.dataset, num_devices, rng=stream(config.seed, "partition"))
        else:
            self.dataset, self.held = dataset, list(held or [])
        _check_held(self.held, num_devices)
        self._own_module = module
        self.module = (
            module
            if module is not None
            else make_model(
                config.learning.model, self.dataset.sample_shape, self.dataset.num_classes, seed=config.seed
            )
        )
        self.model = FlatModel(self.module)
        self.start_weights = self.model.flatten()
        self.cell = Cell(config.wireless, config.seed)
        self.method = make_method(config.learning)
        self.held_size = np.array([len(samples) for samples in self.held], dtype=np.float64)  # (devices,)
        self.smoothness = estimated_smoothness(
            config, self.module, self.dataset, self.held, own=dataset is not None or module is not None
        )
        self.policy = get_policy(config.scheduling.policy)
        self.policy_options = self._policy_options()

    @property
    def payload_bits(self) -> float:
        """S: what a device sends in a round, with the control variates or gradients that its method adds."""
        own = self.config.run.payload == "model"
        return self.method.uplink_models * float(self.model.num_bits if own else self.config.wireless.payload_bits)

    @property
    def engine_key(self) -> tuple[object, ...]:
        """Runs with the same key can share an engine: same data, same architecture, same batch size and place."""
        learning = self.config.learning
        model = learning.model if self._own_module is None else id(self._own_module)
        return (
            id(self.dataset),
            model,
            self.config.wireless.batch_size,
            learning.engine,
            learning.device,
            learning.precision,
        )

    def start(self) -> RunState:
        """The state before the first round."""
        method = self.method.start(self.model.num_weights, self.config.wireless.num_devices)
        return RunState(rounds_done=0, clock_s=0.0, weights=self.start_weights, method=method, memory={})

    def plan(self, state: RunState) -> Plan:
        """Draw the next round and select its devices."""
        r, learning = state.rounds_done, self.config.learning
        drawn = self.cell.draw(r)
        tau, problem, energy_j = self._problem(drawn)
        schedule, bound = schedule_round(
            problem,
            self.config.scheduling,
            seed=self.config.seed,
            index=r,
            memory=state.memory,
            options=self.policy_options,
        )
        jobs = []
        if self.method.needs_gradients:
            jobs = [GradientJob(state.weights, self.held[i]) for i in schedule.selected]
        limit = tau_bar_limit(self.config, self.smoothness)
        now = Round(schedule.selected, tau, learning.local_lr, learning.global_lr, limit)
        return Plan(problem, schedule, bound, now, energy_j, drawn.power_w, jobs)

    def jobs(self, state: RunState, plan: Plan, gradients: Sequence[Tensor]) -> list[Job]:
        """What the selected devices are to compute; none where nobody sends."""
        if plan.schedule.num_selected == 0:
            return []
        rules = self.method.rules(state.method, plan.now, state.weights, gradients)
        batch_size = self.config.wireless.batch_size
        jobs = []
        for device, rule in zip(plan.now.selected.tolist(), rules, strict=True):
            rng = stream(self.config.seed, "batch", state.rounds_done, device)
            jobs.append(Job(state.weights, rule, draw_batches(self.held[device], rule.steps, batch_size, rng=rng)))
        return jobs

    def apply(
        self, state: RunState, plan: Plan, jobs: Sequence[Job], updates: Sequence[Update]
    ) -> tuple[RunState, Record]:
        """The state after the round, and its record without the test scores."""
        schedule, clock_s = plan.schedule, _clock_after(state, plan)
        weights, method, status = state.weights, state.method, RunStatus.RUNNING
        tau_bar = math.nan
        if schedule.num_selected:
            tau_bar = self.method.tau_bar(method, plan.now)
            weights, method = self.method.aggregate(method, plan.now, weights, [job.rule for job in jobs], updates)
            if not bool(torch.isfinite(weights).all()):
                status = RunStatus.DIVERGED
        after = RunState(state.rounds_done + 1, clock_s, weights, method, schedule.memory, status)
        record = self._record(state, plan, jobs, updates, tau_bar, clock_s)
        return ended(self.config.run, after), record

    def untrained(self, state: RunState, plan: Plan) -> tuple[RunState, Record]:
        """The state after a round of which only the schedule and the clock count, and its record."""
        clock_s = _clock_after(state, plan)
        after = replace(state, rounds_done=state.rounds_done + 1, clock_s=clock_s, memory=plan.schedule.memory)
        return ended(self.config.run, after), self._record(state, plan, [], [], math.nan, clock_s)

    def score(self, state: RunState, record: Record, score: Score) -> RunState:
        """Write the test scores into the record; the state ends where they reach the target."""
        write_score(record, score)
        return scored(self.config.run, state, score)

    def wants_score(self, state: RunState) -> bool:
        """Whether the weights are to be tested now: every few rounds, and when the run ends other than by diverging."""
        return wants_score(self.config.run, state)

    def _problem(self, drawn: CellRound) -> tuple[Floats, RoundProblem, Floats]:
        """The steps, the scheduling problem and the computing energy of a drawn round under this method."""
        wireless, learning = self.config.wireless, self.config.learning
        tau = drawn.tau
        if learning.method == "fedavg-fixed":
            tau = np.full(len(tau), float(learning.fixed_steps))
        # A gradient over all its samples costs a device as much as that many samples in steps.
        extra = self.held_size / wireless.batch_size if self.method.needs_gradients else 0.0
        problem, energy_j = work_problem(
            wireless,
            tau=tau,
            cpu_hz=drawn.cpu_hz,
            snr_hz=drawn.snr_hz,
            payload_bits=self.payload_bits,
            gamma=gamma_of(self.config, self.smoothness, tau),
            extra_steps=extra,
        )
        return tau, problem, energy_j

    def _policy_options(self) -> dict[str, Any]:
        """The number of devices of policies that take one; for `ps` it is tuned where the configuration gives none."""
        if "num_selected" not in self.policy.options:
            return {}
        if self.config.scheduling.num_selected:
            return {"num_selected": self.config.scheduling.num_selected}
        if self.policy.name != "ps":
            return {}
        rounds = [self._problem(self.cell.draw(r))[1] for r in range(_TUNING_ROUNDS)]
        return {"num_selected": tune_num_selected(rounds, lambda r: stream(self.config.seed, "tune", r))}

    def _record(
        self,
        state: RunState,
        plan: Plan,
        jobs: Sequence[Job],
        updates: Sequence[Update],
        tau_bar: float,
        clock_s: float,
    ) -> Record:
        return round_record(
            state.rounds_done,
            plan.problem,
            plan.schedule,
            lower_bound=plan.lower_bound,
            smoothness=self.smoothness,
            power_w=plan.power_w,
            compute_energy_j=plan.compute_energy_j,
            tau_bar=tau_bar,
            lrs=[job.rule.lr for job in jobs],
            losses=[update.loss for update in updates],
            clock_s=clock_s,
        )


def _clock_after(state: RunState, plan: Plan) -> float:
    """A round takes as long as its schedule; where nobody can send, the deadline passes."""
    schedule = plan.schedule
    return state.clock_s + (schedule.latency_s if schedule.num_selected else plan.problem.deadline_s)


@lru_cache(maxsize=2)
def _load_once(data: DataConfig) -> Dataset:
    return load_dataset(data, num_devices=1, seed=0)


def _shared_dataset(data: DataConfig, num_devices: int, seed: int) -> Dataset:
    """The data set of a run, loaded once for all runs that learn from the same; only synthetic data are a run's own."""
    if data.name == "synthetic":
        return load_dataset(data, num_devices=num_devices, seed=seed)
    return _load_once(DataConfig(name=data.name, folder=data.folder))


def _check_held(held: Sequence[Indices], num_devices: int) -> None:
    if len(held) != num_devices:
        raise ValueError(
            f"held names the samples of {len(held)} devices, wireless.num_devices is {num_devices}: "
            "give the training samples of every device (flare.data.partition divides them)"
        )
    for device, samples in enumerate(held):
        if len(samples) == 0:
            raise ValueError(f"device {device} holds no training samples; every device needs at least one")
