"""FLARE as a strategy of Flower: supplies the rounds with what nodes report and with the updates that they send."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
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
from flare.flower.enquiry import enquire, wait_for_nodes
from flare.flower.evaluation import Findings
from flare.flower.exchange import Answer, refusal
from flare.flower.faults import Faults, log
from flare.flower.fleet import Fleet
from flare.flower.mailbox import Mailbox
from flare.flower.nodes import CPU, take_in
from flare.flower.radio import Grants, Radio, radio_of
from flare.flower.rules import rules_of
from flare.flower.run_folder import opened, state_in
from flare.flower.sending import outgoing
from flare.flower.settings import refuse_other_loop, refuse_out_of_range, refuse_settings
from flare.flower.stepping import Work
from flare.flower.testing import EvaluateFn, tested
from flare.flower.under_way import (
    FleetRound,
    FleetRun,
    say_end,
    say_nobody_connected,
    say_restored,
    say_round,
    train_metrics,
    with_lateness,
)
from flare.flower.vectors import Reader
from flare.learning.engine.threads import one_thread
from flare.learning.methods import make_method
from flare.plugins import load_plugins
from flare.rounds import (
    Arrivals,
    BaseStation,
    Plan,
    RoundRecord,
    RunStatus,
    first_state,
    plan_round,
    with_newcomers,
)
from flare.rounds.base_station import policy_options
from flare.rounds.identity import code_identity
from flare.rounds.method_answers import first_method_state
from flare.text import plural

_LEAST_WAIT_S, _FIRST_WAIT_S = 10.0, 60.0
"""What nodes are given at least to answer a question, where the deadline ends rounds, and while none has answered:
their programs may still be starting."""


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
    query_timeout_s : how long nodes may take to say what they can do; None: as long as to train, or, where
        `fleet.deadline` ends rounds in real time, as long as the deadline, but 10 s at least, and 60 s while none has
        answered.
    min_nodes : a round begins when so many nodes are connected, or when the timeout is over.
    patience : after so many rounds in a row in which no node answered, or waits as long as the timeout in which none
        was connected, the run is suspended, to be started again.
    max_steps : a node that reports more local steps is not believed; under FLARE they set the rate of all the others.
    max_update_norm : a larger update is refused; None: ten times the norm of the first model, and 10 at
        least; not of the model at hand, which large updates would raise.
    poll_s : pause between two looks for answers.
    radio : told what each schedule grants before work goes out, so that a network can give it (`flare.flower.radio`):
        "none", "tc:eth{device}", or an object with `grant` and `release`.

    `start` drives the rounds. A loop of Flower's own may do so too, by `configure_train` and `aggregate_train`: the
    records and checkpoints are the same. It waits for every answer, though: settings with a deadline in real time, or
    with devices that compute across rounds, need `start`.
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
        refuse_out_of_range(
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
        self.radio = radio_of(radio)
        self._grants = Grants(self.radio)
        self._fleet = Fleet(config.wireless.num_devices)
        self._faults = Faults(lambda node: self._fleet.device_of.get(node))
        self._timeout_s = 3600.0
        self._drives = False  # whether `start` drives the rounds
        self._run: FleetRun | None = None
        self._round: FleetRound | None = None

    def summary(self) -> None:
        """Say what will be done."""
        config = self.config
        log.info("\tFLARE: policy %s, method %s", config.scheduling.policy, config.learning.method)
        log.info(
            "\tband %g MHz, deadline %g s (%s), %s, run folder %s",
            config.wireless.total_bandwidth_hz / 1e6,
            config.wireless.deadline_s,
            config.fleet.deadline,
            plural(config.run.rounds, "round"),
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
        take each. `evaluate_fn` replaces the one that the strategy was made with. An `evaluate_config` is refused: what
        nodes are told when they test is the strategy's.
        """
        if evaluate_config:
            raise ValueError(
                f"evaluate_config has {', '.join(map(str, evaluate_config))}, but nodes that test are told nothing of "
                "it; leave it out, and give what your nodes need in their node-config or in train_config"
            )
        if num_rounds is not None:
            self.config = replace(self.config, run=replace(self.config.run, rounds=num_rounds))
        self.evaluate_fn = evaluate_fn or self.evaluate_fn
        self._timeout_s = timeout
        self.summary()
        run, result = self._begin(initial_arrays), Result()
        with ExitStack() as at_the_end:  # each of these, also where another fails
            self._drives = True
            at_the_end.callback(setattr, self, "_drives", False)
            at_the_end.callback(run.keeper.close)
            at_the_end.callback(self._grants.take_back)
            at_the_end.enter_context(look_every(self.poll_s))
            self._drive(run, grid, train_config or ConfigRecord(), result)
        result.arrays = run.arrays()
        return result

    def _drive(self, run: FleetRun, grid: Grid, train_config: ConfigRecord, result: Result) -> None:
        """All rounds that are left, whose metrics go into the result."""
        idle = 0
        while run.state.status is RunStatus.RUNNING and idle < self.patience:
            if not wait_for_nodes(grid, run.mail, self.min_nodes, self._timeout_s):
                idle += 1
                say_nobody_connected(self._timeout_s, idle, self.patience)
                continue
            number = run.state.rounds_done + 1
            messages = list(self.configure_train(number, run.arrays(), train_config, grid))
            answers = self._trained(run, self._round, messages)
            del messages  # each holds the model
            metrics, score, found = self._end_round(answers)
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            if score is not None:
                result.evaluate_metrics_serverapp[number] = score
            if (by_nodes := found.metrics()) is not None:
                result.evaluate_metrics_clientapp[number] = by_nodes
            idle = 0 if run.present else idle + 1
        run.keeper.suspend(run.state, run.numbers(self._fleet))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes, schedule, and make a message for each that is to begin; none when the run is over."""
        run = self._run or self._begin(arrays)
        self._round = None
        if run.state.status is not RunStatus.RUNNING:
            return []
        if not self._drives:
            refuse_other_loop(self.config, run.station.asynchronous)
        began = time.monotonic()
        run.deadline.max_s = self._timeout_s
        nodes, seen = enquire(
            grid,
            run,
            self._fleet,
            self._faults,
            serves=self._grants.serves,
            max_steps=self.max_steps,
            patience_s=self._patience_s("query"),
            timeout_s=self._timeout_s,
        )
        run.present = seen.num_present
        run.deadline.connected = None if seen.voters is None else seen.voters.tolist()
        station = run.station.with_deadline(run.deadline.planned_s)
        plan = plan_round(station, run.state, seen)
        if plan is None:
            run.state = with_newcomers(station, run.state, seen)
        else:
            self._grants.give(plan.selected.tolist(), plan.bandwidth_hz, plan.payload_bits / plan.upload_s)
        reader = self._reader(run, plan)
        ttl_s = 1.1 * self._timeout_s  # then the SuperLink forgets it, and nobody works for a round that is over
        out = time.monotonic()
        rules = rules_of(grid, run, plan, reader, nodes, self._faults, timeout_s=self._timeout_s, ttl_s=ttl_s)
        self._round = this = FleetRound(grid, began, station, plan, Arrivals(station, run.state, plan, rules), reader)
        if plan is None:
            return []
        busy = run.mail.busy
        messages, this.sending = outgoing(station, run.layout, plan, rules, nodes, busy, config, ttl_s=ttl_s)
        this.out = out if station.method.needs_gradients and run.deadline.real else None  # one deadline for both
        for node in (nodes[device] for device in rules):
            at_work = this.sending.get(node) or busy[node].what
            assert isinstance(at_work, Work)
            this.awaited[node] = at_work
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take in the sound updates, one at a time, move the global model, and write the round down."""
        assert self._run is not None, "configure_train or start comes first"
        metrics, *_ = self._end_round(self._fetched_by_flowers_loop(replies))
        return self._run.arrays(), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: the global model is tested where a round ends, at the server and, if wanted, on nodes."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None, as above."""
        return None

    def _begin(self, arrays: ArrayRecord) -> FleetRun:
        """Start the run, or continue the one in the folder."""
        layout = Layout(arrays)
        weights = layout.flatten(arrays)
        method = make_method(self.config.learning).on_nodes()
        station = BaseStation(
            self.config, method, layout.num_weights, policy_options(self.config, layout.num_weights), fleet=True
        )
        with one_thread(CPU):
            first_norm = float(torch.linalg.vector_norm(weights.double()))
        if not math.isfinite(first_norm):
            raise ValueError("the initial arrays hold numbers that are not finite; give those of a sound model")
        keeper = opened(self.folder, station, layout)
        state = first_state(weights, first_method_state(self.config.learning.method, method, len(weights), 0), 0)
        mail = Mailbox(self.poll_s, self._faults, keeps_late=station.asynchronous)
        run = FleetRun(station, layout, keeper, first_norm, state, mail)
        try:
            restored = keeper.restored("flower", code_identity(station), partial(state_in, station))
        except BaseException:
            keeper.close()
            raise
        if restored is not None:
            run.restore(*restored, self._fleet)
            say_restored(self.folder, run.state)
        self._run = run
        return run

    def _trained(self, run: FleetRun, this: FleetRound | None, messages: Sequence[Message]) -> Iterator[Answer]:
        """Send the work of a round, and yield the answers that it waits for as they come, until it is over."""
        if this is None:
            return
        if this.plan is None:
            if run.deadline.real:
                this.out = this.ended = time.monotonic()  # nothing goes out, and the clock stays
            return
        this.out = this.out or time.monotonic()
        run.mail.send(this.grid, messages, this.sending, since=this.out)
        del messages
        real = run.deadline.real
        this.real_s = run.deadline.real_s(this.plan.deadline_s) if real else None
        end = this.out + (this.real_s or self._timeout_s)
        for answer in run.mail.collect(this.grid, this.awaited, began=this.out, end=end):
            device = this.awaited[answer.node].device
            if answer.node in this.sending:
                run.deadline.came(device, answer.after_s)
            else:  # of an earlier round
                run.deadline.came_late(device, answer.after_s, or_sooner=True)
            yield answer
        if not real:
            run.mail.give_up(this.awaited, f"no answer within {self._timeout_s:g} s")
            return
        this.late = run.mail.at_work(set(this.plan.selected.tolist()))
        if this.plan.periodic or not this.awaited:  # channels and nodes may be others by then
            time.sleep(max(0.0, end - time.monotonic()))
        this.ended = time.monotonic()

    def _end_round(self, answers: Iterable[Answer]) -> tuple[MetricRecord | None, MetricRecord | None, Findings]:
        """Take in the answers, move the model, test it if it is time, and write the round down; the metrics of
        training, of the test at the server, and what nodes found."""
        run, this = self._run, self._round
        if run is None or this is None:  # the run is over
            return None, None, Findings()
        self._round = None
        try:
            take_in(
                answers,
                this.arrivals,
                this.awaited,
                this.reader,
                fleet=self._fleet,
                faults=self._faults,
                granted=self._grants.bind,
            )
        finally:
            self._grants.take_back()
        with one_thread(CPU):
            state, record = this.arrivals.end(faults=self._faults_by_device(), lasted_s=this.lasted_s)
        run.state = state
        record = self._with_times(run, this, record)
        patience_s = self._patience_s("evaluate")
        score, found, record = tested(run, this.grid, record, self.evaluate_fn, self._fleet, self._faults, patience_s)
        faults = [*record.faults, *self._faults_by_device()]  # tests of the model may have brought more
        record = replace(record, faults=faults, wall_s=time.monotonic() - this.began)
        run.keeper.append(record)
        run.keeper.save(run.state, run.numbers(self._fleet))
        if run.state.status is not RunStatus.RUNNING:
            run.keeper.close()
        say_round(record, None if this.plan is None else this.plan.schedule)
        say_end(run.state)
        return train_metrics(record), score, found

    def _with_times(self, run: FleetRun, this: FleetRound, record: RoundRecord) -> RoundRecord:
        """The record with who was late, and the deadline of the next round."""
        came = run.mail.take_late()
        for each in came:
            run.deadline.came_late(each.device, each.after_s)
        nobody = record.available > 0 and not record.selected
        missed = [device for device in this.late if device not in this.still_at_work]
        run.deadline.after_round(missed=missed, real_s=this.real_s, nobody=nobody)
        return with_lateness(record, this, came)

    def _fetched_by_flowers_loop(self, replies: Iterable[Message]) -> Iterator[Answer]:
        """Replies that Flower's own loop has fetched; when each came is not known."""
        for reply in replies:
            node = reply.metadata.src_node_id
            if (trouble := refusal(reply)) is not None:
                self._faults.note(node, "train", trouble)
            else:
                yield Answer(node, reply, math.nan)

    def _patience_s(self, when: str) -> float:
        """How long nodes may take to answer a question ("query"), or to test the model ("evaluate")."""
        if when == "query" and self.query_timeout_s is not None:
            return self.query_timeout_s
        if self._run is not None and self._run.deadline.real:
            least_s = _LEAST_WAIT_S if self._run.present else _FIRST_WAIT_S
            return min(self._timeout_s, max(least_s, self._run.deadline.planned_s))
        return self._timeout_s

    def _reader(self, run: FleetRun, plan: Plan | None) -> Reader:
        max_norm = 10.0 * max(1.0, run.first_norm) if self.max_update_norm is None else self.max_update_norm
        return Reader(run.station, run.layout, max_norm, {} if plan is None else plan.own_codecs)

    def _faults_by_device(self) -> list[dict[str, object]]:
        device_of = {str(node): device for node, device in self._fleet.device_of.items()}
        return [{**each, "device": device_of.get(each["node"])} for each in self._faults.take()]
