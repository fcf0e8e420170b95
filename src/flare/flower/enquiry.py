"""Who is there when a round begins, and what each can do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flwr.serverapp import Grid

from flare.flower.asking import without_taken
from flare.flower.faults import Faults, log
from flare.flower.fleet import Fleet
from flare.flower.mailbox import Mailbox
from flare.flower.nodes import Terms, query_messages, read_queries
from flare.flower.resources import observation
from flare.flower.under_way import FleetRun
from flare.rounds.observation import Observation


def enquire(
    grid: Grid,
    run: FleetRun,
    fleet: Fleet,
    faults: Faults,
    *,
    serves: Callable[[int], bool],
    max_steps: int,
    patience_s: float,
    timeout_s: float,
) -> tuple[dict[int, int], Observation]:
    """Ask nodes what they can do, for `patience_s` at most: the node of each device that is there, and what these
    report.

    Nodes that are at work are asked nothing, and given up after `timeout_s`; where devices compute across rounds, what
    such a node said last counts. Devices that the radio does not serve are left out. The lengths of
    earlier updates count of the devices whose nodes are connected.
    """
    index, mail, config = run.state.rounds_done, run.mail, run.station.config
    connected = list(grid.get_node_ids())
    mail.give_up_old(connected, timeout_s)
    free = [node for node in connected if node not in mail.busy]
    chosen = run.asking.chosen(config, index, free, fleet)
    terms = Terms.of(run.station)
    messages = query_messages(chosen, config, index, fleet, terms=terms, ttl_s=1.1 * patience_s)
    answers = mail.ask(grid, messages, when="query", timeout_s=patience_s)
    said = read_queries(answers, index=index, fleet=fleet, faults=faults, max_steps=max_steps, terms=terms)
    said = without_taken(said, fleet, set(connected) - set(chosen), faults)
    if run.station.asynchronous:
        run.said = said = {**{node: run.said[node] for node in mail.busy}, **said}
    nodes = fleet.enrol(said, faults)
    for device in [each for each in nodes if not serves(each)]:
        faults.note(nodes.pop(device), "query", f"it is device {device}, of which the radio has no link; give it one")
    known = {device: said[node] for device, node in nodes.items()}
    voters = [fleet.device_of[node] for node in connected if node in fleet.device_of]
    seen = observation(known, fleet.size, config.wireless)
    return nodes, replace(seen, voters=np.array(sorted(voters), dtype=np.intp))


def wait_for_nodes(grid: Grid, mail: Mailbox, min_nodes: int, timeout_s: float) -> int:
    """Wait until so many nodes are connected and one of them is free, or the timeout is over; how many there are."""
    end, told = time.monotonic() + timeout_s, False
    connected: set[int] = set()
    while (left_s := end - time.monotonic()) > 0.0:
        connected = set(grid.get_node_ids())
        if len(connected) >= min_nodes and (mail.keeps_late or connected - set(mail.busy)):
            break
        if len(connected) < min_nodes and not told:
            told = True
            log.info("waiting for nodes, up to %g s: %d connected, %d wanted", timeout_s, len(connected), min_nodes)
        pause_s = min(1.0, left_s)
        if connected & set(mail.busy) and not mail.keeps_late:  # kept answers stay where they are: nothing to look for
            mail.look(grid, pause_s)
        else:
            time.sleep(pause_s)
    return len(connected)
