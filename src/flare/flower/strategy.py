"""FLARE as a strategy of Flower: ask every node, schedule, send each its own work, take the mean, write it down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flare.config import Config
from flare.flower.arrays import Layout
from flare.flower.client import Work
from flare.flower.exchange import Answer, exchange
from flare.flower.faults import Faults, log
from flare.flower.fleet import Fleet
from flare.flower.nodes import ask_nodes, collect, train_message, works
from flare.flower.records import Keeper
from flare.flower.rounds import FleetPlan, Sent, apply_round, plan_round, refuse_settings
from flare.learning.engine.tensor_data import one_thread
from flare.learning.job import Score
from flare.learning.methods import make_method
from flare.learning.record import Record, write_score
from flare.learning.state import RunState, RunStatus, scored, wants_score

_CPU = torch.device("cpu")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@final
class FlareStrategy(Strategy):
    """Schedules the nodes by deadline and bandwidth, and trains them with FLARE or FedAvg.

    Parameters
    ----------
    config : the settings of the run, those of the simulator: band, deadline and noise, policy, method, rates, rounds.
        `wireless.num_devices` is how many devices nodes may claim to be; more may join without a claim.
    folder : the run folder; a run that is there already is continued after its last finished round. None: nothing is
        written.
    query_timeout_s : how long nodes may take to say what they can do; None: as long as to train.
    min_nodes : a round begins when so many nodes are connected, or when the timeout is over.
    patience : after so many rounds in a row in which no node answered the run is suspended, to be started again.
    max_steps : a node that reports more local steps is not believed; under FLARE they set the rate of all the others.
    max_update_norm : a larger update is refused; None: ten times the norm of the first model, and 10 at
        least; not of the model at hand, which large updates would raise.
    poll_s : pause between two looks for answers.
    """

    def __init__(
        self,
        config: Config,
        *,
        folder: str | Path | None = None,
        query_timeout_s: float | None = None,
        min_nodes: int = 1,
        patience: int = 3,
        max_steps: int = 100,
        max_update_norm: float | None = None,
        poll_s: float = 0.2,
    ) -> None:
        refuse_settings(config)
        self.config = config
        self.folder = None if folder is None else Path(folder)
        self.query_timeout_s = query_timeout_s
        self.min_nodes = min_nodes
        self.patience = patience
        self.max_steps = max_steps
        self.max_update_norm = max_update_norm
        self.poll_s = poll_s
        self._method = make_method(config.learning)
        self._fleet = Fleet(config.wireless.num_devices)
        self._faults = Faults()
        self._timeout_s = 3600.0
        self._first_norm = 0.0
        self._state: RunState | None = None
        self._layout: Layout | None = None
        self._plan: FleetPlan | None = None
        self._nodes: dict[int, int] = {}  # node of each device that answered
        self._works: dict[int, Work] = {}  # work of each selected node
        self._sent = Sent([], [], None)

    def summary(self) -> None:
        """Say what will be done."""
        config = self.config
        log.info("\tFLARE: policy %s, method %s", config.scheduling.policy, config.learning.method)
        log.info(
            "\tband %g MHz, deadline %g s, %d rounds, run folder %s",
            config.wireless.total_bandwidth_hz / 1e6,
            config.wireless.deadline_s,
            config.run.rounds,
            self.folder or "none",
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run, or continue, all rounds.

        `num_rounds` replaces `run.rounds`; `timeout`, in real seconds, is the most that asking and that training may
        take each. `evaluate_fn` says "accuracy" and "loss" of the global model, every `run.evaluate_every` rounds.
        """
        if num_rounds is not None:
            self.config = replace(self.config, run=replace(self.config.run, rounds=num_rounds))
        self._timeout_s = timeout
        self._begin(initial_arrays)
        self.summary()
        result = Result()
        with Keeper(self.folder, self.config, self._fleet, self._shapes()) as keeper:
            self._state = keeper.restored(self._begun())
            idle = 0
            while self._begun().status is RunStatus.RUNNING and idle < self.patience:
                self._wait_for_nodes(grid)
                self._round(grid, keeper, result, train_config or ConfigRecord(), evaluate_fn)
                idle = 0 if self._nodes else idle + 1
            keeper.close_run(self._begun())
        result.arrays = self._global_arrays()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every node, schedule, and make a message for each selected node."""
        if self._state is None:
            self._begin(arrays)
        timeout_s = self._timeout_s if self.query_timeout_s is None else self.query_timeout_s
        said = ask_nodes(
            grid,
            self.config,
            self._begun().rounds_done,
            fleet=self._fleet,
            faults=self._faults,
            max_steps=self.max_steps,
            timeout_s=timeout_s,
            poll_s=self.poll_s,
        )
        self._nodes = self._fleet.enrol(said, self._faults)
        known = {device: said[node] for device, node in self._nodes.items()}
        self._plan = plan_round(self.config, self._method, self._begun(), known, self._fleet.size, self._payload_bits())
        self._works = works(self.config, self._begun().rounds_done, self._plan, self._nodes)
        ttl_s = 1.1 * self._timeout_s  # then the SuperLink forgets it, and nobody works for a round that is over
        return [train_message(node, work, arrays, config, ttl_s=ttl_s) for node, work in self._works.items()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the mean of the sound updates, one at a time, and move the global model by it."""
        self._sent = self._collect(Answer(each.metadata.src_node_id, each, math.nan) for each in replies)
        with one_thread(_CPU):
            self._state, _ = apply_round(self.config, self._method, self._begun(), self._plan, self._sent)
        return self._global_arrays(), self._train_metrics()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: the global model is tested at the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None, as above."""
        return None

    def _begin(self, arrays: ArrayRecord) -> None:
        self._layout = Layout(arrays)
        weights = self._layout.flatten(arrays)
        with one_thread(_CPU):
            self._first_norm = float(torch.linalg.vector_norm(weights.double()))
        method = self._method.start(len(weights), 0)
        self._state = RunState(rounds_done=0, clock_s=0.0, weights=weights, method=method, memory={})

    def _begun(self) -> RunState:
        assert self._state is not None, "configure_train or start comes first"
        return self._state

    def _round(
        self, grid: Grid, keeper: Keeper, result: Result, config: ConfigRecord, evaluate_fn: EvaluateFn | None
    ) -> None:
        """One round, from asking to the checkpoint."""
        began = time.monotonic()
        number = self._begun().rounds_done + 1
        messages = list(self.configure_train(number, self._global_arrays(), config, grid))
        answers = exchange(
            grid, messages, when="train", timeout_s=self._timeout_s, poll_s=self.poll_s, faults=self._faults
        )
        del messages  # each holds the model
        self._sent = self._collect(answers)
        with one_thread(_CPU):
            state, record = apply_round(self.config, self._method, self._begun(), self._plan, self._sent)
        if evaluate_fn is not None and wants_score(self.config.run, state):
            state = self._scored(state, record, result, evaluate_fn)
        self._state = state
        if (metrics := self._train_metrics()) is not None:
            result.train_metrics_clientapp[number] = metrics
        keeper.keep(state, record | self._fleet_facts() | {"wall_s": time.monotonic() - began})
        self._say(record)

    def _scored(self, state: RunState, record: Record, result: Result, evaluate_fn: EvaluateFn) -> RunState:
        assert self._layout is not None
        metrics = evaluate_fn(state.rounds_done, self._layout.arrays(state.weights))
        if metrics is None:
            return state
        result.evaluate_metrics_serverapp[state.rounds_done] = metrics
        told = {name: metrics.get(name, math.nan) for name in ("accuracy", "loss")}
        score = Score(**{name: float(v) if isinstance(v, int | float) else math.nan for name, v in told.items()})
        write_score(record, score)
        return scored(self.config.run, state, score)

    def _collect(self, answers: Iterable[Answer]) -> Sent:
        assert self._layout is not None
        max_norm = self.max_update_norm
        if max_norm is None:
            max_norm = 10.0 * max(1.0, self._first_norm)
        return collect(answers, self._works, self._layout, max_norm=max_norm, fleet=self._fleet, faults=self._faults)

    def _shapes(self) -> dict[str, list[int]]:
        assert self._layout is not None
        return {name: list(shape) for name, shape in self._layout.shapes.items()}

    def _payload_bits(self) -> float:
        own = self.config.run.payload == "model"
        return float(32 * len(self._begun().weights)) if own else self.config.wireless.payload_bits

    def _wait_for_nodes(self, grid: Grid) -> None:
        """Until there are enough of them, or the timeout is over."""
        end = time.monotonic() + self._timeout_s
        while len(list(grid.get_node_ids())) < self.min_nodes and time.monotonic() < end:
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))

    def _global_arrays(self) -> ArrayRecord:
        assert self._layout is not None
        return self._layout.arrays(self._begun().weights)

    def _train_metrics(self) -> MetricRecord | None:
        losses = self._sent.losses
        if not losses:
            return None
        return MetricRecord({"train_loss": math.fsum(losses) / len(losses), "num_devices": len(losses)})

    def _fleet_facts(self) -> Record:
        """What the record of a fleet's round says beside that of a simulated one."""
        faults = [{**each, "device": self._fleet.device_of.get(int(each["node"]))} for each in self._faults.take()]
        return {"available": len(self._nodes), "sent": sorted(self._sent.devices), "faults": faults}

    def _say(self, record: Record) -> None:
        log.info(
            "round %d: %d nodes, %d selected, %d sent; clock %.3g s, loss %s, accuracy %s",
            record["round"] + 1,
            len(self._nodes),
            len(record["selected"]),
            len(self._sent.devices),
            record["clock_s"],
            record["train_loss"],
            record["test_accuracy"],
        )
