"""The test of the global model where a round ends: at the server, on nodes, or both."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid

from flare.flower.asking import drawn_to_test
from flare.flower.evaluation import Findings, evaluate_messages, read_tests, say_not_asked
from flare.flower.faults import Faults
from flare.flower.fleet import Fleet
from flare.flower.under_way import FleetRun, score_of
from flare.rounds import RoundRecord, wants_score, with_score
from flare.rounds.state import scored

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""A test at the server: of the rounds done and the arrays of the model, "accuracy" and "loss"."""


def tested(
    run: FleetRun,
    grid: Grid,
    record: RoundRecord,
    evaluate_fn: EvaluateFn | None,
    fleet: Fleet,
    faults: Faults,
    patience_s: float,
) -> tuple[MetricRecord | None, Findings, RoundRecord]:
    """What the server and the nodes say of the new model, where it is time for a test, and the record with it.

    The run may be over by that: the server's test counts, or, where it has none, the mean over the nodes.
    `patience_s`: how long nodes may take.
    """
    score, found, config = None, Findings(), run.station.config
    if not wants_score(config.run, run.state):
        return score, found, record
    if evaluate_fn is not None:
        score = evaluate_fn(run.state.rounds_done, run.layout.arrays(run.state.weights))
        if score is not None:
            run.state, record = with_score(run.station, run.state, record, score_of(score))
    if config.fleet.evaluate_share > 0.0:
        found = _tested_by_nodes(run, grid, record.round, fleet, faults, patience_s)
        record = found.written_into(record)
        if evaluate_fn is None and found.score is not None:
            run.state = scored(config.run, run.state, found.score)
    return score, found, record


def _tested_by_nodes(
    run: FleetRun, grid: Grid, index: int, fleet: Fleet, faults: Faults, patience_s: float
) -> Findings:
    """What nodes find that are drawn to test the model on their own data, of those that are known and free."""
    device_of = dict(fleet.device_of)
    connected = list(grid.get_node_ids())
    free = [node for node in connected if node in device_of and node not in run.mail.busy]
    say_not_asked(set(connected) - set(free), device_of)
    chosen = drawn_to_test(run.station.config, index, free, fleet)
    messages = evaluate_messages(chosen, index, run.arrays(), ttl_s=1.1 * patience_s)
    answers = run.mail.ask(grid, messages, when="evaluate", timeout_s=patience_s)
    return read_tests(answers, device_of, faults)
