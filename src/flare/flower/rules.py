"""How each selected device of a fleet steps; nodes are asked for gradients first, where the method needs them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.serverapp import Grid

from flare.flower.coding import coding_record
from flare.flower.faults import Faults
from flare.flower.mailbox import AskedGradient
from flare.flower.nodes import CPU, gradient_message, gradients
from flare.flower.under_way import FleetRun
from flare.flower.vectors import Reader
from flare.learning.engine.threads import one_thread
from flare.learning.job import LocalRule
from flare.rounds import Plan, local_rules


def rules_of(
    grid: Grid,
    run: FleetRun,
    plan: Plan | None,
    reader: Reader,
    nodes: Mapping[int, int],
    faults: Faults,
    *,
    timeout_s: float,
    ttl_s: float,
) -> dict[int, LocalRule]:
    """The rules of a plan, by device; none without a plan. `nodes` has the node of each device."""
    if plan is None:
        return {}
    if not run.station.method.needs_gradients:
        return local_rules(run.station, plan)
    index, arrays, devices = run.state.rounds_done, run.arrays(), plan.selected.tolist()
    codings = {each: coding_record(run.station, plan, each) for each in devices if run.station.codes}
    asked = [gradient_message(nodes[each], index, arrays, codings.get(each), ttl_s=ttl_s) for each in devices]
    device_of = {node: device for device, node in nodes.items()}
    began = time.monotonic()
    within_s = timeout_s
    if run.deadline.real:
        within_s = 0.5 * run.deadline.real_s(plan.deadline_s)  # the other half is for the training
    run.mail.send(grid, asked, {nodes[each]: AskedGradient(index, each) for each in devices})
    del asked
    told = run.mail.collect(grid, [nodes[each] for each in devices], began=began, end=began + within_s)
    with one_thread(CPU):
        rules = local_rules(run.station, plan, gradients(told, device_of, reader, faults=faults))
    if not run.deadline.real:
        run.mail.give_up([nodes[each] for each in devices], f"no answer within {within_s:g} s")
    return rules
