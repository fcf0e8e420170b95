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
from flare.flower.asking import drawn_to_test
from flare.flower.backoff import look_every
from flare.flower.client import Work
from flare.flower.coding import coding_record
from flare.flower.enquiry import enquire, wait_for_nodes
from flare.flower.evaluation import Findings, evaluate_messages, read_tests
from flare.flower.exchange import Answer, refusal
from flare.flower.faults import Faults, log
from flare.flower.fleet import Fleet
from flare.flower.mailbox import AskedGradient, Mailbox
from flare.flower.nodes import gradient_message, gradients, take_in
from flare.flower.radio import Grants, Radio, radio_of
from flare.flower.run_folder import opened, state_in
from flare.flower.sending import outgoing
from flare.flower.settings import refuse_other_loop, refuse_out_of_range, refuse_settings
from flare.flower.under_way import FleetRound, FleetRun, say_round, score_of, train_metrics, with_lateness
from flare.flower.vectors import Reader
from flare.learning.engine.threads import one_thread
from flare.learning.job import LocalRule
from flare.learning.methods import make_method
from flare.plugins import load_plugins
from flare.rounds import (
    Arrivals,
    BaseStation,
    Plan,
    RoundRecord,
    RunStatus,
    first_state,
    local_rules,
    plan_round,
    wants_score,
    with_score,
)
from flare.rounds.base_station import policy_options
from flare.rounds.identity import code_identity
from flare.rounds.state import scored

_CPU = torch.device("cpu")
_LEAST_WAIT_S, _FIRST_WAIT_S = 10.0, 60.0
"""What nodes are given at least to answer a question, where the deadline ends rounds, and while none has answered:
their programs may still be starting."""
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
    query_timeout_s : how long nodes may take to say what they can do; None: as long as to train, or, where
        `fleet.deadline` ends rounds in real time, as long as the deadline, but 10 s at least, and 60 s while none has
        answered.
    min_nodes : a round begins when so many nodes are connected, or when the timeout is over.
    patience : after so many rounds in a row in which no node answered the run is suspended, to be started again.
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
        self._faults = Faults()
        self._timeout_s = 3600.0
        self._drives = False  # whether `start` drives the rounds
        self._run: FleetRun | None = None
        self._round: FleetRound | None = None

    def summary(self) -> None:
        """Say what will be done."""
        config = self.config
        log.info("\tFLARE: policy %s, method %s", config.scheduling.policy, config.learning.method)
        log.info(
            "\tband %g MHz, deadline %g s (%s), %d rounds, run folder %s",
            config.wireless.total_bandwidth_hz / 1e6,
            config.wireless.deadline_s,
            config.fleet.deadline,
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
        self._drives = True
        look_every(self.poll_s)
        self.summary()
        run = self._begin(initial_arrays)
        result, idle = Result(), 0
        try:
            while run.state.status is RunStatus.RUNNING and idle < self.patience:
                wait_for_nodes(grid, run.mail, self.min_nodes, self._timeout_s)
                number = run.state.rounds_done + 1
                messages = list(self.configure_train(number, run.arrays(), train_config or ConfigRecord(), grid))
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
        finally:
            self._grants.take_back()
            run.keeper.close()
            self._drives = False
        result.arrays = run.arrays()
        return result

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
        station = run.station.with_deadline(run.deadline.planned_s)
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
        plan = plan_round(station, run.state, seen)
        if plan is not None:
            self._grants.give(plan.selected.tolist(), plan.bandwidth_hz, plan.payload_bits / plan.upload_s)
        reader = self._reader(run, plan)
        ttl_s = 1.1 * self._timeout_s  # then the SuperLink forgets it, and nobody works for a round that is over
        out = time.monotonic()
        rules = self._rules(grid, run, plan, reader, nodes, ttl_s)
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
        metrics, *_ = self._end_round(self._unanswered_by_us(replies))
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
        method = make_method(self.config.learning)
        station = BaseStation(self.config, method, layout.num_weights, policy_options(self.config), fleet=True)
        with one_thread(_CPU):
            first_norm = float(torch.linalg.vector_norm(weights.double()))
        if not math.isfinite(first_norm):
            raise ValueError("the initial arrays hold numbers that are not finite; give those of a sound model")
        keeper = opened(self.folder, station, layout)
        state = first_state(weights, method.start(len(weights), 0), 0)
        mail = Mailbox(self.poll_s, self._faults, keeps_late=station.asynchronous)
        run = FleetRun(station, layout, keeper, first_norm, state, mail)
        try:
            restored = keeper.restored("flower", code_identity(station), partial(state_in, station))
        except BaseException:
            keeper.close()
            raise
        if restored is not None:
            run.restore(*restored, self._fleet)
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
        device_of = {node: device for device, node in nodes.items()}
        began = time.monotonic()
        within_s = self._timeout_s
        if run.deadline.real:
            within_s = 0.5 * run.deadline.real_s(plan.deadline_s)  # the other half is for the training
        run.mail.send(grid, asked, {nodes[each]: AskedGradient(index, each) for each in devices})
        del asked
        told = run.mail.collect(grid, [nodes[each] for each in devices], began=began, end=began + within_s)
        with one_thread(_CPU):
            rules = local_rules(run.station, plan, gradients(told, device_of, reader, faults=self._faults))
        if not run.deadline.real:
            run.mail.give_up([nodes[each] for each in devices], f"no answer within {within_s:g} s")
        return rules

    def _trained(self, run: FleetRun, this: FleetRound | None, messages: Sequence[Message]) -> Iterator[Answer]:
        """Send the work of a round, and yield the answers that it waits for as they come, until it is over."""
        if this is None or this.plan is None:
            return
        this.out = this.out or time.monotonic()
        run.mail.send(this.grid, messages, this.sending)
        del messages
        real = run.deadline.real
        this.real_s = run.deadline.real_s(this.plan.deadline_s) if real else None
        end = this.out + (this.real_s or self._timeout_s)
        for answer in run.mail.collect(this.grid, this.awaited, began=this.out, end=end):
            run.deadline.came(this.awaited[answer.node].device, answer.after_s)
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
        with one_thread(_CPU):
            state, record = this.arrivals.end(faults=self._faults_by_device(), lasted_s=this.lasted_s)
        run.state = state
        record = self._with_times(run, this, record)
        score, found, record = self._tested(run, this.grid, record)
        faults = [*record.faults, *self._faults_by_device()]  # tests of the model may have brought more
        record = replace(record, faults=faults, wall_s=time.monotonic() - this.began)
        run.keeper.append(record)
        run.keeper.save(run.state, run.numbers(self._fleet))
        if run.state.status is not RunStatus.RUNNING:
            run.keeper.close()
        say_round(record)
        return train_metrics(record), score, found

    def _with_times(self, run: FleetRun, this: FleetRound, record: RoundRecord) -> RoundRecord:
        """The record with who was late, and the deadline of the next round."""
        came = run.mail.take_late()
        for each in came:
            run.deadline.came_late(each.device, each.after_s)
        nobody = record.available > 0 and not record.selected
        run.deadline.after_round(missed=this.late, real_s=this.real_s, nobody=nobody)
        return with_lateness(record, this, came)

    def _tested(
        self, run: FleetRun, grid: Grid, record: RoundRecord
    ) -> tuple[MetricRecord | None, Findings, RoundRecord]:
        """What the server and the nodes say of the new model, where it is time for a test, and the record with it. The
        run may be over by that: the server's test counts, or, where it has none, the mean over the nodes."""
        score, found = None, Findings()
        if not wants_score(self.config.run, run.state):
            return score, found, record
        if self.evaluate_fn is not None:
            score = self.evaluate_fn(run.state.rounds_done, run.layout.arrays(run.state.weights))
            if score is not None:
                run.state, record = with_score(run.station, run.state, record, score_of(score))
        if self.config.fleet.evaluate_share > 0.0:
            found = self._tested_by_nodes(run, grid, record.round)
            record = found.written_into(record)
            if self.evaluate_fn is None and found.score is not None:
                run.state = scored(self.config.run, run.state, found.score)
        return score, found, record

    def _tested_by_nodes(self, run: FleetRun, grid: Grid, index: int) -> Findings:
        """What nodes find that are drawn to test the model on their own data, of those that are known and free."""
        device_of = dict(self._fleet.device_of)
        free = [node for node in grid.get_node_ids() if node in device_of and node not in run.mail.busy]
        patience_s = self._patience_s("evaluate")
        chosen = drawn_to_test(self.config, index, free, self._fleet)
        messages = evaluate_messages(chosen, index, run.arrays(), ttl_s=1.1 * patience_s)
        answers = run.mail.ask(grid, messages, when="evaluate", timeout_s=patience_s)
        return read_tests(answers, device_of, self._faults)

    def _unanswered_by_us(self, replies: Iterable[Message]) -> Iterator[Answer]:
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
