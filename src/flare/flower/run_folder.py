"""The run folder of a fleet."""

from __future__ import annotations

from pathlib import Path

from flare.flower.arrays import Layout
from flare.flower.asking import Asking
from flare.flower.deadline import Deadline
from flare.flower.fleet import Fleet
from flare.flower.settings import MAX_NORM
from flare.records import RunFolder, Snapshot
from flare.records.manifest import is_run_folder
from flare.records.run_keeper import RunKeeper, refuse_other_driver
from flare.rounds import BaseStation, RunState
from flare.rounds.bits import facts_of_bits
from flare.rounds.identity import code_identity
from flare.rounds.restored import restored_state


def opened(path: Path | None, station: BaseStation, layout: Layout) -> RunKeeper:
    """What writes a fleet's run into its folder, a new one or the one that is there; with no path, nowhere.

    Every round has a checkpoint: a server that dies loses none that was finished. ValueError where the folder holds a
    run of other settings or of another model.
    """
    if path is None:
        return RunKeeper(None, checkpoint_every=1)
    shapes = [[name, list(shape)] for name, shape in layout.shapes.items()]  # in their order, which the weights have
    if not is_run_folder(path):
        facts = {"driver": "flower", "arrays": shapes, **facts_of_bits(station)}
        folder = RunFolder.create(path, station.config, facts=facts, identity=code_identity(station))
        return RunKeeper(folder, checkpoint_every=1)
    folder = RunFolder.open(path)
    refuse_other_driver(folder, "flower")
    if folder.config != station.config:
        raise ValueError(f"{path} holds a run of other settings; give another folder, or the same settings")
    if folder.manifest.get("arrays") != shapes:
        raise ValueError(f"{path} holds a run of a model with other arrays; give another folder")
    return RunKeeper(folder, checkpoint_every=1)


def state_in(station: BaseStation, snapshot: Snapshot) -> RunState:
    """The state in a checkpoint of a fleet; ValueError where it, or what lies beside it, cannot be of this run."""
    numbers = snapshot.numbers
    state = restored_state(station, snapshot.rounds_done, snapshot.tensors, numbers, fleet=True)
    fleet = Fleet(station.config.wireless.num_devices)
    fleet.restore(numbers.get("fleet"))
    if state.history.num_devices > fleet.size:
        raise ValueError(f"its history is of {state.history.num_devices} devices, its fleet of {fleet.size}")
    if fleet.size > max(state.history.num_devices, fleet.max_devices):
        raise ValueError(f"its fleet is of {fleet.size} devices, its history of {state.history.num_devices}")
    norm = numbers.get("first_norm")
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not 0.0 <= norm <= MAX_NORM:
        raise ValueError(f"its first_norm is {norm!r:.40}; it must be a number from 0 to {MAX_NORM:g}")
    if "deadline" in numbers:
        Deadline.of(station.config).restore(numbers["deadline"])
    if "asked" in numbers:
        Asking().restore(numbers["asked"])
    return state
