"""FLARE as a strategy of Flower: supplies the rounds with what nodes report and with the updates that they send."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flare.config import Config
from flare.flower.arrays import Layout
from flare.flower.backoff import look_every
from flare.flower.coding import coding_record
from flare.flower.exchange import Answer, exchange, refusal
from flare.flower.faults import Faults, log
from flare.flower.fleet import Fleet
from flare.flower.nodes import (
    beside_work,
    gradient_message,
    gradients,
    query_messages,
    read_queries,
    take_in,
    train_message,
    works,
)
from flare.flower.radio import Radio, radio_named
from flare.flower.resources import observation
from flare.flower.run_folder import opened, state_in
from flare.flower.settings import refuse_settings
from flare.flower.under_way import FleetRound, FleetRun, say_round, score_of, train_metrics
from flare.flower.vectors import Reader
from flare.learning.engine.threads import one_thread
from flare.learning.job import LocalRule
from flare.learning.methods import make_method
from flare.plugins import load_plugins
from flare.rounds import (
    Arrivals,
    BaseStation,
    Plan,
    RunStatus,
    first_state,
    local_rules,
    plan_round,
    wants_score,
    with_score,
)
from flare.rounds.base_station import policy_options
from flare.rounds.identity import code_identity

_CPU = torch.device("cpu")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@final
class FlareStrategy(Strategy):
    """Schedules the nodes by deadline and bandwidth, and trains them with any method of the simulator.

    Parameters
    ----------
    config : the settings of the run, those of the simulator: band, deadline and noise, policy, method, rates, rounds.
        `wireless.num_devices` is how many devices nodes may claim to be; more may join without a claim.
    folder : the run folder; a run that is there already is continued after its last finished round. None: nothing is
        written.
    evaluate_fn : says "accuracy" and "loss" of the global model, every `run.evaluate_every` rounds; `start` may be
        given another.
    query_timeout_s : how long nodes may take to say what they can do; None: as long as to train.
    min_nodes : a round begins when so many nodes are connected, or when the timeout is over.
    patience : after so many rounds in a row in which no node answered the run is suspended, to be started again.
    max_steps : a node that reports more local steps is not believed; under FLARE they set the rate of all the others.
    max_update_norm : a larger update is refused; None: ten times the norm of the first model, and 10 at
        least; not of the model at hand, which large updates would raise.
    poll_s : pause between two looks for answers.
    radio : told what each schedule grants before work goes out, so that a network can give it (`flare.flower.radio`):
        "none", "tc:eth{device}", or an object with `grant` and `release`.

    `start` drives the rounds. A loop of Flower's own may do so too, by `configure_train` and `aggregate_train`: the
    records and checkpoints are the same.
    """

    def __init__(
        self,
        config: Config,
        *,
        folder: str | Path | None = None,
        evaluate_fn: EvaluateFn | None = None,
        query_timeout_s: float | None = None,
        min_nodes: int = 1,
        patience: int = 3,
        max_steps: int = 100,
        max_update_norm: float | None = None,
        poll_s: float = 0.2,
        radio: Radio | str = "none",
    ) -> None:
        load_plugins(config.plugins)
        refuse_settings(config)
        _refuse_out_of_range(
            {
                "query_timeout_s": (query_timeout_s, True),
                "min_nodes": (min_nodes, False),
                "patience": (patience, False),
                "max_steps": (max_steps, False),
                "max_update_norm": (max_update_norm, True),
                "poll_s": (poll_s, False),
            }
        )
        if evaluate_fn is not None and not callable(evaluate_fn):
            raise ValueError(f"evaluate_fn is {evaluate_fn!r:.40}; it must be a function of the round and the arrays")
        self.config = config
        self.folder = None if folder is None else Path(folder)
        self.evaluate_fn = evaluate_fn
        self.query_timeout_s = query_timeout_s
        self.min_nodes = min_nodes
        self.patience = patience
        self.max_steps = max_steps
        self.max_update_norm = max_update_norm
        self.poll_s = poll_s
        self.radio: Radio = radio_named(radio) if isinstance(radio, str) else radio
        self._granted: list[int] = []  # devices whose grant holds
        self._fleet = Fleet(config.wireless.num_devices)
        self._faults = Faults()
        self._timeout_s = 3600.0
        self._run: FleetRun | None = None
        self._round: FleetRound | None = None

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
        take each. `evaluate_fn` replaces the one that the strategy was made with.
        """
        if num_rounds is not None:
            self.config = replace(self.config, run=replace(self.config.run, rounds=num_rounds))
        self.evaluate_fn = evaluate_fn or self.evaluate_fn
        self._timeout_s = timeout
        look_every(self.poll_s)
        self.summary()
        run = self._begin(initial_arrays)
        result, idle = Result(), 0
        try:
            while run.state.status is RunStatus.RUNNING and idle < self.patience:
                self._wait_for_nodes(grid)
                number = run.state.rounds_done + 1
                messages = list(self.configure_train(number, run.arrays(), train_config or ConfigRecord(), grid))
                answers = self._exchange(grid, messages, "train")
                del messages  # each holds the model
                metrics, score = self._end_round(answers)
                if metrics is not None:
                    result.train_metrics_clientapp[number] = metrics
                if score is not None:
                    result.evaluate_metrics_serverapp[number] = score
                idle = 0 if run.present else idle + 1
            run.keeper.suspend(run.state, self._numbers())
        finally:
            self._release()
            run.keeper.close()
        result.arrays = run.arrays()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every node, schedule, and make a message for each selected node; none when the run is over."""
        run = self._run or self._begin(arrays)
        self._round = None
        if run.state.status is not RunStatus.RUNNING:
            return []
        began, index = time.monotonic(), run.state.rounds_done
        needs_gradients = run.station.method.needs_gradients
        ttl_s = 1.1 * self._timeout_s  # then the SuperLink forgets it, and nobody works for a round that is over
        asked = query_messages(
            grid.get_node_ids(),
            self.config,
            index,
            self._fleet,
            needs_samples=needs_gradients,
            ttl_s=1.1 * self._patience_s("query"),
        )
        said = read_queries(
            self._exchange(grid, asked, "query"),
            fleet=self._fleet,
            faults=self._faults,
            max_steps=self.max_steps,
            needs_samples=needs_gradients,
        )
        nodes = self._fleet.enrol(said, self._faults)
        known = {device: said[node] for device, node in nodes.items()}
        run.present = len(known)
        plan = plan_round(run.station, run.state, observation(known, self._fleet.size, self.config.wireless))
        self._grant(plan)
        reader = self._reader(run, plan)
        rules = self._rules(grid, run, plan, reader, nodes, ttl_s)
        self._round = FleetRound(began, Arrivals(run.station, run.state, plan, rules), reader, {})
        if plan is None or not rules:
            return []
        tau_bar = run.station.method.reference_steps(plan.method, plan.now)
        work = works(self.config, index, plan, rules, tau_bar)
        self._round.works.update((nodes[device], each) for device, each in work.items())
        model, beside = run.arrays(), beside_work(run.station, plan, rules, run.layout)
        return [
            train_message(nodes[device], each, model, beside[device], config, ttl_s=ttl_s)
            for device, each in work.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take in the sound updates, one at a time, move the global model, and write the round down."""
        assert self._run is not None, "configure_train or start comes first"
        metrics, _ = self._end_round(self._unanswered_by_us(replies))
        return self._run.arrays(), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: the global model is tested at the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None, as above."""
        return None

    def _begin(self, arrays: ArrayRecord) -> FleetRun:
        """Start the run, or continue the one in the folder."""
        layout = Layout(arrays)
        weights = layout.flatten(arrays)
        method = make_method(self.config.learning)
        station = BaseStation(self.config, method, layout.num_weights, policy_options(self.config))
        with one_thread(_CPU):
            first_norm = float(torch.linalg.vector_norm(weights.double()))
        if not math.isfinite(first_norm):
            raise ValueError("the initial arrays hold numbers that are not finite; give those of a sound model")
        keeper = opened(self.folder, station, layout)
        run = FleetRun(station, layout, keeper, first_norm, first_state(weights, method.start(len(weights), 0), 0))
        try:
            restored = keeper.restored("flower", code_identity(station), partial(state_in, station))
        except BaseException:
            keeper.close()
            raise
        if restored is not None:
            run.state, numbers = restored
            self._fleet.restore(numbers["fleet"])
            run.first_norm = float(numbers["first_norm"])
            log.info("continuing %s after round %d", self.folder, run.state.rounds_done)
        self._run = run
        return run

    def _rules(
        self, grid: Grid, run: FleetRun, plan: Plan | None, reader: Reader, nodes: Mapping[int, int], ttl_s: float
    ) -> dict[int, LocalRule]:
        """How each selected device steps; where the method needs their gradients, they are asked for those first."""
        if plan is None:
            return {}
        if not run.station.method.needs_gradients:
            return local_rules(run.station, plan)
        index, arrays, devices = run.state.rounds_done, run.arrays(), plan.selected.tolist()
        codings = {each: coding_record(run.station, plan, each) for each in devices if run.station.codes}
        asked = [gradient_message(nodes[each], index, arrays, codings.get(each), ttl_s=ttl_s) for each in devices]
        answers = self._exchange(grid, asked, "train")
        with one_thread(_CPU):
            device_of = {node: device for device, node in nodes.items()}
            told = gradients(answers, device_of, reader, faults=self._faults)
            return local_rules(run.station, plan, told)

    def _end_round(self, answers: Iterable[Answer]) -> tuple[MetricRecord | None, MetricRecord | None]:
        """Take in the answers, move the model, test it if it is time, and write the round down; the metrics of training
        and of the test."""
        run, this = self._run, self._round
        if run is None or this is None:  # the run is over
            return None, None
        self._round = None
        try:
            take_in(answers, this.arrivals, this.works, this.reader, fleet=self._fleet, faults=self._faults)
        finally:
            self._release()
        with one_thread(_CPU):
            state, record = this.arrivals.end(faults=self._faults_by_device())
        score = None
        if self.evaluate_fn is not None and wants_score(self.config.run, state):
            score = self.evaluate_fn(state.rounds_done, run.layout.arrays(state.weights))
            if score is not None:
                state, record = with_score(run.station, state, record, score_of(score))
        record = replace(record, wall_s=time.monotonic() - this.began)
        run.state = state
        run.keeper.append(record)
        run.keeper.save(state, self._numbers())
        if state.status is not RunStatus.RUNNING:
            run.keeper.close()
        say_round(record)
        return train_metrics(record), score

    def _grant(self, plan: Plan | None) -> None:
        """Tell the radio what the schedule gives each selected device; what held before is taken back."""
        self._release()
        if plan is None:
            return
        self._granted = plan.selected.tolist()
        rates_bps = plan.payload_bits / plan.upload_s
        for device, each_hz, rate_bps in zip(
            self._granted, plan.bandwidth_hz.tolist(), rates_bps.tolist(), strict=True
        ):
            self.radio.grant(device, each_hz, rate_bps)

    def _release(self) -> None:
        """Take back all grants."""
        granted, self._granted = self._granted, []
        for device in granted:
            self.radio.release(device)

    def _unanswered_by_us(self, replies: Iterable[Message]) -> Iterator[Answer]:
        """Replies that Flower's own loop has fetched; when each came is not known."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if (trouble := refusal(reply)) is not None:
                self._faults.note(node, "train", trouble)
            else:
                yield Answer(node, reply, math.nan)

    def _exchange(self, grid: Grid, messages: Sequence[Message], when: str) -> Iterator[Answer]:
        timeout_s = self._patience_s(when)
        return exchange(grid, messages, when=when, timeout_s=timeout_s, poll_s=self.poll_s, faults=self._faults)

    def _patience_s(self, when: str) -> float:
        return self.query_timeout_s if when == "query" and self.query_timeout_s is not None else self._timeout_s

    def _reader(self, run: FleetRun, plan: Plan | None) -> Reader:
        max_norm = 10.0 * max(1.0, run.first_norm) if self.max_update_norm is None else self.max_update_norm
        return Reader(run.station, run.layout, max_norm, {} if plan is None else plan.own_codecs)

    def _wait_for_nodes(self, grid: Grid) -> None:
        """Until there are enough of them, or the timeout is over."""
        end = time.monotonic() + self._timeout_s
        while len(list(grid.get_node_ids())) < self.min_nodes and time.monotonic() < end:
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))

    def _faults_by_device(self) -> list[dict[str, object]]:
        device_of = {str(node): device for node, device in self._fleet.device_of.items()}
        return [{**each, "device": device_of.get(each["node"])} for each in self._faults.take()]

    def _numbers(self) -> dict[str, object]:
        """What a checkpoint of a fleet holds beside the state."""
        return {"fleet": self._fleet.to_numbers(), "first_norm": self._run.first_norm if self._run else 0.0}


def _refuse_out_of_range(given: Mapping[str, tuple[float | None, bool]]) -> None:
    """ValueError where a parameter is not a finite number greater than 0, or None where that is allowed."""
    for name, (value, may_be_none) in given.items():
        if value is None and may_be_none:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            raise ValueError(f"{name} is {value!r:.40}; it must be a number greater than 0")
