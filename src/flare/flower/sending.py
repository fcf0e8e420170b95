"""What goes out to nodes in a round: work for the selected, or, where devices compute across rounds, for those that
begin now and for those whose node has lost what it was at (it was started again, or the server was)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, Message

from flare.flower.arrays import Layout
from flare.flower.nodes import beside_work, train_message, works
from flare.flower.stepping import Work
from flare.learning.job import LocalRule
from flare.rounds import BaseStation, Plan
from flare.rounds.asynchrony import FREE


def outgoing(
    station: BaseStation,
    layout: Layout,
    plan: Plan,
    rules: Mapping[int, LocalRule],
    nodes: Mapping[int, int],
    busy: Collection[int],
    extra: Mapping[str, Any],
    *,
    ttl_s: float,
) -> tuple[list[Message], dict[int, Work]]:
    """The messages of a round, and the work of each node that is sent one.

    `rules` says how the selected devices step, `nodes` has the node of each device that is there, `busy` those that are
    at work already, `extra` is told to all of them.
    """
    tau_bar = station.method.reference_steps(plan.method, plan.now) if rules else 0.0
    messages, work = [], {}
    for began, some in _by_round(plan, rules, nodes, busy).items():
        then = replace(plan, index=began)
        beside = beside_work(station, then, some, layout)
        model = _model(layout, plan, some)
        for device, each in works(station, began, then, some, tau_bar).items():
            work[nodes[device]] = each
            messages.append(train_message(nodes[device], each, model, beside[device], extra, ttl_s=ttl_s))
    return messages, work


def _by_round(
    plan: Plan, rules: Mapping[int, LocalRule], nodes: Mapping[int, int], busy: Collection[int]
) -> dict[int, dict[int, LocalRule]]:
    """How each device steps that is to be sent work, by the round whose model it computes from."""
    if plan.underway is None:
        return {plan.index: dict(rules)} if rules else {}
    groups: dict[int, dict[int, LocalRule]] = {}
    for device, node in nodes.items():
        began = plan.began(device)
        if began != FREE and node not in busy:
            groups.setdefault(began, {})[device] = plan.underway.rule(device)
    return groups


def _model(layout: Layout, plan: Plan, devices: Collection[int]) -> ArrayRecord:
    """What these devices compute from, which is one model."""
    return layout.arrays(plan.start_of(next(iter(devices))))
